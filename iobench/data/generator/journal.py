"""Records which units are finished, so that a killed run can be resumed.

Each finished unit has one small object under ``.iobench-journal/``, created only after the unit's
shards are durable. Creation is atomic on every storage, so an entry exists completely or not at
all; a damaged one is treated as missing.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import xxhash

from ...storage.base import Storage
from .plan import ShardPlan
from .writer import UnitResult

JOURNAL = ".iobench-journal"
_ENTRY = re.compile(rf"{re.escape(JOURNAL)}/\d{{8}}\.json(?:\.part)?")


def entry_key(unit: int) -> str:
    return f"{JOURNAL}/{unit:08d}.json"


def is_entry(key: str) -> bool:
    """Whether a key is a unit's entry, complete or not."""
    return _ENTRY.fullmatch(key) is not None


def record(storage: Storage, result: UnitResult) -> None:
    """Record that a unit is finished. Raises StorageError."""
    arrays = {
        name: base64.b64encode(array.tobytes()).decode() for name, array in _arrays(result).items()
    }
    body = json.dumps({"unit": result.unit, **arrays}, separators=(",", ":")).encode()
    line = json.dumps({"xxh3": xxhash.xxh3_64_hexdigest(body)}).encode()
    with storage.create(entry_key(result.unit), size_hint=len(body)) as sink:
        sink.write(body + b"\n" + line + b"\n")


def parse(text: bytes, plan: ShardPlan) -> UnitResult | None:
    """Parse an entry; None if it is damaged or does not belong to the plan."""
    try:
        body, line, _ = text.split(b"\n")
        if json.loads(line)["xxh3"] != xxhash.xxh3_64_hexdigest(body):
            return None
        data = json.loads(body)
        unit = data["unit"]
        if type(unit) is not int or not 0 <= unit < plan.unit_count:
            return None
        shards = slice(int(plan.units[unit]), int(plan.units[unit + 1]))
        samples = int(plan.first[shards.stop] - plan.first[shards.start])
        arrays = [
            np.frombuffer(base64.b64decode(data[name]), dtype) for name, dtype in _TYPES.items()
        ]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    if [len(each) for each in arrays] != [samples] * 3 + [shards.stop - shards.start] * 2:
        return None
    return UnitResult(unit, *arrays)


_TYPES = {
    "offset": np.int64,
    "stored": np.int64,
    "xxh3": np.uint64,
    "shard_size": np.int64,
    "shard_xxh3": np.uint64,
}


def _arrays(result: UnitResult) -> dict[str, Any]:
    return {
        name: np.ascontiguousarray(getattr(result, name), dtype) for name, dtype in _TYPES.items()
    }
