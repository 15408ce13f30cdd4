"""The place a dataset is generated into: empty, begun earlier, complete, or refused.

What a place holds of iobench's: the marker that names its dataset, its shards, and other names.

Whether a name belongs to the dataset is computed from the name, without a table.

A marker may claim any number of samples, so nothing here may grow with that number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import xxhash

from ...base.documents import MAX_DOCUMENT_BYTES, parse_json
from ...base.errors import (
    DatasetError,
    MissingObjectError,
    NoRoomError,
    StorageError,
    TargetRefusedError,
)
from ...base.filesystem import free_bytes, nearest_existing, require_room
from ...base.text import quoted
from ...base.units import format_count, utc_now
from ...load.libraries import LOADERS
from ...record.manifest import (
    ENGINES,
    LAYOUTS,
    MANIFEST,
    MARKER,
    SAMPLES,
    SHARDS,
    Array,
    Manifest,
    layout_files,
    layout_lock,
    layout_names,
    unfinished_layout,
)
from ...record.packing import DATA, Keys
from ...settings.dataset import DatasetSpec, in_columns
from ...storage.base import (
    Guarded,
    Storage,
    address_of,
    delete,
    exists,
    innermost,
    local_root,
    read_object,
)
from ...storage.locks.held import Held
from ...storage.locks.lock import Lease, exclusive, shared
from ...storage.locks.objects import READERS, is_lock_name
from ...storage.markers import foreign_name, held_as_seen, put_marker, root_is_missing
from ..dataset import ResolvedSpec, read_manifest
from . import journal
from .journal import JOURNAL, is_entry
from .plan import ShardNumbers, ShardPlan
from .writer import UnitResult


def read_marker(storage: Storage) -> dict[str, Any] | None:
    """Read the marker; None if there is none, or if a symbolic link has its name.

    Raises DatasetError for a damaged marker; StorageError, also if it is no regular file.
    """
    root = local_root(storage)
    if root is not None and (root / MARKER).is_symlink():
        return None
    try:
        text = read_object(storage, MARKER, max_bytes=MAX_DOCUMENT_BYTES)
    except MissingObjectError:
        return None
    return parse_marker(text, where=f"{storage.url}/{MARKER}")


def parse_marker(text: bytes, *, where: str) -> dict[str, Any]:
    """Parse a marker's bytes. Raises DatasetError if they are damaged."""
    try:
        data = parse_json(text)
        if (
            isinstance(data, dict)
            and isinstance(data["id"], str)
            and isinstance(data["spec"], dict)
        ):
            return data
    except (ValueError, KeyError):
        pass
    raise DatasetError(
        f"{where} is damaged", remedy="remove the directory by hand, or generate elsewhere"
    )


_PART = ".part"  # suffix that a storage gives a file which is not complete yet


class Owned:
    """The names of one dataset. ``root``: its directory, which may contain layouts, or None."""

    def __init__(self, spec: DatasetSpec, root: Path | None) -> None:
        """Raises SpecError and UnknownNameError for a spec that ``generate`` would have refused."""
        packing = ResolvedSpec.of(spec).packing
        self._keys = Keys(packing)
        self._shards = ShardNumbers(spec)
        index = packing.index_key
        self._files = {MANIFEST, SAMPLES, SHARDS, MARKER, *([index] if index else [])}
        self._folders = {DATA, JOURNAL, LAYOUTS, READERS, f"{LAYOUTS}/{READERS}"}
        self._unfinished: dict[str, Callable[[str], bool]] = {}
        if root is not None:
            self._add_layouts(root / LAYOUTS)

    def _add_layouts(self, folder: Path) -> None:
        for kind in (*LOADERS.entries(), *ENGINES):
            names = {f"{LAYOUTS}/{kind}/{name}" for name in layout_files(folder / kind)}
            self._files |= names | {f"{LAYOUTS}/{layout_lock(kind)}"}
            self._folders |= {f"{LAYOUTS}/{kind}", f"{LAYOUTS}/{kind}{_PART}"}
            for name in names:
                self._folders |= {str(above) for above in PurePosixPath(name).parents} - {"."}
            if patterns := unfinished_layout(folder / f"{kind}{_PART}"):
                self._unfinished[f"{LAYOUTS}/{kind}{_PART}/"] = layout_names(patterns)

    def file(self, name: str) -> bool:
        """Whether iobench made this file, complete or not."""
        if is_lock_name(name) or is_lock_name(name.removeprefix(f"{LAYOUTS}/")):
            return True
        whole = name.removesuffix(_PART)
        if whole in self._files or is_entry(name):
            return True
        shard = self._keys.number(whole)
        return (shard is not None and shard in self._shards) or self._in_unfinished(name)

    def _in_unfinished(self, name: str) -> bool:
        return any(
            name.startswith(folder) and is_ours(name.removeprefix(folder))
            for folder, is_ours in self._unfinished.items()
        )

    def folder(self, name: str) -> bool:
        """Whether iobench made this folder."""
        if name in self._folders:
            return True
        first = self._keys.folder(name)
        return first is not None and first in self._shards


def first_difference(storage: Storage, spec: DatasetSpec, sizes: Array) -> str:
    """Describe the first shard that is missing or has another size; '' if all are right.

    ``sizes``: int64 [shards], bytes. Needs one byte of memory for each shard. Raises StorageError.
    """
    keys = ResolvedSpec.of(spec).keys
    right = np.zeros(len(sizes), np.bool_)
    other: tuple[int, int] | None = None
    for entry in storage.list(DATA):
        shard = keys.number(entry.key)
        if shard is None or shard >= len(sizes):
            continue
        if entry.size == sizes[shard]:
            right[shard] = True
        elif other is None or shard < other[0]:
            other = (shard, entry.size)
    wrong = int(np.argmin(right)) if not right.all() else None
    if wrong is None:
        return ""
    count = len(right) - int(np.count_nonzero(right))
    more = f" ({count} shards of {len(right)} are wrong)" if count > 1 else ""
    if other is not None and other[0] == wrong:
        return f"{keys(wrong)} has {other[1]} bytes, not {int(sizes[wrong])}{more}"
    return f"{keys(wrong)} is missing{more}"


def require_shards(storage: Storage, spec: DatasetSpec, sizes: Array) -> None:
    """Raise StorageError if a shard that was just written is missing or has another size."""
    if wrong := first_difference(storage, spec, sizes):
        raise StorageError(
            f"the dataset at {storage.url} is not complete after writing it: {wrong}",
            remedy="find out what changes files there, and run the same command again",
        )


LAYOUT_VERSION = 1
"""Part of a dataset's identity. Increase it when the same spec comes to mean other bytes."""

COLUMNS_LAYOUT_VERSION = 2
"""The version for samples that are cut into columns. Version 1 stamped each sample at its
beginning, so that the first columns of all samples held the same few bytes.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetClaim:
    """The state of a place that belongs to this dataset.

    If the dataset is complete, ``manifest`` is set; else ``finished`` holds the finished units, and
    ``leftovers`` the names of tables and index files that an interrupted run wrote.
    """

    id: str
    created: str
    generator: str
    finished: dict[int, UnitResult]
    leftovers: frozenset[str]
    manifest: Manifest | None = None


def dataset_id(spec: DatasetSpec) -> str:
    """The dataset's id: 32 hex digits that are equal for equal datasets."""
    layout = COLUMNS_LAYOUT_VERSION if in_columns(spec) else LAYOUT_VERSION
    identity = json.dumps({"layout": layout, **spec.identity()}, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(identity.encode())


@contextmanager
def claimed(
    spec: DatasetSpec,
    storage: Storage,
    plan: ShardPlan,
    *,
    generator: str,
    break_lock: bool = False,
) -> Iterator[tuple[TargetClaim, Lease]]:
    """Claim the storage's root for this dataset, or continue there, and hold its lock.

    A complete dataset is locked in shared mode, like a reader; an incomplete one exclusively.
    Raises TargetRefusedError (also TargetHeldError: another process works there), DatasetError if a
    complete dataset lacks shards, StorageError.
    """
    if isinstance(storage, Guarded):
        storage.check_target()
    makes_root = root_is_missing(storage)

    def attempt(stack: ExitStack) -> tuple[TargetClaim, Lease] | None:
        whole = _mark(spec, storage, plan, generator, makes_root)
        hold = shared if whole else exclusive
        lease = stack.enter_context(hold(storage, MARKER, verb="generate", break_dead=break_lock))
        found = _claim(spec, storage, plan, generator, makes_root, whole=whole, held=Held(lease))
        return None if found is None else (found, lease)

    with held_as_seen(storage, attempt) as held:
        yield held


def _mark(
    spec: DatasetSpec, storage: Storage, plan: ShardPlan, generator: str, makes_root: bool
) -> bool:
    """Write the marker if it is what is locked; return whether the dataset is complete.

    If the lock is an object of its own, the marker is written later, by the holder of the lock: on
    some storages two concurrent writers of one object may both fail.
    """
    if not exists(storage, MARKER):
        _require_empty(storage)
        if local_root(innermost(storage)) is None:
            return False
        _begin(spec, storage, plan, generator, makes_root)
    return _read_marker(spec, storage)[1]


def _begin(
    spec: DatasetSpec, storage: Storage, plan: ShardPlan, generator: str, makes_root: bool
) -> None:
    """Write the marker into an empty place, unless another process does so at the same time."""
    _require_empty(storage)
    root = local_root(innermost(storage))
    _require_space(spec, plan, root, done_bytes=0, done_shards=0)
    marker = {
        "id": dataset_id(spec),
        "created": utc_now(),
        "generator": generator,
        "made_root": makes_root,
        "spec": spec.model_dump(mode="json"),
    }
    text = json.dumps(marker, indent=2).encode() + b"\n"
    put_marker(storage, MARKER, text, made_root=root if makes_root else None)


def _read_marker(spec: DatasetSpec, storage: Storage) -> tuple[dict[str, Any], bool]:
    """Return the marker's contents, and whether the dataset is complete.

    Raises TargetRefusedError if it belongs to another dataset, MissingObjectError if it is gone.
    """
    data = parse_marker(
        read_object(storage, MARKER, max_bytes=MAX_DOCUMENT_BYTES), where=f"{storage.url}/{MARKER}"
    )
    complete = exists(storage, MANIFEST)
    if data["id"] != dataset_id(spec):
        state = "another dataset" if complete else "another, half generated dataset"
        name, seed = data["spec"].get("name", "?"), data["spec"].get("seed", "?")
        raise TargetRefusedError(
            f"{storage.url} holds {state} ('{name}', seed {seed})",
            remedy="choose another directory, or remove it: "
            f"iobench clean {quoted(address_of(storage))}",
        )
    return data, complete


def _claim(
    spec: DatasetSpec,
    storage: Storage,
    plan: ShardPlan,
    generator: str,
    makes_root: bool,
    *,
    whole: bool,
    held: Held,
) -> TargetClaim | None:
    """Read the state of the place under the lock; None if the other kind of lock is needed.

    The other kind is needed if the dataset has become complete, or incomplete, in the meantime.
    """
    if not exists(storage, MARKER):
        # The lock is an object of its own, and there is no marker (yet).
        _begin(spec, storage, plan, generator, makes_root)
    data, complete = _read_marker(spec, storage)
    if complete != whole:
        return None
    claim = TargetClaim(
        id=data["id"],
        created=str(data.get("created", "")),
        generator=str(data.get("generator", generator)),
        finished={},
        leftovers=frozenset(),
    )
    if complete:
        manifest = read_manifest(storage)
        if wrong := first_difference(storage, spec, manifest.shards["size"]):
            raise DatasetError(
                f"by its manifest, the dataset at {storage.url} is complete, but {wrong}",
                remedy=f"remove it (iobench clean {quoted(address_of(storage))}), and generate it "
                "again",
            )
        return replace(claim, manifest=manifest)
    finished, leftovers = _take_up(spec, storage, plan, held)
    done = plan.unit_bytes()[list(finished)].sum() if finished else 0
    done_shards = sum(len(result.shard_size) for result in finished.values())
    root = local_root(innermost(storage))
    _require_space(spec, plan, root, done_bytes=int(done), done_shards=done_shards)
    return replace(claim, finished=finished, leftovers=leftovers)


def _take_up(
    spec: DatasetSpec, storage: Storage, plan: ShardPlan, held: Held
) -> tuple[dict[int, UnitResult], frozenset[str]]:
    """Find the finished units, and remove all other shards of the plan and their journal entries.

    A unit is finished if the journal has an entry of it and its shards have the recorded sizes.
    Returns (results by unit, names of existing tables and index files).
    """
    present = {
        entry.key: entry.size
        for folder in (DATA, journal.JOURNAL)
        for entry in storage.list(folder)
    }
    finished: dict[int, UnitResult] = {}
    for unit in range(plan.unit_count):
        key = journal.entry_key(unit)
        shards = range(int(plan.units[unit]), int(plan.units[unit + 1]))
        keys = ResolvedSpec.of(spec).keys
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
                    delete(storage, leftover, held)
    top = {
        name
        for name in (SAMPLES, SHARDS, ResolvedSpec.of(spec).packing.index_key)
        if name is not None and exists(storage, name)
    }
    return finished, frozenset(top)


def _require_empty(storage: Storage) -> None:
    """Raise TargetRefusedError if the place holds a file that no start of ``generate`` made."""
    found = foreign_name(storage, MARKER, local_root(innermost(storage)))
    if found is not None:
        raise TargetRefusedError(
            f"{storage.url} is not empty (it holds '{found}') and is not an iobench dataset",
            remedy=f"name a new or empty directory, e.g. {storage.url}/data",
        )


def check_nominal_space(spec: DatasetSpec, storage: Storage) -> None:
    """Refuse a dataset of more than twice the free space, before its sizes are even drawn.

    Passes if the free space is unknown (no local root). Raises NoRoomError.
    """
    root = local_root(innermost(storage))
    if root is None or (root / MARKER).exists():
        return
    need = spec.nominal_bytes / spec.compress_ratio
    if need > 2 * free_bytes(root):
        require_room(root, need, _NEEDS, _LESS)


_NEEDS = "the dataset needs"
_LESS = "free some space, choose another target, or a smaller --size"


def _require_space(
    spec: DatasetSpec, plan: ShardPlan, root: Path | None, *, done_bytes: int, done_shards: int
) -> None:
    """Check that the remaining data fits, before the first byte is written.

    Counts bytes and inodes. Passes if the free space is unknown (no local root). Raises
    NoRoomError, and StorageError for a file system that is read-only.
    """
    if root is None:
        return
    existing = nearest_existing(root)
    free = os.statvfs(existing)
    dataset = ResolvedSpec.of(spec)
    shards = plan.shard_count - done_shards
    need = plan.sample_bytes - done_bytes
    if not dataset.codec.plain and spec.compress_ratio > 1:
        need = int(need / spec.compress_ratio)
    need += (
        dataset.format.framing_bytes
        * plan.sample_count
        * (plan.sample_bytes - done_bytes)
        // plan.sample_bytes
    )
    need += plan.sample_count * 36 + (
        shards * free.f_frsize // 2 if dataset.format.one_sample_per_shard else 0
    )
    require_room(existing, need, _NEEDS, _LESS)
    if free.f_files and shards > free.f_favail:
        raise NoRoomError(
            f"{existing} has {format_count(free.f_favail)} free inodes, the dataset needs "
            f"{format_count(shards)}",
            remedy=_LESS,
        )
    if free.f_flag & os.ST_RDONLY:
        raise StorageError(f"{existing} is read-only", remedy="choose another target")
