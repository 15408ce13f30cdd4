"""Run a generation, from an empty directory to a manifest.

The manifest is written from the finished units. It comes last: its presence means "complete".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ... import __version__
from ...base.documents import MAX_DOCUMENT_BYTES, json_text
from ...base.errors import InterruptedRun, MissingObjectError, StorageError
from ...record.manifest import (
    MANIFEST,
    MARKER,
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
from ...storage.base import Folders, Storage, delete, innermost, local_root, read_object
from ...storage.locks.held import Confirmed, Held, Witness
from ...storage.locks.lock import Lease
from ..dataset import ResolvedSpec, index_file
from ..formats import FORMATS
from . import journal, target
from .plan import ShardPlan, plan_shards
from .pool import RunTasks, default_workers, run_tasks
from .target import TargetClaim, require_shards
from .writer import UnitResult, UnitWriter


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


log = logging.getLogger(__name__)

_VISIBLE_S = 65.0
"""How long another host waits for the marker: NFS clients keep a directory for up to 60 s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateReport:
    """What ``generate`` did.

    ``written_bytes`` counts the shards, as stored, that this call wrote. If ``complete``, the
    dataset was complete before it.
    """

    manifest: Manifest
    written_samples: int
    written_bytes: int
    wall_s: float
    workers: int
    complete: bool = False


def generate(
    spec: DatasetSpec,
    storage: Storage,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    break_lock: bool = False,
    run: RunTasks = run_tasks,
) -> GenerateReport:
    """Generate the dataset at the root of ``storage``, finish it, or find that it is complete.

    The bytes depend on the spec alone. ``workers`` None means one per core; 0 means this process.
    ``break_lock``: take over a lock whose holder is on another host and shows no sign of life.
    ``progress`` gets (bytes done, bytes in all), of samples before the codec.
    ``run``: who writes the units; every one is durable when its result is known.

    Raises SpecError, TargetRefusedError (the place is not empty and not this dataset's, or another
    process works there), DatasetError (it is complete, but shards are missing), StorageError
    (finished units are kept), WorkerError, InterruptedRun.
    """
    start = time.monotonic()
    # Check this before millions of sizes are drawn for a dataset that can't fit.
    target.check_nominal_space(spec, storage)
    plan = plan_shards(spec)
    if package := FORMATS.open(spec.format).writes_with:
        FORMATS.require(spec.format, package)
    version = f"iobench {__version__}"
    with target.claimed(spec, storage, plan, generator=version, break_lock=break_lock) as (
        state,
        lease,
    ):
        if state.manifest is not None:
            drop_journal(storage, Held(lease))
            return GenerateReport(
                manifest=state.manifest,
                written_samples=0,
                written_bytes=0,
                wall_s=time.monotonic() - start,
                workers=0,
                complete=True,
            )
        todo = [unit for unit in range(plan.unit_count) if unit not in state.finished]
        count = min(default_workers(len(todo)) if workers is None else workers, len(todo))
        results = dict(state.finished)
        log.info(
            "generating %s at %s: %d of %d units to do, by %d workers",
            *(spec.name, storage.url, len(todo), plan.unit_count, count),
        )
        units = _write_units(spec, plan, storage, todo, count, progress, state.finished, lease, run)
        try:
            for result in units:
                results[result.unit] = result
        except KeyboardInterrupt:
            raise InterruptedRun(
                "generation stopped",
                remedy="finished shards are kept: run the same command again to continue",
            ) from None

        def check(manifest: Manifest) -> None:
            """Check that every listed shard exists and that the lock is still held."""
            require_shards(storage, spec, manifest.shards["size"])
            lease.confirm()

        lease.confirm()
        manifest = publish(spec, plan, results, storage, state, check=check, held=Held(lease))
    log.info("generated %s at %s in %.3f s", spec.name, storage.url, time.monotonic() - start)
    fresh = [results[unit] for unit in todo]
    return GenerateReport(
        manifest=manifest,
        written_samples=sum(len(result.offset) for result in fresh),
        written_bytes=int(sum(int(result.shard_size.sum()) for result in fresh)),
        wall_s=time.monotonic() - start,
        workers=count,
    )


def _write_units(
    spec: DatasetSpec,
    plan: ShardPlan,
    storage: Storage,
    todo: list[int],
    workers: int,
    progress: Callable[[int, int], None] | None,
    finished: dict[int, UnitResult],
    lease: Lease,
    run: RunTasks,
) -> Iterator[UnitResult]:
    unit_bytes = plan.unit_bytes()
    done_bytes = int(sum(int(unit_bytes[unit]) for unit in finished))

    def tell() -> None:
        if progress is not None:
            progress(done_bytes, plan.sample_bytes)

    tell()
    make = _maker(spec, plan, storage, lease)
    for result in run(todo, make, workers=workers, check=Held(lease)):
        done_bytes += int(unit_bytes[result.unit])
        tell()
        yield result


def write_share(
    spec: DatasetSpec,
    storage: Storage,
    units: Sequence[int],
    *,
    marker: str,
    workers: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> Generator[UnitResult, None, None]:
    """Write some units of a dataset that another host generates, and yield what was written.

    ``marker``: the hash of the marker with which that host has claimed the place. ``check`` is
    called about once a second. Raises StorageError if this host does not see it, and as
    ``run_tasks``.
    """
    if not units:
        return
    _await_marker(storage, marker, check)
    count = default_workers(len(units)) if workers is None else min(workers, len(units))
    make = _maker(spec, plan_shards(spec), storage, Witness(storage, MARKER))
    yield from run_tasks(units, make, workers=count, check=check)


def marker_hash(storage: Storage) -> str:
    """A hash of the marker, which is another one for each claim; '' without a marker."""
    try:
        text = read_object(innermost(storage), MARKER, max_bytes=MAX_DOCUMENT_BYTES)
    except MissingObjectError:
        return ""
    return hash_bytes(text)


def _await_marker(storage: Storage, marker: str, check: Callable[[], None]) -> None:
    """Wait until the marker is seen here: an NFS client may look for new files each minute only."""
    deadline = time.monotonic() + _VISIBLE_S
    while marker_hash(storage) != marker:
        if time.monotonic() > deadline:
            raise StorageError(
                f"{storage.url} is another place than on the first host, which has begun the "
                "dataset there: its marker is not seen here",
                remedy="name a directory or URL that all hosts share",
            )
        check()
        time.sleep(0.2)


def _maker(
    spec: DatasetSpec, plan: ShardPlan, storage: Storage, lease: Confirmed
) -> Callable[[], Callable[[int], UnitResult]]:
    """What makes, in each worker, the function that writes a unit and records it."""

    def make() -> Callable[[int], UnitResult]:
        held = Held(lease)
        writer = UnitWriter(spec, plan, storage, held)

        def work(unit: int) -> UnitResult:
            result = writer.write(unit)
            held()
            journal.record(storage, result)
            return result

        return work

    return make
