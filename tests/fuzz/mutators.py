"""How inputs are changed: documents and tables as what they are, everything else byte by byte."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import yaml

from tests.fuzz.target import CUT

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e-300, 1e-9, 1e9, 1e29, 1e31, 1e308),
    *(2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, float("inf")),
    *("", "0", "1", "-1", "none", "NaN", "1e400", "x" * 300, "\0", "\ud800", "\x1b[31m", "a\nb"),
    *("../x", "/etc/passwd", "file:///x", "*" * 40, "2024-13-45", "1/0", "4 EiB", "٣", "~", "{}"),
    *([], {}, [[]], [None], {"": 0}, {"0": []}, [0, 1], ["a"], [1e30] * 3),
)
"""Values that documents of others may have in any place."""

SIZES = (0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**46, 2**62, 2**63 - 1, -1, -(2**63))
"""Numbers that a table of others may have in any row."""

Bytes = Callable[[bytes, int], bytes]
"""Mutates bytes, to so many at most."""


def mutate(data: bytes, max_size: int, seed: int, plain: Bytes) -> bytes:
    """``data`` changed in one place. ``plain`` is libFuzzer's own mutation of bytes."""
    chance = random.Random(seed)
    files = data.split(CUT)
    place = chance.randrange(len(files))
    changed = _document(files[place], chance)
    if changed is None:
        return plain(data, max_size)
    files[place] = changed
    out = CUT.join(files)
    return out if len(out) <= max_size else data


def _document(data: bytes, chance: random.Random) -> bytes | None:
    """The document with another value in it; None where it is none, or is not changed so."""
    if chance.random() < 0.3:
        return None
    if data.startswith(b"ARROW1"):
        return _table(data, chance)
    if data[:1] in (b"{", b"["):
        with suppress(ValueError, RecursionError):
            return json.dumps(_changed(json.loads(data), chance)).encode()
    elif b": " in data and b"\0" not in data[:200]:
        with suppress(ValueError, RecursionError, yaml.YAMLError, AttributeError, TypeError):
            document = _changed(yaml.safe_load(data), chance)
            return yaml.safe_dump(document, allow_unicode=chance.random() < 0.5).encode()
    return None


def _changed(document: Any, chance: random.Random) -> Any:
    for _ in range(1 + (chance.random() < 0.3)):
        document = _once(document, chance)
    return document


def _once(document: Any, chance: random.Random) -> Any:
    places = list(_places(document))
    if not places:
        return chance.choice(NASTY)
    holder, key = chance.choice(places)
    action = chance.randrange(8)
    if action == 0 and isinstance(holder, dict):
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif action == 2:
        other, its = chance.choice(places)
        with suppress(KeyError, IndexError):  # deleted, or within what was replaced
            holder[key] = json.loads(json.dumps(other[its]))
    elif action == 3 and isinstance(holder[key], int | float):
        with suppress(OverflowError):
            holder[key] = chance.choice([-1, 2, 1000, 1e6, 1e12, 0.001]) * holder[key]
    elif action == 4 and isinstance(holder, dict):
        holder[chance.choice([key + "_", "name", "kind", "", "units"])] = holder[key]
    elif action == 5:
        holder[key] = chance.choice([[holder[key]], {"a": holder[key]}, str(holder[key])])
    else:
        holder[key] = chance.choice(NASTY)
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key or index) of each value below ``value``."""
    if not isinstance(value, dict | list):
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in items:
        yield value, key
        yield from _places(below) if isinstance(below, dict | list) else ()


def _table(data: bytes, chance: random.Random) -> bytes | None:
    """An Arrow file with other numbers, rows or names in it."""
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        kinds = [field.type for field in table.schema]
        name = chance.choice(table.column_names)
        column = columns[name]
        action = chance.randrange(6)
        if action == 0:
            for each in columns.values():
                del each[chance.randrange(len(each)) :]
        elif action == 1:
            for each in columns.values():
                each.append(each[-1])
        elif action == 2 and len(column) > 1:
            one, other = chance.sample(range(len(column)), 2)
            column[one], column[other] = column[other], column[one]
        else:
            row = chance.randrange(len(column))
            if isinstance(column[row], int):
                column[row] = chance.choice([*SIZES, column[row] + 1, column[row] - 1])
            else:
                column[row] = chance.choice(["", "../x", "a//b", "a/./b", "\0", None, "x" * 300])
        made = pa.table(
            [pa.array(columns[n], kind) for n, kind in zip(columns, kinds, strict=True)],
            names=list(columns),
        )
    except (pa.ArrowException, OSError, ValueError, IndexError, OverflowError, TypeError):
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, made.schema) as writer:
        writer.write_table(made)
    return bytes(sink.getvalue().to_pybytes())
