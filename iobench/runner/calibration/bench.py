"""The bench: it runs one phase of a run after the other, and keeps their events.

A window is a short phase in which one stage works alone. All windows are measured by
``Bench.window``, whatever they measure.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...base.units import format_percent
from ...host.samples import Sampler
from ...host.timeline import Columns
from ...judge.cache import MAX_CACHED, cached_share
from ...judge.figures.windows import pooled, rated_window
from ...judge.statistics import of_all
from ...load.null import AnyReader, delivered_bytes
from ...load.order import Indices
from ...record.job import LoaderFacts
from ...record.training import Ceiling, CeilingDetails, Epoch, MeasuredBy
from ...record.verdict import RunCurve
from ...settings.workload import AcceleratorSpec, LoaderSpec
from ..agent import HostAgent
from ..cache import run_cached_phase
from ..loading import PhaseContext, run_phase
from ..phase import MIN_ROUNDS, Outcome, Phase
from ..plan import Plan
from ..trials import seed_of
from .copies import MemoryCopy, bytes_to_copy, make_copy

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

    def is_copy(self, storage: object) -> bool:
        return self._copy is not None and storage is self._copy.storage

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
        if stored:
            return run_cached_phase(self.plan, self.agent, phase, self, sampler=sampler)
        return run_phase(phase, self, sampler=sampler)

    def keep(self, phase: Phase, outcome: Outcome) -> None:
        """Keep the events of a phase for the run's record."""
        self.parts += [
            (phase.name, phase.repetition, rank, columns)
            for rank, columns in sorted(outcome.columns.items())
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
            _add_cold(self.plan, ceiling, outcome)
        return Measured(ceiling, outcome)

    def phase(
        self,
        name: str,
        reader: AnyReader | None,
        loading: LoaderSpec,
        *,
        epochs: int = 0,
        shards: Indices | None = None,
        share: bool = True,
    ) -> Phase:
        """A phase for a window: the plan's ranks and batches, no accelerator, ``window_s`` long."""
        plan = self.plan
        return Phase(
            name=f"calibrate.{name}",
            reader=reader,
            reading=plan.workload.reader,
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


def _add_cold(plan: Plan, ceiling: Ceiling, outcome: Outcome) -> None:
    """Record what the storage delivered while a cold ceiling was measured.

    If a cache served a part of it, ``how`` says so.
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
    wanted = min(delivered, plan.manifest.header.stored_bytes)
    if (share := cached_share(wanted=wanted, fetched=fetched)) > MAX_CACHED:
        ceiling.how += f"; not cold: a cache served {format_percent(share)} of it"
