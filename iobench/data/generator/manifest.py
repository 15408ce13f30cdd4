"""Write the manifest from the finished units. It comes last: its presence means "complete"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...base.documents import json_text
from ...base.errors import StorageError
from ...record.manifest import (
    MANIFEST,
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    Array,
    Header,
    Manifest,
    hash_bytes,
    write_table,
)
from ...settings.dataset import DatasetSpec
from ...storage.base import Folders, Storage
from ...storage.catalog import innermost, local_root
from ...storage.locks.held import delete
from ..dataset import ResolvedSpec, index_file
from . import journal
from .plan import ShardPlan
from .target import TargetClaim
from .writer import UnitResult


def publish(
    spec: DatasetSpec,
    plan: ShardPlan,
    results: dict[int, UnitResult],
    storage: Storage,
    claim: TargetClaim,
    *,
    check: Callable[[Manifest], None],
    held: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write the tables, run ``check``, write ``manifest.json``, remove the journal.

    ``held`` is called before each deletion, and raises where the place is another process's now.
    An exception of ``check`` leaves the dataset without a manifest. Raises StorageError.
    """
    manifest = assemble(spec, plan, results, claim)
    for name, columns, arrays in (
        (SAMPLES, SAMPLE_COLUMNS, manifest.samples),
        (SHARDS, SHARD_COLUMNS, manifest.shards),
    ):
        if name in claim.leftovers:
            delete(storage, name, held)
        _create(storage, name, write_table(columns, arrays))
    _publish_index(manifest, storage, claim, held)
    check(manifest)
    _create(storage, MANIFEST, json_text(manifest.header).encode() + b"\n")
    drop_journal(storage, held)
    return manifest


def _publish_index(
    manifest: Manifest, storage: Storage, claim: TargetClaim, held: Callable[[], None]
) -> None:
    """Write the index file that other readers of the format need next to the shards, if any."""
    found = index_file(manifest)
    if found is None:
        return
    key, contents = found
    if key in claim.leftovers:
        delete(storage, key, held)
    _create(storage, key, contents)


def assemble(
    spec: DatasetSpec, plan: ShardPlan, results: dict[int, UnitResult], claim: TargetClaim
) -> Manifest:
    """Build the manifest in memory; every unit must be in ``results``."""
    ordered = [results[unit] for unit in range(plan.unit_count)]

    def joined(name: str) -> Array:
        array: Array = np.concatenate([getattr(result, name) for result in ordered])
        return array

    per_shard = np.diff(plan.first)
    samples: dict[str, Array] = {
        "shard": np.repeat(np.arange(plan.shard_count, dtype=np.uint32), per_shard),
        "offset": joined("offset"),
        "stored": joined("stored"),
        "size": plan.sizes,
        "xxh3": joined("xxh3"),
    }
    shards: dict[str, Array] = {
        "size": joined("shard_size"),
        "first": plan.first[:-1].copy(),
        "samples": per_shard,
        "xxh3": joined("shard_xxh3"),
    }
    for array in (*samples.values(), *shards.values()):
        array.flags.writeable = False
    header = Header(
        generator=claim.generator,
        id=claim.id,
        created=claim.created,
        spec=spec,
        samples=plan.sample_count,
        shards=plan.shard_count,
        stored_bytes=int(shards["size"].sum()),
        sample_bytes=plan.sample_bytes,
        tables={
            SAMPLES: hash_bytes(write_table(SAMPLE_COLUMNS, samples)),
            SHARDS: hash_bytes(write_table(SHARD_COLUMNS, shards)),
        },
    )
    return Manifest(header, samples, shards, packing=ResolvedSpec.of(spec).packing)


def drop_journal(storage: Storage, held: Callable[[], None]) -> None:
    """Remove the journal of a complete dataset, also one that a killed ``generate`` left.

    Errors are ignored, because a journal that stays does no harm: the next ``generate`` tries
    again, or ``clean`` removes it.
    """
    try:
        for entry in list(storage.list(journal.JOURNAL)):
            if journal.is_entry(entry.key):
                delete(storage, entry.key, held)
        folder = local_root(innermost(storage))
        inner = innermost(storage)
        if folder is not None:
            (folder / journal.JOURNAL).rmdir()
        elif isinstance(inner, Folders):
            inner.remove_empty(lambda name: name == journal.JOURNAL, journal.JOURNAL)
    except (StorageError, OSError):
        pass


def _create(storage: Storage, name: str, data: bytes) -> None:
    with storage.create(name, size_hint=len(data)) as sink:
        sink.write(data)
