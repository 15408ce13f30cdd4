"""The place that a dataset is generated into: refused, claimed, taken up again, or found complete."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..errors import StorageError, TargetRefusedError
from ..formats.base import split_codec
from ..registry import FORMATS
from ..safety import check_target
from ..spec.dataset import DatasetSpec
from ..spec.manifest import DATA, MANIFEST, MARKER, SAMPLES, SHARDS, Keys, Manifest, load_manifest
from ..units import format_bytes, format_count
from . import journal
from .cleaner import parse_marker
from .plan import ShardPlan
from .writer import FRAMING_BYTES, UnitResult

LAYOUT_VERSION = 1
"""Part of a dataset's identity: raise it when the same spec comes to mean other bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A place that is this dataset's. ``manifest`` is set where it is complete already; else ``finished`` holds the units that are."""

    id: str
    created: str
    generator: str
    finished: dict[int, UnitResult]
    leftovers: frozenset[str]
    manifest: Manifest | None = None


def dataset_id(spec: DatasetSpec) -> str:
    """32 hex digits that are equal for equal datasets."""
    identity = json.dumps({"layout": LAYOUT_VERSION, **spec.identity()}, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(identity.encode())


def claim(spec: DatasetSpec, storage: Any, plan: ShardPlan, *, generator: str) -> Claim:
    """Make the storage's root this dataset's, or take it up again. Raises TargetRefusedError and StorageError."""
    root: Path | None = getattr(storage, "root", None)
    if root is not None:
        check_target(root)
    identity = dataset_id(spec)
    marker = _read(storage, MARKER, root)
    if marker is None:
        _require_empty(storage, root)
        _require_space(spec, plan, root, done_bytes=0, done_shards=0)
        return _fresh(spec, storage, root, identity, generator)
    data = parse_marker(marker, where=f"{storage.url}/{MARKER}")
    complete = _read(storage, MANIFEST, root) is not None
    if data["id"] != identity:
        state = "another dataset" if complete else "a half-generated other dataset"
        name = data["spec"].get("name", "?")
        remedy = f"choose another directory, or remove it: iobench clean {storage.url}"
        raise TargetRefusedError(f"{storage.url} holds {state} ('{name}', seed {data['spec'].get('seed', '?')})", remedy=remedy)
    created, generator = str(data.get("created", "")), str(data.get("generator", generator))
    if complete:
        return Claim(id=identity, created=created, generator=generator, finished={}, leftovers=frozenset(), manifest=_load(storage, root))
    finished, leftovers = _take_up(spec, storage, plan)
    done = plan.unit_bytes()[list(finished)].sum() if finished else 0
    done_shards = sum(len(result.shard_size) for result in finished.values())
    _require_space(spec, plan, root, done_bytes=int(done), done_shards=done_shards)
    return Claim(id=identity, created=created, generator=generator, finished=finished, leftovers=leftovers)


def _fresh(spec: DatasetSpec, storage: Any, root: Path | None, identity: str, generator: str) -> Claim:
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    marker = {
        "id": identity,
        "created": created,
        "generator": generator,
        "made_root": root is not None and not root.exists(),
        "spec": spec.model_dump(mode="json"),
    }
    text = json.dumps(marker, indent=2).encode() + b"\n"
    with storage.create(MARKER, size_hint=len(text)) as sink:  # exclusive: of two that race, one is refused
        sink.write(text)
    return Claim(id=identity, created=created, generator=generator, finished={}, leftovers=frozenset())


def _take_up(spec: DatasetSpec, storage: Any, plan: ShardPlan) -> tuple[dict[int, UnitResult], frozenset[str]]:
    """Units that are finished by the journal and there by their sizes; everything else of the plan's names is removed."""
    present = {entry.key: entry.size for folder in (DATA, journal.JOURNAL) for entry in _list(storage, folder)}
    finished: dict[int, UnitResult] = {}
    for unit in range(plan.unit_count):
        key = journal.entry_key(unit)
        shards = range(int(plan.units[unit]), int(plan.units[unit + 1]))
        keys = Keys(spec)
        names = [keys(shard) for shard in shards]
        entry = journal.parse(journal.read_object(storage, key), plan) if key in present else None
        if entry is not None and entry.unit == unit and [present.get(name) for name in names] == entry.shard_size.tolist():
            finished[unit] = entry
            continue
        for name in (*names, key):
            for leftover in (name, f"{name}.part"):
                if leftover in present:
                    storage.delete(leftover)
    top = {name for name in (SAMPLES, SHARDS) if _exists(storage, name)}
    return finished, frozenset(top)


def _require_empty(storage: Any, root: Path | None) -> None:
    found = None
    if root is not None:
        if root.is_dir():
            # An interrupted start may have left the marker's own unfinished file: that much is iobench's.
            found = next((name for name in os.listdir(root) if name != f"{MARKER}.part"), None)
    else:
        found = next((entry.key for entry in _list(storage, "")), None)
    if found is not None:
        remedy = f"name a new or empty directory, e.g. {storage.url}/data"
        raise TargetRefusedError(f"{storage.url} is not empty (it holds '{found}') and is no iobench dataset", remedy=remedy)


def check_nominal_space(spec: DatasetSpec, storage: Any) -> None:
    """A dataset several times the free space is refused before its sizes are even drawn. Unknown free space passes."""
    root: Path | None = getattr(storage, "root", None)
    if root is None or (root / MARKER).exists():
        return
    existing = next(path for path in (root, *root.parents) if path.is_dir())
    free = os.statvfs(existing)
    have, need = free.f_bavail * free.f_frsize, spec.nominal_bytes / spec.compress_ratio
    if need > 2 * have:
        raise StorageError(
            f"{existing} has {format_bytes(have)} free, the dataset needs {format_bytes(need)}",
            remedy="free some space, choose another target, or a smaller --size",
        )


def _require_space(spec: DatasetSpec, plan: ShardPlan, root: Path | None, *, done_bytes: int, done_shards: int) -> None:
    """Before the first byte: does it fit? Unknown free space (no local root) passes."""
    if root is None:
        return
    existing = next(path for path in (root, *root.parents) if path.is_dir())
    free = os.statvfs(existing)
    one_each = FORMATS.load(spec.format).one_sample_per_shard
    shards = plan.shard_count - done_shards
    need = plan.sample_bytes - done_bytes
    if split_codec(spec.codec)[0] != "none" and spec.compress_ratio > 1:
        need = int(need / spec.compress_ratio)
    need += 0 if one_each else FRAMING_BYTES * plan.sample_count * (plan.sample_bytes - done_bytes) // plan.sample_bytes
    need += plan.sample_count * 36 + (shards * free.f_frsize // 2 if one_each else 0)
    have = free.f_bavail * free.f_frsize
    remedy = "free some space, choose another target, or a smaller --size"
    if need > have:
        raise StorageError(f"{existing} has {format_bytes(have)} free, the dataset needs {format_bytes(need)}", remedy=remedy)
    if free.f_files and shards > free.f_favail:
        raise StorageError(
            f"{existing} has {format_count(free.f_favail)} free inodes, the dataset needs {format_count(shards)}", remedy=remedy
        )
    if free.f_flag & os.ST_RDONLY:
        raise StorageError(f"{existing} is read-only", remedy="choose another target")


def _load(storage: Any, root: Path | None) -> Manifest:
    if root is not None:
        return load_manifest(root)
    from ..spec.manifest import assemble, hash_bytes, parse_header

    header = parse_header(journal.read_object(storage, MANIFEST), where=f"{storage.url}/{MANIFEST}")
    tables = {name: journal.read_object(storage, name) for name in (SAMPLES, SHARDS)}
    return assemble(header, tables.__getitem__, lambda name: hash_bytes(tables[name]))


def _read(storage: Any, key: str, root: Path | None) -> bytes | None:
    """An object's bytes, or None where there is none."""
    if root is not None and not (root / key).exists():
        return None
    try:
        return journal.read_object(storage, key)
    except StorageError:
        if root is not None or _exists(storage, key):
            raise
        return None


def _exists(storage: Any, key: str) -> bool:
    try:
        storage.size(key)
    except StorageError:
        return False
    return True


def _list(storage: Any, prefix: str) -> list[Any]:
    """Entries under a prefix; none where there is no such folder yet."""
    root: Path | None = getattr(storage, "root", None)
    if root is not None and not (root / prefix).is_dir():
        return []
    return list(storage.list(prefix))
