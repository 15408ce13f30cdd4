"""Run a generation, from an empty directory to a manifest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from ... import __version__
from ...base.documents import MAX_DOCUMENT_BYTES
from ...base.errors import InterruptedRun, MissingObjectError, StorageError
from ...record.manifest import MARKER, Manifest, hash_bytes
from ...settings.dataset import DatasetSpec
from ...storage.base import Storage
from ...storage.catalog import innermost, read_object
from ...storage.locks.held import Confirmed, Held, Witness
from ...storage.locks.lock import Lease
from ..formats import FORMATS
from . import journal, target
from .manifest import drop_journal, publish
from .plan import ShardPlan, plan_shards
from .pool import RunTasks, default_workers, run_tasks
from .target import require_shards
from .writer import UnitResult, UnitWriter

log = logging.getLogger(__name__)

_VISIBLE_S = 65.0
"""How long another host waits for the marker: NFS clients keep a directory for up to 60 s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateReport:
    """What ``generate`` did.

    ``written_bytes`` counts the shards, as stored, that this call wrote. If ``written_samples`` is
    0, the dataset was already complete.
    """

    manifest: Manifest
    written_samples: int
    written_bytes: int
    wall_s: float
    workers: int


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
