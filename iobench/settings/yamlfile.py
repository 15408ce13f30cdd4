"""Read YAML that users write, with limits that are checked before any object is built from it.

The parser's events are checked first, one after the other and without recursion. The composer of
libyaml, in contrast, calls itself for each level, so that 100,000 levels crash the process. Aliases
and merge keys are counted as expanded: ten lines can stand for a billion values.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import yaml

from ..base.documents import read_regular
from ..base.errors import SpecError

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
"""Largest depth of mappings and lists, aliases expanded; a workload has three levels."""

MAX_NODES = 100_000
"""Largest number of keys, values, mappings and lists, aliases expanded.

The table of instances has about 2,000.
"""

MAX_PLAIN = 10_000
"""Largest number of characters of a scalar without quotes.

YAML may parse it as a number or a date, and base 60 (``1:59``) takes long.
"""


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that refuses a mapping with two equal keys; YAML would silently use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> object:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        written = Counter(key.value for key in keys)
        for key in keys:
            if key.value != "<<" and written[key.value] > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' is given twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


class _Size(NamedTuple):
    """The size of a node with all aliases in it expanded."""

    nodes: int
    height: int  # levels of mappings and lists, its own included; 0 for a scalar


def parse_yaml(text: str) -> object:
    """Parse the only document in ``text``.

    Raises ValueError in one line if the text is not YAML, has two equal keys in a mapping, has an
    alias that contains itself, or exceeds the limits of this module (bytes, levels, nodes).
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        _check(text)
        found: object = yaml.load(text, Loader=_UniqueKeys)
        return found
    # ValueError: for example a date such as 2024-13-45, or an integer of thousands of digits.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _check(text: str) -> None:
    """Raise ValueError if ``text`` exceeds the limits, and YAMLError if it is not YAML."""
    known: dict[str, _Size | None] = {}  # anchor -> size of its node; None while the node is open
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
            found = known.get(event.anchor or "", _Size(1, 0))  # unknown ones fail later
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


def read_yaml(path: Path) -> dict[str, object]:
    """Read a YAML mapping from a regular file of at most 1 MiB.

    Raises SpecError if the file cannot be read, is not a regular file, or holds no YAML mapping.
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
