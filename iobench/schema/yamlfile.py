"""YAML that people write, read safely: limits hold before anything is built from it.

The parser's events are checked first. They come one by one and need no recursion, while the
composer of libyaml calls itself for each level (100,000 levels end the process), and what aliases
and merge keys stand for is only known once they are expanded (ten lines can mean a billion values).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..documents import read_regular
from ..errors import SpecError

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
"""Levels of mappings and lists, aliases expanded; a workload has three."""

MAX_NODES = 100_000
"""Keys, values, mappings and lists, aliases expanded; the table of instances has about 2,000."""

MAX_PLAIN = 10_000
"""Characters of a scalar that YAML may take for a number or a date. Base 60 (``1:59``) is slow."""


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML lets the last of two equal keys win in silence; here the second is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        written = Counter(key.value for key in keys)
        for key in keys:
            if key.value != "<<" and written[key.value] > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' is there twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


class _Size(NamedTuple):
    """Of a node with all aliases in it expanded."""

    nodes: int
    height: int  # levels below it, its own included; 0 for a scalar


def parse_yaml(text: str) -> Any:
    """The one document in ``text``.

    Raises ValueError in one line for what is no YAML, has two equal keys in a mapping, or exceeds
    the limits of this module (bytes, levels, nodes, aliases that contain themselves).
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        _check(text)
        return yaml.load(text, Loader=_UniqueKeys)
    # ValueError: a date such as 2024-13-45, a lone surrogate, an integer of thousands of digits.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _check(text: str) -> None:
    """Raises ValueError for what exceeds the limits, YAMLError for what is no YAML."""
    known: dict[str, _Size | None] = {}  # anchor -> its node; None while that is still open
    open_nodes: list[tuple[str | None, int, int]] = []  # (anchor, nodes so far, height so far)
    total = 0
    for event in yaml.parse(text, Loader=_UniqueKeys):
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            open_nodes.append((event.anchor, 1, 1))
            if event.anchor is not None:
                known[event.anchor] = None
            if len(open_nodes) > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
            continue
        anchor: str | None = None
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            anchor, nodes, height = open_nodes.pop()
            size = _Size(nodes, height)
        elif isinstance(event, yaml.AliasEvent):
            found = known.get(event.anchor or "", _Size(1, 0))  # an unknown one is refused later
            if found is None:
                raise ValueError(f"the alias '*{event.anchor}' refers to a node that contains it")
            size = found
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, _Size(1, 0)
            if any("\ud800" <= character <= "\udfff" for character in event.value):
                raise ValueError("a value holds a lone surrogate, which is not text")
            if len(event.value) > MAX_PLAIN and (event.tag or not event.style):
                raise ValueError(f"a value without quotes has more than {MAX_PLAIN:,} characters")
        else:
            continue
        if anchor is not None:
            known[anchor] = size
        if open_nodes:
            own, nodes, height = open_nodes[-1]
            total = nodes + size.nodes
            open_nodes[-1] = (own, total, max(height, size.height + 1))
        if total > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES:,} values, aliases expanded")
        if len(open_nodes) + size.height > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels, aliases expanded")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a regular file of 1 MiB at most.

    Raises SpecError for what is unreadable, not a regular file, not YAML, or not a mapping.
    """
    try:
        text = read_regular(path, MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"cannot read {path}: it is not UTF-8 text ({error.reason})") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"cannot read {path}: {why}") from error
    try:
        data = parse_yaml(text)
    except ValueError as error:
        raise SpecError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise SpecError(
            f"{path}: expected a mapping of keys to values, found {type(data).__name__}"
        )
    return data
