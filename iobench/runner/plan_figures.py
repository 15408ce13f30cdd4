"""What ``iobench plan`` shows: the figures of a plan, and how long one read takes.

The reads that must be in flight follow from that time (Little's law).
"""

from __future__ import annotations

import math

from ..ask.capacity import sizing
from ..base.filesystem import free_bytes
from ..base.memory import total_bytes
from ..data.dataset import find_dataset, load_dataset_spec, manifest_options, read_by_blocks
from ..data.generator.plan import plan_shards
from ..judge.figures.in_flight import asked_reads_in_flight
from ..record.manifest import MANIFEST, Manifest
from ..record.plan import PlanFigures, ProbeFigures
from ..settings.dataset import DatasetSpec, share_of_columns
from ..settings.workload import Workload
from ..storage import open_storage
from ..storage.base import exists, innermost, local_root
from .agent import HostAgent
from .curve.reader import ThreadReader
from .curve.target import objects_of, requests
from .plan import Plan, check_asked, check_match, check_shards, steps_per_repetition


def describe_plan(
    workload: Workload,
    data: str | None,
    *,
    accelerators: int,
    repetitions: int,
    origin: str | None = None,
) -> PlanFigures:
    """The figures that ``iobench plan`` shows, for a dataset that exists or is yet to be made."""
    check_asked(workload, accelerators=accelerators, repetitions=repetitions)
    manifest: Manifest | None = None
    options = workload.storage_options()
    lies = None  # location where the manifest is, or would be
    if data is not None:
        lies = innermost(open_storage(data, options=manifest_options(data, options, origin)))
    root = None if lies is None else local_root(lies)
    is_file = root is not None and root.exists() and not root.is_dir()
    asked = origin is not None or is_file  # what can't be found is then refused, as by run
    if data is not None and lies is not None and (asked or exists(lies, MANIFEST)):
        # Not even O_DIRECT is probed, because that reads a block: planning touches nothing.
        manifest, place = find_dataset(data, options, origin=origin)
        check_match(workload, manifest, data)
        check_shards(manifest, open_storage(place, options=options))
    spec: DatasetSpec = manifest.spec if manifest else load_dataset_spec(workload.dataset)
    samples = manifest.sample_count if manifest else spec.samples
    stored = manifest.header.stored_bytes if manifest else spec.nominal_bytes
    per_sample = stored / samples
    read = per_sample * share_of_columns(spec, workload.reader.columns)
    memory = total_bytes()
    steps = steps_per_repetition(workload, samples=samples, accelerators=accelerators)
    step_time = workload.accelerator.step_time
    shards = manifest.shard_count if manifest else plan_shards(spec).shard_count
    free = None if root is None else free_bytes(root)
    minimum = None
    if memory is not None:
        minimum = sizing.mlperf_minimum_samples(
            batch_size=workload.batch_size,
            accelerators=accelerators,
            memory_bytes=memory,
            hosts=1,
            record_bytes=per_sample,
        )
    demand = _demanded(workload, accelerators, read)
    return PlanFigures(
        workload=workload.name,
        dataset=spec.name,
        data=data,
        generated=manifest is not None,
        format=spec.format,
        content=spec.content,
        codec=spec.codec,
        accelerators=accelerators,
        samples=samples,
        shards=shards,
        bytes=stored,
        sample_bytes_mean=per_sample,
        memory_bytes=memory,
        memory_multiple=stored / memory if memory else None,
        expected_cache_hit_rate=sizing.page_cache_hits(
            min(1.0, memory / (read * samples)), shuffle=workload.reader.shuffle
        )
        if memory
        else None,
        free_bytes=free,
        fits=None if free is None or manifest is not None else free > stored,
        batch_size=workload.batch_size,
        steps_per_repetition=steps,
        repetitions=repetitions,
        demanded_bytes_per_s=demand,
        demanded_samples_per_s=demand / read if demand else None,
        busy_s=steps * step_time * repetitions if step_time else None,
        read_bytes_total=round(
            min(steps * workload.batch_size * accelerators, samples * workload.epochs) * read
        )
        * repetitions,
        mlperf_minimum_samples=minimum,
        mlperf_minimum_bytes=round(minimum * per_sample) if minimum else None,
        workers=workload.loader.workers * accelerators,
        reads_in_flight=asked_reads_in_flight(
            workload,
            ranks=accelerators,
            sample_bytes=read,
            samples_per_shard=samples / shards,
            blocks=read_by_blocks(spec),
        ),
    )


def _demanded(workload: Workload, accelerators: int, sample_bytes: float) -> float | None:
    """Bytes/s that keep the accelerators busy; None if they have no step time."""
    step_time = workload.accelerator.step_time
    if not step_time:
        return None
    return sizing.demanded_bytes_per_s(
        batch_size=workload.batch_size,
        step_time_s=step_time,
        accelerators=accelerators,
        bytes_per_sample=sample_bytes,
    )


_READS, _MOST_S = 16, 60.0


def probe(plan: Plan) -> ProbeFigures:
    """Time single reads, as the first point of the curve of the plan's own requests does.

    ``concurrency`` is the least that each worker needs for the accelerators' demand, if a read
    takes no longer while others are in flight. It is None if the accelerators have no step time.
    It goes by the means of sizes and times: a few large requests have most of the bytes.
    Raises StorageError, and UsageError if there is nothing to read.
    """
    workload, storage = plan.workload, plan.storage
    places, _ = requests(plan, objects_of(plan))
    # The first read opens files and connections, and is not counted.
    chosen = places.take(1 + _READS, enough=1).places
    if not plan.uncached:
        HostAgent(storage).empty_cache(list({place.key for place in chosen}))
    reader = ThreadReader(storage, max_bytes=places.max_bytes, once=places.once)
    try:
        found = reader.read(chosen, in_flight=1, seconds=_MOST_S, most=0)
    finally:
        storage.close()
    latency = found.latency_p50_s or 0.0
    needed = None
    demand = _demanded(workload, plan.accelerators, plan.sample_bytes)
    if demand is not None:
        rate = demand / places.mean_bytes
        needed = sizing.reads_in_flight(reads_per_s=rate, latency_s=found.latency_mean_s or latency)
    workers = max(1, workload.loader.workers) * plan.accelerators
    return ProbeFigures(
        reads=max(1, found.reads - 1),
        request_bytes=places.median_bytes,
        request_bytes_mean=places.mean_bytes,
        latency_p50_s=latency,
        latency_mean_s=found.latency_mean_s or latency,
        latency_max_s=found.latency_max_s or 0.0,
        reads_in_flight=needed,
        concurrency=None if needed is None else math.ceil(needed / workers),
    )
