"""One of two sides that are measured in turns: its run directory, and the record of its run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ..analyse.compare.identity import identity
from ..analyse.compare.turns import figures_of
from ..errors import IobenchError
from ..schema.ab import MAX_TURNS, Name, Side, SideTurn
from ..schema.metrics import BY_NAME
from ..schema.record import TrainingRecord
from ..schema.training import Repetition
from ..text import printable
from .agent import HostAgent
from .calibration.bench import Bench
from .experiment import timed, write_run
from .facts import add_changes, add_loader_facts, begin_record, shard_versions
from .others import Others
from .plan import Plan
from .progress import Progress, watcher
from .repetition import measure, repetition_phase
from .third_party import is_library, prepare_library

NO_KNOCK_OUTS = "two sides in turns leave no stage out"

_WARM_UP_SEED = MAX_TURNS
"""Added to the seed for the warm-up, so that no turn reads in the same order."""


@dataclass(frozen=True, kw_only=True)
class SideAsked:
    """One side: its plan, and how the user has named it."""

    plan: Plan
    settings: tuple[str, ...] = ()  # that were given for this side alone
    repeats: str = ""  # the id of the run that is repeated


@contextmanager
def naming(side: str) -> Iterator[None]:
    """Errors that the body raises begin with the name of the side."""
    try:
        yield
    except IobenchError as error:
        error.what = printable(f"side {side}: {error.what}")
        raise


class MeasuredSide:
    """One side while it is measured: its run directory, and the record of its run."""

    def __init__(
        self,
        name: Name,
        asked: SideAsked,
        others: Others,
        directory: Path,
        progress: Progress,
        held: ExitStack,
        *,
        command: Sequence[str],
        rules: str,
    ) -> None:
        plan = asked.plan
        self.name: Name = name
        self.others, self.progress = others, progress
        own = directory / name.lower()
        try:
            own.mkdir()
        except OSError as error:
            raise IobenchError(f"cannot make the run directory {own}: {error.strerror}") from error
        self.bench = Bench(
            plan=plan,
            agent=HostAgent(plan.storage),
            directory=own,
            seconds=0.0,
            tick=progress.steps,
            watch=watcher(progress),
            held=held,
        )
        self.doc = begin_record(
            plan,
            self.bench.agent,
            run_id=f"{directory.name}-{own.name}",
            command=command,
            rules=rules,
        )
        self.doc.job.no_knock_outs = NO_KNOCK_OUTS
        self.record = Side(
            name=name,
            run=own.name,
            data=plan.data,
            workload=plan.workload.name,
            settings=list(asked.settings),
            repeats=asked.repeats,
        )
        self.versions: dict[str, str] | str = ""
        self.began = ""  # of the last turn
        self.last = SideTurn(seconds=0.0, figures={})

    def warm_up(self) -> None:
        """Prepare what the loader needs, and run a repetition that is not counted."""
        bench, doc = self.bench, self.doc
        with self._failing():
            self.versions = shard_versions(bench.plan)
            if is_library(bench.plan):
                kind = bench.plan.workload.loader.kind
                title = f"side {self.name}: the samples that loader '{kind}' delivers"
                with timed(doc, "prepare", self.progress, title):
                    add_loader_facts(doc, prepare_library(bench.plan, bench.held, proof=True))
            phase = repetition_phase(bench.plan, _WARM_UP_SEED, name="warm-up")
            began = time.monotonic()
            with timed(doc, "warm_up", self.progress, f"side {self.name}: warm-up"):
                kept: list[Repetition] = []
                outcome = measure(
                    bench,
                    replace(phase, repetition=0),
                    kept.append,
                    self.others.look,
                    keep_interrupted=False,
                )
                add_loader_facts(doc, outcome.loader)
            self.record.warm_up_s = time.monotonic() - began

    def measure(self, turn: int) -> None:
        """Run the repetition of a turn. Raises IobenchError if it has not read all it should."""
        self.began, began = now(), time.monotonic()
        with self._failing():
            title = f"turn {turn + 1}, side {self.name}"
            with timed(self.doc, "measure", self.progress, title):
                repetitions = self.doc.job.repetitions
                phase = repetition_phase(self.bench.plan, turn)
                outcome = measure(self.bench, phase, repetitions.append, self.others.look)
                self.others.look()
            if not outcome.complete:
                raise IobenchError("the repetition delivered no complete epoch")
            self.last = SideTurn(
                seconds=time.monotonic() - began, figures=figures_of(repetitions[-1])
            )

    def end(self, *, stopped: bool, interrupted: bool) -> None:
        """Write the run, and add what it says of itself to the record of the side."""
        if interrupted:
            self.doc.status = "interrupted"
        if not stopped:
            add_changes(self.doc, self.bench.plan, self.versions)
        doc: TrainingRecord = write_run(self.doc, self.bench, self.others, stopped=stopped)
        self.record.validity, self.record.identity = doc.validity, identity(doc)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A failure in the body is recorded in the run, and names the side."""
        try:
            yield
        except IobenchError as error:
            self.doc.status, self.doc.error = "failed", str(error)
            with naming(self.name):
                raise

    def measured(self, metric: str) -> SideTurn:
        """Return the last turn. Raises IobenchError if it has no value of the metric, or 0.

        A comparison that can't be decided by its metric must not go on, and never passes.
        """
        figures = self.last.figures
        if not figures.get(metric):
            label = BY_NAME[metric].short
            why = "is 0, so that it has no ratio" if metric in figures else "was not measured"
            raise IobenchError(
                f"side {self.name}: {label} ({metric}) {why}", remedy="choose another --metric"
            )
        return self.last


def now() -> str:
    """Return the time as ISO 8601, in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
