"""The bench: it runs one phase of a run after the other, and keeps their events.

A window is a short phase in which one stage works alone. All windows are measured by
``Bench.window``, whatever they measure. Stages without storage read some shards of the dataset that
are in this process's memory (``make_copy``).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ...base import buffers
from ...base.errors import StorageError
from ...base.units import format_percent
from ...host.samples import Sampler
from ...host.timeline import Columns
from ...judge.cache import MAX_CACHED, cached_share
from ...judge.figures.metrics import EVALUATED
from ...judge.figures.windows import pooled, rated_window
from ...judge.statistics import of_all
from ...load.choose import make_reader
from ...load.null import AnyReader, NullReader, ReadyReader, delivered_bytes
from ...load.order import Indices
from ...record.job import LoaderFacts
from ...record.manifest import Manifest
from ...record.training import Ceiling, CeilingDetails, Epoch, MeasuredBy
from ...record.verdict import RunCurve
from ...serve.logs import LogPlace
from ...settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from ...storage.base import Storage
from ...storage.simulated.memory import MemoryStorage
from ..agent import HostAgent
from ..cache import run_cached_phase
from ..loading import PhaseContext, run_phase
from ..phase import MIN_ROUNDS, Outcome, Phase, Source
from ..plan import Plan
from ..third_party import COPIES, enough_shards, in_memory
from ..trials import seed_of

MIN_COPY_BYTES, MAX_COPY_BYTES = 64 << 20, 512 << 20
"""Bounds of the bytes that are copied: more than a CPU's caches hold, and little of the memory."""

_WINDOWS = 2
"""How long a copy may take, as a multiple of the time of a window."""

_BLOCK = 64 << 20  # bytes that one call reads


def bytes_to_copy(fetch_bytes_per_s: float | None, seconds: float) -> int:
    """How many bytes to copy, so that a slow storage is not read for much longer than a window.

    ``fetch_bytes_per_s`` is the rate at which the storage was read, if it is known; ``seconds`` is
    the time of a window.
    """
    if not fetch_bytes_per_s:
        return MAX_COPY_BYTES
    return int(min(MAX_COPY_BYTES, max(MIN_COPY_BYTES, fetch_bytes_per_s * seconds * _WINDOWS)))


def choose_shards(plan: Plan, max_bytes: int = MAX_COPY_BYTES) -> Indices:
    """Choose shards with the plan's seed: at most ``max_bytes``, but at least those of one batch.

    The shards of a batch are copied however large they are.
    """
    shards = np.random.default_rng(plan.seed).permutation(plan.manifest.shard_count)
    sizes, counts = plan.manifest.shards["size"][shards], plan.manifest.shards["samples"][shards]
    batch = int(np.searchsorted(np.cumsum(counts), plan.workload.batch_size)) + 1
    small = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
    return np.sort(shards[: max(batch, small, 1)])


@dataclass(frozen=True, kw_only=True)
class MemoryCopy:
    """Shards in memory, and the manifest that describes what ``storage`` holds.

    ``shards``: the numbers of the copied ones, if ``manifest`` is that of the whole dataset.
    """

    manifest: Manifest
    storage: Storage
    shards: Indices | None
    bytes: int
    whole: bool  # all shards were copied


def make_copy(plan: Plan, max_bytes: int, held: ExitStack) -> MemoryCopy:
    """Copy shards for this plan's loader; they stay in memory until ``held`` is closed.

    Raises StorageError; for a loader library also UsageError if there is no room for files in
    memory.
    """
    shards = choose_shards(plan, max_bytes)
    if plan.subject.reads_itself:
        shards = enough_shards(plan, shards)
        manifest, files = held.enter_context(in_memory(plan, shards))
        return MemoryCopy(
            manifest=manifest,
            storage=files,
            shards=None,
            bytes=manifest.header.stored_bytes,
            whole=len(shards) == plan.manifest.shard_count,
        )
    storage, copied = copy_to_memory(plan, shards)
    return MemoryCopy(
        manifest=plan.manifest,
        storage=storage,
        shards=shards,
        bytes=copied,
        whole=len(shards) == plan.manifest.shard_count,
    )


def copy_to_memory(plan: Plan, shards: Indices) -> tuple[MemoryStorage, int]:
    """Copy shards; return a storage that holds them, and their bytes. Raises StorageError."""
    with ThreadPoolExecutor(COPIES) as threads:
        copies = list(threads.map(lambda shard: _copy(plan, shard), shards.tolist()))
    objects = dict(zip(map(plan.manifest.key, shards.tolist()), copies, strict=True))
    return MemoryStorage(objects=objects), sum(len(data) for data in copies)


def _copy(plan: Plan, shard: int) -> memoryview:
    size = int(plan.manifest.shards["size"][shard])
    step = plan.storage.alignment
    memory = buffers.private(-(-size // step) * step).array.data
    done = 0
    while done < size:
        block = min(_BLOCK, len(memory) - done)
        count = plan.storage.read_into(plan.manifest.key(shard), done, memory[done : done + block])
        if count == 0:
            raise StorageError(
                f"{plan.manifest.key(shard)} ends at byte {done}, but {size} bytes were expected",
                remedy="check it: iobench verify",
            )
        done += count
    return memory[:size]


NO_ACCELERATOR = AcceleratorSpec(kind="null", name="null", sync="none")

Parts = list[tuple[str, int, int, Columns]]
"""Events, each with its phase, repetition and rank."""


@dataclass(frozen=True)
class Measured:
    ceiling: Ceiling
    outcome: Outcome


@dataclass(kw_only=True)
class Bench(PhaseContext):
    """A run's plan, its host's agent, and what has been measured so far.

    ``seconds``: how long the windows of a ceiling take together; 0 leaves calibration out.
    ``window_s`` and ``number``: of the window that is measured now. ``ceilings`` are by name.
    """

    plan: Plan
    agent: HostAgent
    directory: Path  # of the run
    seconds: float
    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    curve: RunCurve | None = None
    loader: LoaderFacts = field(default_factory=LoaderFacts)
    parts: Parts = field(default_factory=list)
    samples: list[tuple[str, int, Columns]] = field(default_factory=list)  # phase, repetition
    held: ExitStack = field(default_factory=ExitStack)  # closed when the run ends
    window_s: float = 0.0
    number: int = 0
    min_rounds: int = MIN_ROUNDS  # of the workers, in each window
    log: LogPlace | None = None  # where phases write their logs; None: they write none
    copy_bytes: int = 0  # the limit of the copy in memory, once there is one
    _copy: MemoryCopy | None = None

    def __post_init__(self) -> None:
        self.window_s = self.window_s or self.seconds

    def copy(self, bytes_per_s: float | None) -> MemoryCopy:
        """Some shards in memory, copied once. Raises as ``make_copy`` does.

        ``bytes_per_s``: the rate at which the storage was read, if it is known; how much is copied
        depends on it.
        """
        return self.copy_of(bytes_to_copy(bytes_per_s, max(self.seconds, 1.0)))

    def copy_of(self, max_bytes: int) -> MemoryCopy:
        """The same, with at most ``max_bytes``, unless there is a copy already."""
        if self._copy is None:
            self.copy_bytes = max_bytes
            self._copy = make_copy(self.plan, max_bytes, self.held)
        return self._copy

    def reader(self, source: Source, reading: ReaderSpec, copy_bytes: int = 0) -> AnyReader | None:
        """What reads the samples as they are ``stored``, or in another way.

        Only their ``bytes``; those, and samples that are ``ready`` without any work; a ``copy`` of
        at most ``copy_bytes``, or the one that there is; ``nothing``, and batches that are ready at
        once. ``none``: there are no batches.
        """
        plan = self.plan
        match source:
            case "none":
                return None
            case "nothing":
                return NullReader(plan.manifest, self.delivered)
            case "copy":
                copy = self.copy_of(copy_bytes)
                return make_reader(copy.manifest, copy.storage, reading)
            case "bytes":
                return make_reader(plan.manifest, plan.storage, reading, bytes_only=True)
        reader = make_reader(plan.manifest, plan.front, reading)
        if source == "stored":
            return reader
        delivered = np.minimum(self.delivered, reader.room())
        fetching = make_reader(plan.manifest, plan.front, reading, bytes_only=True)
        return ReadyReader(fetching, delivered)

    def with_reader(self, phase: Phase, source: Source, reading: ReaderSpec) -> Phase:
        """The phase with another reader."""
        reader, copy_bytes = self.reader(source, reading), self.copy_bytes
        return replace(phase, reader=reader, reading=reading, source=source, copy_bytes=copy_bytes)

    @cached_property
    def delivered(self) -> Indices:
        """Bytes of each sample when it reaches the training process."""
        plan = self.plan
        return delivered_bytes(plan.manifest, plan.storage, plan.workload.reader)

    def run(
        self,
        phase: Phase,
        *,
        stored: bool,
        sampler: Sampler | None = None,
    ) -> Outcome:
        """Run a phase. ``stored`` is that of ``window``.

        Raises as ``run_phase`` does. The events are kept by ``keep``.
        """
        if self.log is None:
            phase = replace(phase, log=None)
        try:
            if stored:
                return run_cached_phase(self.plan, self.agent, phase, self, sampler=sampler)
            return run_phase(phase, self, sampler=sampler)
        finally:
            if self.log is not None and phase.log is not None:
                with suppress(StorageError):  # what stays is removed at the end
                    self.log.clear()

    def keep(self, phase: Phase, outcome: Outcome) -> None:
        """Keep the events of a phase for the run's record."""
        self.parts += [
            (phase.name, phase.repetition, rank, columns)
            for rank, columns in sorted(outcome.columns.items())
        ]
        self.parts += [
            (EVALUATED, phase.repetition, rank, columns)
            for rank, columns in sorted(outcome.evaluation.items())
        ]

    def window(self, phase: Phase, *, how: str, by: MeasuredBy, stored: bool = False) -> Measured:
        """Measure a stage alone, and rate it: in samples/s and stored bytes/s, over all ranks.

        ``how``: what is measured, in one sentence. ``stored``: the phase reads the plan's storage,
        in the cache state that the workload asks for.
        """
        began = time.monotonic()
        outcome = self.run(phase, stored=stored)
        self.keep(phase, outcome)
        took_s = time.monotonic() - began
        hosts, rounds = (
            self.hosts.share(phase.accelerators),
            max(1, outcome.loader.round_batches or 1),
        )
        one = rated_window(
            outcome.events(),
            seconds=took_s,
            startup_s=[epoch.startup_s for epoch in outcome.epochs],
            cpu_s=outcome.cpu_s,
            round_steps=rounds,
            hosts=hosts,
        )
        details = CeilingDetails(round_steps=rounds, windows=[one])
        unmeasured = Ceiling(how=how, by=by, not_measured="no batch was delivered", details=details)
        ceiling = pooled(unmeasured)
        if stored and self.plan.workload.cache == "cold" and outcome.epochs:
            _add_cold(ceiling, outcome, self.plan.manifest.header.stored_bytes)
        return Measured(ceiling, outcome)

    def phase(
        self,
        name: str,
        source: Source,
        loading: LoaderSpec,
        *,
        reading: ReaderSpec | None = None,
        epochs: int | None = None,
        shards: Indices | None = None,
        share: bool = True,
    ) -> Phase:
        """A phase for a window: the plan's ranks and batches, no accelerator, ``window_s`` long."""
        plan, reading = self.plan, reading or self.plan.workload.reader
        return Phase(
            name=f"calibrate.{name}",
            reader=self.reader(source, reading),
            reading=reading,
            source=source,
            copy_bytes=self.copy_bytes,
            loading=loading,
            accelerator=NO_ACCELERATOR,
            accelerators=plan.accelerators,
            batch_size=plan.workload.batch_size,
            seed=seed_of(plan.seed, "window", self.number),
            repetition=self.number,
            epochs=epochs,
            limit_s=self.window_s,
            whole_rounds=True,
            min_rounds=self.min_rounds,
            shards=shards,
            share=share,
        )


def _add_cold(ceiling: Ceiling, outcome: Outcome, stored_bytes: int) -> None:
    """Record what the storage delivered while a cold ceiling was measured.

    ``stored_bytes``: of the dataset. If a cache served a part of it, ``how`` says so.
    """
    fetched = of_all(sum, (epoch.bytes_fetched for epoch in outcome.epochs))
    events = outcome.events()
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
    wanted = min(delivered, stored_bytes)
    if (share := cached_share(wanted=wanted, fetched=fetched)) > MAX_CACHED:
        ceiling.how += f"; not cold: a cache served {format_percent(share)} of it"
