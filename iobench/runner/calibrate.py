"""Each stage's ceiling, measured alone: raw storage by fio, fetch, prep, harness, accelerator.

The method is that of DS-Analyzer's differential runs (Mohan et al., VLDB 2021).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..analyse.verdict.rebuild import ceiling_from_events
from ..analyse.verdict.rules_cache import MAX_CACHED, cached_share
from ..errors import StorageError, UsageError
from ..load import make_reader
from ..load.null import AnyReader, NullReader, delivered_bytes
from ..load.order import Indices
from ..measure import fio
from ..measure.timeline import Columns
from ..schema.training import Ceiling, CeilingDetails, Epoch, MeasuredBy, Repetition
from ..schema.workload import OWN_LOADER, AcceleratorSpec, LoaderSpec
from ..storage.base import Files
from ..storage.simulated.memory import MemoryStorage
from ..units import counted, format_percent
from .cache import prepare_cache, run_cached_phase
from .conductor import Tick, run_phase
from .phase import Outcome, Phase
from .plan import Plan
from .third_party import COPIES, enough_shards, in_memory

_NULL = AcceleratorSpec(kind="null", name="null")
_COPY_BYTES = 512 << 20
"""The most bytes of the dataset that are copied to memory for the prep ceiling.

At least the shards of one batch are copied, however large they are.
"""

_MORE_IN_FLIGHT, _MAX_IN_FLIGHT = 4, 256

Parts = list[tuple[str, int, int, Columns]]


@dataclass
class Calibration:
    """Ceilings by name, the events that they were computed from, and facts about the loader."""

    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    parts: Parts = field(default_factory=list)
    loader: dict[str, object] = field(default_factory=dict)


def measure_raw(plan: Plan, run_dir: Path, *, seconds: float) -> Ceiling:
    """Measure fio on the dataset's own files, with the reader's block size and concurrency.

    fio uses O_DIRECT if the reader does.
    """
    if not isinstance(plan.storage, Files):
        return Ceiling(not_measured="fio reads local files only")
    if not fio.available():
        return Ceiling(not_measured=f"fio is not installed; install it with: {fio.install_hint()}")
    workers = max(1, plan.workload.loader.workers) * plan.accelerators
    if not plan.direct:
        prepare_cache(plan, 0)
    sizes = plan.manifest.shards["size"].tolist()
    try:
        files = [
            (plan.storage.local_path(key), size) for key, size in zip(plan.keys, sizes, strict=True)
        ]
        result = fio.raw_read(
            files,
            block_size=plan.workload.reader.block_size,
            concurrency=workers * plan.workload.reader.concurrency,
            direct=plan.direct,
            seconds=seconds,
            run_dir=run_dir,
            sequential=plan.sequential,
        )
    except StorageError as error:
        return Ceiling(not_measured=str(error))
    return Ceiling(
        samples_per_s=result.bytes_per_s / plan.manifest.mean_stored_bytes,
        bytes_per_s=result.bytes_per_s,
        cpu_s_per_gb=result.cpu_s_per_gb,
        how=result.how,
        by="fio",
        details=CeilingDetails(
            latency_p50_s=result.latency_p50_s,
            latency_p99_s=result.latency_p99_s,
            alternatives=result.alternatives,
            command=result.command,
        ),
    )


def measure_fetch(
    plan: Plan, calibration: Calibration, *, seconds: float, tick: Tick | None = None
) -> None:
    """Measure the reader over cold storage: no decompression, no decoding, no accelerator."""
    loading = plan.workload.loader.model_copy(update={"kind": OWN_LOADER, "transport": "null"})
    reader = make_reader(plan.manifest, plan.storage, plan.workload.reader, bytes_only=True)
    # Buffered reads may read each byte only once: a second pass would measure the page cache.
    epochs = 0 if plan.uncached else 1
    phase = _phase(plan, "fetch", reader, loading, seconds=seconds, epochs=epochs)
    outcome = run_cached_phase(plan, phase, tick=tick)
    how = (
        f"reader over {plan.workload.cache} storage, bytes only, {_workers(plan)}, "
        f"{'O_DIRECT' if plan.direct else 'buffered'}"
    )
    _keep(calibration, "fetch", outcome, how, by="reader", workers=loading.workers)
    _keep_cold(plan, calibration.ceilings["fetch"], outcome)
    _rate_raw(calibration, outcome)


def _rate_raw(calibration: Calibration, outcome: Outcome) -> None:
    """Turn fio's bytes/s into samples/s, by the bytes that this reader fetches for a sample.

    It may fetch whole row groups, or only a few columns.
    """
    raw, events = calibration.ceilings.get("storage_raw"), joined(outcome)
    read, samples = int(events["bytes_read"].sum()), int(events["samples"].sum())
    if raw is not None and raw.bytes_per_s and read and samples:
        raw.samples_per_s = raw.bytes_per_s * samples / read
        raw.details.read_bytes_per_sample = read / samples


def measure_parallel(
    plan: Plan, calibration: Calibration, *, seconds: float, tick: Tick | None = None
) -> None:
    """Measure the raw ceiling of a storage that fio can't read.

    The same reader is used, with several times as many requests in flight.
    """
    reading = plan.workload.reader
    more = min(_MAX_IN_FLIGHT, reading.concurrency * _MORE_IN_FLIGHT)
    reading = reading.model_copy(update={"concurrency": more})
    loading = plan.workload.loader.model_copy(update={"kind": OWN_LOADER, "transport": "null"})
    reader = make_reader(plan.manifest, plan.storage, reading, bytes_only=True)
    phase = _phase(
        plan, "storage_raw", reader, loading, seconds=seconds, epochs=0 if plan.uncached else 1
    )
    outcome = run_cached_phase(plan, phase, tick=tick)
    _keep(
        calibration,
        "storage_raw",
        outcome,
        f"the reader with {more} reads in flight in each worker",
        by="reader",
        workers=loading.workers,
    )
    calibration.ceilings["storage_raw"].details.concurrency = more
    _keep_cold(plan, calibration.ceilings["storage_raw"], outcome)


def measure_prep(
    plan: Plan, calibration: Calibration, *, seconds: float, tick: Tick | None = None
) -> None:
    """Measure the reader over a copy in memory: decompress, decode, check, collate."""
    shards = _subset(plan)
    with ThreadPoolExecutor(COPIES) as threads:
        copies = list(threads.map(lambda shard: _copy(plan, shard), shards.tolist()))
    objects = dict(zip(map(plan.manifest.key, shards.tolist()), copies, strict=True))
    reader = make_reader(plan.manifest, MemoryStorage(objects=objects), plan.workload.reader)
    loading = plan.workload.loader.model_copy(update={"kind": OWN_LOADER, "transport": "null"})
    phase = _phase(plan, "prep", reader, loading, seconds=seconds, shards=shards)
    copied = sum(len(data) for data in objects.values())
    how = f"reader over a copy of {copied >> 20} MiB in memory, {_workers(plan)}"
    _keep(
        calibration, "prep", run_phase(phase, tick=tick), how, by="reader", workers=loading.workers
    )


def measure_library(
    plan: Plan, calibration: Calibration, *, seconds: float, tick: Tick | None = None
) -> None:
    """Measure a library's loader over files in memory: decode, collate, hand over batches.

    These steps can't be separated from outside, so the rate is recorded as ``prep``. iobench's own
    loader over the same files shows what rate is possible.
    """
    kind, loading = plan.workload.loader.kind, plan.workload.loader
    why = f"the loader '{kind}' can't run without reading, so its cost is part of prep"
    calibration.ceilings["harness"] = Ceiling(not_measured=why)
    try:
        with in_memory(plan, enough_shards(plan, _subset(plan))) as (manifest, storage):
            for name, each in (
                ("prep", loading),
                ("prep-own", loading.model_copy(update={"kind": OWN_LOADER})),
            ):
                reader = make_reader(
                    manifest, storage, plan.workload.reader.model_copy(update={"direct": False})
                )
                phase = replace(_phase(plan, name, reader, each, seconds=seconds), share=False)
                how = (
                    f"loader '{each.kind}' over {manifest.header.stored_bytes >> 20} MiB of files "
                    f"in memory, {_workers(plan)}"
                )
                _keep(
                    calibration,
                    name,
                    run_phase(phase, tick=tick),
                    how,
                    by="loader",
                    workers=loading.workers,
                )
        own = calibration.ceilings.pop("prep-own")
        details = calibration.ceilings["prep"].details
        details.own_samples_per_s = own.samples_per_s
        details.own_cpu_s_per_gb = own.cpu_s_per_gb
    except UsageError as error:
        calibration.ceilings["prep"] = Ceiling(not_measured=str(error))


def measure_harness(
    plan: Plan, calibration: Calibration, *, seconds: float, tick: Tick | None = None
) -> None:
    """Measure the loader over a reader that delivers at once: only workers and transport."""
    reader = NullReader(
        plan.manifest, delivered_bytes(plan.manifest, plan.storage, plan.workload.reader)
    )
    loading = plan.workload.loader
    outcome = run_phase(_phase(plan, "harness", reader, loading, seconds=seconds), tick=tick)
    how = f"loader over null storage, transport {loading.transport}, {_workers(plan)}"
    _keep(calibration, "harness", outcome, how, by="loader", workers=loading.workers)
    calibration.loader = outcome.loader
    if loading.transport == "ring" and loading.workers:
        # The rate of the same loader with torch's default way of handing batches over.
        default = loading.model_copy(update={"transport": "tensor", "slot_size": None})
        taxed = Calibration()
        outcome = run_phase(
            _phase(plan, "harness-tensor", reader, default, seconds=seconds / 2), tick=tick
        )
        _keep(taxed, "harness-tensor", outcome, "", by="loader", workers=loading.workers)
        calibration.parts += taxed.parts
        tensor = taxed.ceilings["harness-tensor"].samples_per_s
        calibration.ceilings["harness"].details.tensor_samples_per_s = tensor


def measure_accelerator(plan: Plan, calibration: Calibration, *, seconds: float) -> None:
    """Measure only the step, on a batch that is already in place."""
    if plan.workload.accelerator.kind == "null":
        calibration.ceilings["accelerator"] = Ceiling(
            not_measured="a null accelerator has no limit"
        )
        return
    phase = _phase(plan, "accelerator", None, plan.workload.loader, seconds=seconds)
    phase = Phase(
        **{
            **phase.__dict__,
            "accelerator": plan.workload.accelerator,
            "max_steps": 200,
            "epochs": 1,
        }
    )
    outcome = run_phase(phase)
    _keep(
        calibration,
        "accelerator",
        outcome,
        f"{plan.accelerators} x {plan.workload.accelerator.name}, step alone",
        by="accelerator",
    )
    ceiling = calibration.ceilings["accelerator"]
    if ceiling.samples_per_s is not None:
        ceiling.bytes_per_s = ceiling.samples_per_s * plan.manifest.mean_stored_bytes


def _phase(
    plan: Plan,
    name: str,
    reader: AnyReader | None,
    loading: LoaderSpec,
    *,
    seconds: float,
    epochs: int = 0,
    shards: Indices | None = None,
) -> Phase:
    return Phase(
        name=f"calibrate.{name}",
        reader=reader,
        reading=plan.workload.reader,
        loading=loading,
        accelerator=_NULL,
        accelerators=plan.accelerators,
        batch_size=plan.workload.batch_size,
        seed=plan.seed + 104_729,  # so that no repetition uses the same order
        epochs=epochs,
        limit_s=seconds,
        whole_rounds=True,
        shards=shards,
        share=shards is None,
    )


def _keep(
    calibration: Calibration,
    name: str,
    outcome: Outcome,
    how: str,
    *,
    by: MeasuredBy,
    workers: int = 1,
) -> None:
    calibration.parts += [
        (f"calibrate.{name}", 0, rank, columns) for rank, columns in sorted(outcome.columns.items())
    ]
    events = joined(outcome)
    startups = [epoch.startup_s for epoch in outcome.epochs]
    context = Repetition(seed=0, accelerators=len(outcome.columns), epochs=outcome.epochs)
    samples_per_s, bytes_per_s = ceiling_from_events(events, context, round_steps=max(1, workers))
    stored = float(events["sample_bytes"].sum())
    calibration.ceilings[name] = Ceiling(
        samples_per_s=samples_per_s,
        bytes_per_s=bytes_per_s,
        cpu_s_per_gb=outcome.cpu_s / (stored / 1e9) if stored else None,
        how=how,
        by=by,
        not_measured="" if samples_per_s else "no batch was delivered",
        details=CeilingDetails(
            startup_s=startups, cpu_s=outcome.cpu_s, round_steps=max(1, workers)
        ),
    )


def _keep_cold(plan: Plan, ceiling: Ceiling, outcome: Outcome) -> None:
    """Record what the storage delivered while a cold ceiling was measured.

    If a cache served a part of it, ``how`` says so.
    """
    if plan.workload.cache != "cold" or not outcome.epochs:
        return
    counts = [epoch.bytes_fetched for epoch in outcome.epochs]
    known = [count for count in counts if count is not None]
    fetched = sum(known) if len(known) == len(counts) else None
    events = joined(outcome)
    delivered = int(events["sample_bytes"].sum())
    ceiling.cold = Epoch(
        epoch=0,
        residency_before=outcome.epochs[0].residency_before,
        residency_how=outcome.epochs[0].residency_how,
        bytes_read=int(events["bytes_read"].sum()),
        sample_bytes=delivered,
        bytes_fetched=fetched,
        fetched_how=outcome.epochs[-1].fetched_how,
    )
    wanted = min(delivered, plan.manifest.header.stored_bytes)
    if (share := cached_share(wanted=wanted, fetched=fetched)) > MAX_CACHED:
        ceiling.how += f"; not cold: a cache served {format_percent(share)} of it"


def joined(outcome: Outcome) -> Columns:
    """The event columns of all ranks in one table, with an additional column ``rank``."""
    ranks = sorted(outcome.columns)
    table = {
        name: np.concatenate([outcome.columns[rank][name] for rank in ranks])
        for name in outcome.columns[ranks[0]]
    }
    table["rank"] = np.concatenate(
        [np.full(len(outcome.columns[rank]["step"]), rank) for rank in ranks]
    )
    return table


def _subset(plan: Plan) -> Indices:
    """Choose shards with the plan's seed: at most ``_COPY_BYTES``, but at least one batch."""
    shards = np.random.default_rng(plan.seed).permutation(plan.manifest.shard_count)
    sizes, counts = plan.manifest.shards["size"][shards], plan.manifest.shards["samples"][shards]
    batch = int(np.searchsorted(np.cumsum(counts), plan.workload.batch_size)) + 1
    small = int(np.searchsorted(np.cumsum(sizes), _COPY_BYTES, side="right"))
    return np.sort(shards[: max(batch, small, 1)])


def _copy(plan: Plan, shard: int) -> memoryview:
    size = int(plan.manifest.shards["size"][shard])
    step = plan.storage.alignment
    from .. import buffers

    memory = buffers.private(-(-size // step) * step).array.data
    done = 0
    while done < size:
        block = min(64 << 20, len(memory) - done)
        count = plan.storage.read_into(plan.manifest.key(shard), done, memory[done : done + block])
        if count == 0:
            raise StorageError(
                f"{plan.manifest.key(shard)} ends at byte {done}, but {size} bytes were expected",
                remedy="check it: iobench verify",
            )
        done += count
    return memory[:size]


def _workers(plan: Plan) -> str:
    loading, concurrency = plan.workload.loader, plan.workload.reader.concurrency
    workers = counted(loading.workers, "worker")
    return f"{plan.accelerators} x {workers} x {concurrency} reads in flight"
