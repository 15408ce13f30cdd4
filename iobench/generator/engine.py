"""The run of a generation, from an empty directory to a manifest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .. import __version__
from ..errors import InterruptedRun
from ..registry import FORMATS
from ..schema.dataset import DatasetSpec
from ..schema.manifest import Manifest
from ..storage.base import Storage
from ..storage.locks.lock import Lease
from . import journal, target
from .listing import require_shards
from .manifest import drop_journal, publish
from .plan import ShardPlan, plan_shards
from .pool import default_workers, run_tasks
from .writer import UnitResult, UnitWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a generation is; bytes are the samples' own."""

    done_bytes: int
    total_bytes: int
    done_samples: int
    total_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateReport:
    """What ``generate`` did. ``written_bytes`` counts this call's shards as stored; 0 samples written: it was all there."""

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
    progress: Callable[[Progress], None] | None = None,
    break_lock: bool = False,
) -> GenerateReport:
    """Generate the dataset at the root of ``storage``, or finish it, or find it complete.

    The bytes depend on the spec alone. ``workers`` None is one for each core, 0 is this process.
    ``break_lock``: take over a place whose holder, on another host, gives no sign of life.

    Raises SpecError, TargetRefusedError (the place is not empty and not this dataset's, or another
    process works there), DatasetError (it is complete, but shards are missing), StorageError (with
    what was finished kept), WorkerError, InterruptedRun.
    """
    start = time.monotonic()
    target.check_nominal_space(
        spec, storage
    )  # before millions of sizes are drawn for what can't fit
    plan = plan_shards(spec)
    if package := FORMATS.open(spec.format).writes_with:
        FORMATS.require(spec.format, package)
    version = f"iobench {__version__}"
    with target.claimed(spec, storage, plan, generator=version, break_lock=break_lock) as (
        state,
        lease,
    ):
        if state.manifest is not None:
            drop_journal(storage)
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
        units = _write_units(spec, plan, storage, todo, count, progress, state.finished, lease)
        try:
            for result in units:
                results[result.unit] = result
        except KeyboardInterrupt:
            raise InterruptedRun(
                "generation stopped",
                remedy="what is finished is kept: run the same command again to go on",
            ) from None

        def check(manifest: Manifest) -> None:
            """Everything that the manifest lists is there, and nobody has taken the place."""
            require_shards(storage, spec, manifest.shards["size"])
            lease.confirm()

        lease.confirm()
        manifest = publish(spec, plan, results, storage, state, check=check)
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
    progress: Callable[[Progress], None] | None,
    finished: dict[int, UnitResult],
    lease: Lease,
) -> Iterator[UnitResult]:
    unit_bytes = plan.unit_bytes()
    done_bytes = int(sum(int(unit_bytes[unit]) for unit in finished))
    done_samples = sum(len(result.offset) for result in finished.values())

    def tell() -> None:
        if progress is not None:
            total, samples = plan.sample_bytes, plan.sample_count
            progress(
                Progress(
                    done_bytes=done_bytes,
                    total_bytes=total,
                    done_samples=done_samples,
                    total_samples=samples,
                )
            )

    def make() -> Callable[[int], UnitResult]:
        writer = UnitWriter(spec, plan, storage)

        def work(unit: int) -> UnitResult:
            result = writer.write(unit)
            journal.record(storage, result)
            return result

        return work

    tell()
    for result in run_tasks(todo, make, workers=workers, check=lease.check):
        done_bytes += int(unit_bytes[result.unit])
        done_samples += len(result.offset)
        tell()
        yield result
