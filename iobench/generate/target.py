"""The place that a dataset is generated into: refused, claimed, taken up again, or found complete."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ..errors import StorageError, TargetRefusedError
from ..formats.base import split_codec
from ..registry import FORMATS
from ..spec.dataset import DatasetSpec, in_columns
from ..spec.manifest import DATA, MANIFEST, MARKER, SAMPLES, SHARDS, Keys, Manifest, index_key
from ..storage.base import Guarded, Storage
from ..storage.catalog import exists, innermost, local_root, read_manifest, read_object
from ..units import format_bytes, format_count
from . import journal
from .cleaner import parse_marker
from .plan import ShardPlan
from .writer import UnitResult, framing_bytes

LAYOUT_VERSION = 1
"""Part of a dataset's identity: raise it when the same spec comes to mean other bytes."""

COLUMNS_LAYOUT_VERSION = 2
"""The same for samples that are cut into columns. Version 1 stamped each sample at its beginning,
so that the first columns were the same few bytes again and again."""


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
    layout = COLUMNS_LAYOUT_VERSION if in_columns(spec) else LAYOUT_VERSION
    identity = json.dumps({"layout": layout, **spec.identity()}, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(identity.encode())


def claim(spec: DatasetSpec, storage: Storage, plan: ShardPlan, *, generator: str) -> Claim:
    """Make the storage's root this dataset's, or take it up again. Raises TargetRefusedError and StorageError."""
    if isinstance(storage, Guarded):
        storage.check_target()
    root = local_root(innermost(storage))
    identity = dataset_id(spec)
    marker = _read(storage, MARKER)
    if marker is None:
        _require_empty(storage)
        _require_space(spec, plan, root, done_bytes=0, done_shards=0)
        return _fresh(spec, storage, root, identity, generator)
    data = parse_marker(marker, where=f"{storage.url}/{MARKER}")
    complete = exists(storage, MANIFEST)
    if data["id"] != identity:
        state = "another dataset" if complete else "a half-generated other dataset"
        name = data["spec"].get("name", "?")
        remedy = f"choose another directory, or remove it: iobench clean {storage.url}"
        raise TargetRefusedError(
            f"{storage.url} holds {state} ('{name}', seed {data['spec'].get('seed', '?')})",
            remedy=remedy,
        )
    created, generator = str(data.get("created", "")), str(data.get("generator", generator))
    if complete:
        return Claim(
            id=identity,
            created=created,
            generator=generator,
            finished={},
            leftovers=frozenset(),
            manifest=read_manifest(storage),
        )
    finished, leftovers = _take_up(spec, storage, plan)
    done = plan.unit_bytes()[list(finished)].sum() if finished else 0
    done_shards = sum(len(result.shard_size) for result in finished.values())
    _require_space(spec, plan, root, done_bytes=int(done), done_shards=done_shards)
    return Claim(
        id=identity, created=created, generator=generator, finished=finished, leftovers=leftovers
    )


def _fresh(
    spec: DatasetSpec, storage: Storage, root: Path | None, identity: str, generator: str
) -> Claim:
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    marker = {
        "id": identity,
        "created": created,
        "generator": generator,
        "made_root": root is not None and not root.exists(),
        "spec": spec.model_dump(mode="json"),
    }
    text = json.dumps(marker, indent=2).encode() + b"\n"
    with storage.create(
        MARKER, size_hint=len(text)
    ) as sink:  # exclusive: of two that race, one is refused
        sink.write(text)
    return Claim(
        id=identity, created=created, generator=generator, finished={}, leftovers=frozenset()
    )


def _take_up(
    spec: DatasetSpec, storage: Storage, plan: ShardPlan
) -> tuple[dict[int, UnitResult], frozenset[str]]:
    """Units that are finished by the journal and there by their sizes; everything else of the plan's names is removed."""
    present = {
        entry.key: entry.size
        for folder in (DATA, journal.JOURNAL)
        for entry in storage.list(folder)
    }
    finished: dict[int, UnitResult] = {}
    for unit in range(plan.unit_count):
        key = journal.entry_key(unit)
        shards = range(int(plan.units[unit]), int(plan.units[unit + 1]))
        keys = Keys(spec)
        names = [keys(shard) for shard in shards]
        entry = journal.parse(read_object(storage, key), plan) if key in present else None
        if (
            entry is not None
            and entry.unit == unit
            and [present.get(name) for name in names] == entry.shard_size.tolist()
        ):
            finished[unit] = entry
            continue
        for name in (*names, key):
            for leftover in (name, f"{name}.part"):
                if leftover in present:
                    storage.delete(leftover)
    top = {
        name
        for name in (SAMPLES, SHARDS, index_key(spec))
        if name is not None and exists(storage, name)
    }
    return finished, frozenset(top)


def _require_empty(storage: Storage) -> None:
    root = local_root(innermost(storage))
    # An interrupted start may have left the marker's own unfinished file: that much is iobench's.
    names = (
        (entry.key for entry in storage.list())
        if root is None
        else os.listdir(root)
        if root.is_dir()
        else ()
    )
    found = next((name for name in names if name != f"{MARKER}.part"), None)
    if found is not None:
        remedy = f"name a new or empty directory, e.g. {storage.url}/data"
        raise TargetRefusedError(
            f"{storage.url} is not empty (it holds '{found}') and is no iobench dataset",
            remedy=remedy,
        )


def check_nominal_space(spec: DatasetSpec, storage: Storage) -> None:
    """A dataset several times the free space is refused before its sizes are even drawn. Unknown free space passes."""
    root = local_root(innermost(storage))
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


def _require_space(
    spec: DatasetSpec, plan: ShardPlan, root: Path | None, *, done_bytes: int, done_shards: int
) -> None:
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
    need += (
        framing_bytes(FORMATS.load(spec.format))
        * plan.sample_count
        * (plan.sample_bytes - done_bytes)
        // plan.sample_bytes
    )
    need += plan.sample_count * 36 + (shards * free.f_frsize // 2 if one_each else 0)
    have = free.f_bavail * free.f_frsize
    remedy = "free some space, choose another target, or a smaller --size"
    if need > have:
        raise StorageError(
            f"{existing} has {format_bytes(have)} free, the dataset needs {format_bytes(need)}",
            remedy=remedy,
        )
    if free.f_files and shards > free.f_favail:
        raise StorageError(
            f"{existing} has {format_count(free.f_favail)} free inodes, the dataset needs {format_count(shards)}",
            remedy=remedy,
        )
    if free.f_flag & os.ST_RDONLY:
        raise StorageError(f"{existing} is read-only", remedy="choose another target")


def _read(storage: Storage, key: str) -> bytes | None:
    """An object's bytes, or None where there is none."""
    return read_object(storage, key) if exists(storage, key) else None
