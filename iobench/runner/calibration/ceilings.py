"""The ceilings: raw storage, fetch, prep, loader and accelerator, one entry each.

The method is that of DS-Analyzer's differential runs (Mohan et al., VLDB 2021). Another measurement
of a part of the pipeline is another entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import UsageError, WorkerError
from ...base.units import counted
from ...judge.figures.windows import pooled
from ...load.choose import make_reader
from ...record.training import Ceiling, Epoch
from ...settings.workload import LoaderSpec
from ..cache import fill_cache
from ..phase import Outcome
from ..plan import Plan
from ..trials import spread
from ..user_loader import reads_elsewhere
from .bench import MAX_COPY_BYTES, Bench, MemoryCopy, choose_shards
from .curve import rate_samples, storage_curve

_ACCELERATOR_S, _ACCELERATOR_STEPS = 2.0, 200
"""Limits of the accelerator's window: its steps need no storage to settle."""

_MIN_ACCELERATOR_STEPS = 3
"""Steps of a window even where each takes seconds, as those of a model on a CPU may."""


@dataclass(frozen=True)
class CeilingEntry:
    """One ceiling: its name in the record, what is measured, how, and for which plans.

    ``again``: it is measured in several windows.
    """

    name: str
    title: str
    measure: Callable[[Bench], Ceiling]
    applies: Callable[[Plan], bool] = lambda plan: True
    again: bool = True


def fetch(bench: Bench) -> Ceiling:
    """The reader over cold storage: no decompression, no decoding, no accelerator."""
    plan = bench.plan
    if plan.tried and (why := reads_elsewhere(plan.tried)):
        return Ceiling(not_measured=why)
    measured = bench.window(
        bench.phase("fetch", "bytes", _own(plan.workload.loader), epochs=plan.passes),
        how=f"reader over {plan.workload.cache} storage, bytes only, {_workers(plan)}, "
        f"{'O_DIRECT' if plan.direct else 'buffered'}",
        by="reader",
        stored=True,
    )
    if bench.number == 0 and (raw := bench.ceilings.get("storage_raw")) is not None:
        _rate_raw(raw, measured.outcome)
    return measured.ceiling


def local_cache(bench: Bench) -> Ceiling:
    """The reader over copies in the directory of the local cache."""
    plan, cache = bench.plan, bench.plan.cache
    assert cache is not None
    chosen = choose_shards(plan, min(MAX_COPY_BYTES, cache.limit))
    try:
        cache.fill([plan.manifest.key(shard) for shard in chosen.tolist()])
        cache.forget_pages()
        held = set(cache.held())
        shards = np.array([one for one in chosen.tolist() if plan.manifest.key(one) in held], int)
        if not len(shards):
            return Ceiling(not_measured="no shard of the dataset fits into the local cache")
        reader = make_reader(plan.manifest, cache.files, plan.workload.reader, bytes_only=True)
        direct = cache.files.direct
        phase = bench.phase(
            "cache",
            "bytes",
            _own(plan.workload.loader),
            epochs=None if direct else 1,
            shards=shards,
            share=not direct,
        )
        return bench.window(
            replace(phase, reader=reader),
            how=f"reader over {counted(len(shards), 'copy', 'copies')} in the local cache's "
            f"directory, {_workers(plan)}, {'O_DIRECT' if direct else 'buffered'}",
            by="reader",
        ).ceiling
    finally:
        cache.empty()


def _rate_raw(raw: Ceiling, outcome: Outcome) -> None:
    """Turn the curve's bytes/s into samples/s, by the bytes that this reader fetches for a sample.

    It may fetch whole row groups, or only a few columns.
    """
    events = outcome.events()
    read, samples = int(events["bytes_read"].sum()), int(events["samples"].sum())
    if read and samples:
        rate_samples(raw, read / samples)


def prep(bench: Bench) -> Ceiling:
    """The reader over a copy in memory: decompress, decode, check, collate."""
    plan, copy = bench.plan, _copy(bench)
    return bench.window(
        bench.phase("prep", "copy", _own(plan.workload.loader), shards=copy.shards, share=False),
        how=f"reader over a copy of {copy.bytes >> 20} MiB in memory, {_workers(plan)}",
        by="reader",
    ).ceiling


def prep_of_library(bench: Bench) -> Ceiling:
    """A library's loader over files in memory: decode, collate, hand over batches.

    These steps can't be separated from outside, so the rate is recorded as ``prep``. iobench's own
    loader over the same files shows what rate is possible.
    """
    plan, loading = bench.plan, bench.plan.workload.loader
    reading = plan.workload.reader.model_copy(update={"direct": False})

    def over(name: str, loading: LoaderSpec) -> Ceiling:
        copy = _copy(bench)
        return bench.window(
            bench.phase(name, "copy", loading, reading=reading, share=False),
            how=f"loader '{loading.kind}' over {copy.bytes >> 20} MiB of files in memory, "
            f"{_workers(plan)}",
            by="loader",
        ).ceiling

    try:
        ceiling = over("prep", loading)
        if bench.number:
            return ceiling
        own = over("prep-own", loading.own())
    except UsageError as error:
        return Ceiling(not_measured=str(error))
    ceiling.details.own_samples_per_s = own.samples_per_s
    ceiling.details.own_cpu_s_per_gb = own.cpu_s_per_gb
    return ceiling


def prep_of_user(bench: Bench) -> Ceiling:
    """The user's loader over the page cache: the same files again, from memory."""
    plan = bench.plan
    if why := fill_cache(plan, bench.agent):
        return Ceiling(not_measured=why)
    return bench.window(
        bench.phase("prep", "stored", plan.workload.loader),
        how=f"your loader, with the dataset in the page cache, {_ranks(plan)}",
        by="loader",
    ).ceiling


def loader_of_user(bench: Bench) -> Ceiling:
    """The user's loader over the samples of one batch, which are kept: collate and transport."""
    plan = bench.plan
    why = plan.tried[0].not_replaced if plan.tried else ""
    if why:
        return Ceiling(not_measured=f"your loader can't run without its dataset: {why}")
    loading = plan.workload.loader.model_copy(update={"replay": "samples"})
    try:
        return bench.window(
            bench.phase("loader", "stored", loading),
            how=f"your loader, its dataset replaced by the samples of one batch, {_ranks(plan)}",
            by="loader",
        ).ceiling
    except (UsageError, WorkerError) as error:
        return Ceiling(not_measured=str(error))


def loader(bench: Bench) -> Ceiling:
    """The loader over a reader that delivers at once: only workers and transport."""
    plan, loading = bench.plan, bench.plan.workload.loader
    measured = bench.window(
        bench.phase("loader", "nothing", loading),
        how=f"loader over null storage, transport {loading.transport}, {_workers(plan)}",
        by="loader",
    )
    bench.loader = measured.outcome.loader
    return measured.ceiling


def loader_by_tensors(bench: Bench) -> Ceiling:
    """The same loader with torch's default way of handing batches over, as a detail of loader."""
    plan, ceiling = bench.plan, bench.ceilings["loader"]
    default = plan.workload.loader.model_copy(update={"transport": "tensor", "slot_size": None})
    phase = bench.phase("loader-tensor", "nothing", default)
    tensor = bench.window(replace(phase, limit_s=bench.seconds / 2), how="", by="loader").ceiling
    ceiling.details.tensor_samples_per_s = tensor.samples_per_s
    return ceiling


def loader_of_library(bench: Bench) -> Ceiling:
    """Nothing: a library can't be measured without its reading."""
    kind = bench.plan.workload.loader.kind
    why = f"the loader '{kind}' can't run without reading, so its cost is part of prep"
    return Ceiling(not_measured=why)


def accelerator(bench: Bench) -> Ceiling:
    """Only the step, on a batch that is already in place."""
    plan, spec = bench.plan, bench.plan.workload.accelerator
    if spec.kind == "null":
        return Ceiling(not_measured="a null accelerator has no limit")
    phase = replace(
        bench.phase("accelerator", "none", plan.workload.loader, epochs=1),
        accelerator=spec,
        min_steps=_MIN_ACCELERATOR_STEPS,
        max_steps=_ACCELERATOR_STEPS,
        limit_s=min(bench.window_s, _ACCELERATOR_S),
    )
    how = f"{plan.accelerators} x {spec.name}, step alone"
    if phase.exchanges_gradients:
        how += ", with its exchange of gradients"
    ceiling = bench.window(phase, how=how, by="accelerator").ceiling
    for one in ceiling.details.windows:
        if one.samples_per_s is not None:
            one.bytes_per_s = one.samples_per_s * plan.sample_bytes
    return pooled(ceiling)


def _own(loading: LoaderSpec) -> LoaderSpec:
    """iobench's own loader, which throws the batches away in its workers."""
    return loading.own().model_copy(update={"transport": "null"})


def _copy(bench: Bench) -> MemoryCopy:
    return bench.copy(bench.ceilings.get("fetch", Ceiling()).bytes_per_s)


def _workers(plan: Plan) -> str:
    loading, concurrency = plan.workload.loader, plan.workload.reader.concurrency
    workers = counted(loading.workers, "worker")
    return f"{plan.accelerators} x {workers} x {concurrency} reads in flight"


def _ranks(plan: Plan) -> str:
    return f"{plan.accelerators} x {counted(plan.workload.loader.workers, 'worker')}"


def _user_loader(plan: Plan) -> bool:
    return plan.subject.users


def _library(plan: Plan) -> bool:
    return plan.subject.library


def _own_loader(plan: Plan) -> bool:
    return not plan.subject.reads_itself


def _caches(plan: Plan) -> bool:
    return plan.cache is not None


def _ring(plan: Plan) -> bool:
    loading = plan.workload.loader
    return _own_loader(plan) and loading.transport == "ring" and loading.workers > 0


ENTRIES = (
    CeilingEntry("storage_raw", "the storage's curve", storage_curve, again=False),
    CeilingEntry("fetch", "fetch", fetch),
    CeilingEntry("cache", "the local cache", local_cache, _caches, again=False),
    CeilingEntry("prep", "prep", prep, _own_loader),
    CeilingEntry("prep", "the loader over files in memory", prep_of_library, _library),
    CeilingEntry("prep", "your loader over the page cache", prep_of_user, _user_loader),
    CeilingEntry("loader", "loader", loader, _own_loader),
    CeilingEntry(
        "loader", "loader (torch's default transport)", loader_by_tensors, _ring, again=False
    ),
    CeilingEntry("loader", "loader", loader_of_library, _library, again=False),
    CeilingEntry("loader", "loader", loader_of_user, _user_loader),
    CeilingEntry("accelerator", "accelerator", accelerator),
)
"""All ceilings, in the order in which they are measured. A later entry of a name replaces an
earlier one.
"""


# When they are measured: in a first window before the repetitions, and between them. A ceiling that
# is measured once, before everything, says nothing about what changes during a run.

MAX_LATER = 4
"""Windows between the repetitions."""

MIN_LATER_S = 0.5
"""A shorter window says little."""

MAX_SLOW_S = 2.0
"""A window that took longer than this, and than the whole time of a ceiling, is not repeated.

Each needs a few rounds of all workers, however slow they are.
"""


@dataclass(frozen=True, kw_only=True)
class CeilingWindows:
    """A first window of ``first_s`` seconds, and one of ``later_s`` after these repetitions."""

    first_s: float
    later_s: float = 0.0
    after: tuple[int, ...] = ()


def plan_windows(seconds: float, repetitions: int) -> CeilingWindows:
    """Divide the time of a ceiling: one half before the repetitions, the other between them."""
    count = min(MAX_LATER, repetitions - 1, int(seconds / 2 / MIN_LATER_S))
    if count < 1:
        return CeilingWindows(first_s=seconds)
    return CeilingWindows(
        first_s=seconds / 2, later_s=seconds / 2 / count, after=spread(count, repetitions - 1)
    )


def measure_again(bench: Bench, entry: CeilingEntry, seconds: float) -> None:
    """Measure another window of a ceiling, and add it to those before."""
    before = bench.ceilings[entry.name]
    bench.window_s, bench.number = seconds, len(before.details.windows)
    bench.ceilings[entry.name] = _joined(before, entry.measure(bench))


def worth_again(bench: Bench, entry: CeilingEntry) -> bool:
    """Whether another window of a ceiling is measured."""
    if not entry.again or not entry.applies(bench.plan):
        return False
    windows = bench.ceilings.get(entry.name, Ceiling()).details.windows
    return bool(windows) and windows[-1].seconds <= max(MAX_SLOW_S, bench.seconds)


def _joined(before: Ceiling, more: Ceiling) -> Ceiling:
    """The ceiling with one more window.

    What says how cold it was is that of the window of which a cache served most.
    """
    windows = [*before.details.windows, *more.details.windows]
    details = before.details.model_copy(update={"windows": windows})
    worst = min((before, more), key=_fetched_share)
    update = {"details": details, "cold": worst.cold, "how": worst.how}
    return pooled(before.model_copy(update=update))


def _fetched_share(ceiling: Ceiling) -> float:
    """What the storage delivered of the bytes, unknown first; no limit where it is not asked."""
    cold: Epoch | None = ceiling.cold
    if cold is None:
        return float("inf")
    if cold.bytes_fetched is None:
        return -1.0
    return cold.bytes_fetched / max(1, cold.sample_bytes or 0)
