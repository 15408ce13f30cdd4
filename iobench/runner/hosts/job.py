"""A run on many hosts, from its meeting to its end: as the controller, and as another host."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...base.errors import HostLostError, IobenchError
from ...record.run import TrainingRecord
from ..agent import HostAgent
from ..calibration.bench import Bench
from ..curve.places import Places
from ..experiment import Options, run
from ..options import Mixed
from ..plan import Plan
from ..progress import Observer
from .agent import Agent
from .agents import HostsAgent
from .barrier import barrier_s
from .control import Control, led
from .crew import HostsRanks
from .facts import known_hosts, same_machines
from .localreads import LocalReads
from .meeting import Meeting
from .part import with_part
from .place import SavesThere
from .reads import HostsReader
from .saving import HostsSaves, same_of_study

log = logging.getLogger(__name__)


def same_of(plan: Plan, mixed: Mixed | None) -> dict[str, str]:
    """What must be the same on all hosts. ``mixed``: the checkpoints during the run."""
    header = plan.manifest.header.model_dump_json()
    saves = {}
    if mixed is not None:
        saves = same_of_study(mixed.plan) | {"checkpoint-every": str(mixed.every)}
    return saves | {
        "verb": "run",
        "data": plan.home.url,
        "dataset": hashlib.sha256(header.encode()).hexdigest(),
        "workload": hashlib.sha256(_settings(plan).encode()).hexdigest(),
    }


def _settings(plan: Plan) -> str:
    """The workload without what trials on this host found; the controller's is used.

    These are the engine, and the number of steps for which a training's pace leaves time.
    """
    workload = plan.workload.model_copy(update={"max_steps": None})
    if plan.engine_choice:
        reader = workload.reader.model_copy(update={"engine": "auto"})
        workload = workload.model_copy(update={"reader": reader})
    return workload.model_dump_json()


# The controller


class HostsJob:
    """What a run needs of the other hosts of its job; see ``experiment.Across``."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.saves = HostsSaves(control)

    def attach(self, bench: Bench) -> None:
        """Give the bench the agents and the ranks of all hosts."""
        bench.agent = HostsAgent(bench.plan.storage, self.control, plans=True)
        bench.ranks = HostsRanks(self.control, bench)
        bench.shares = self.control.share
        bench.reader_of = self._reader_of(bench)
        self.control.set_clocks(again=True)

    def _reader_of(self, bench: Bench) -> Callable[[Places, str, Path], HostsReader]:
        def reader_of(places: Places, name: str, folder: Path) -> HostsReader:
            local = LocalReads(bench.plan.storage, folder)
            everyone = range(len(self.control.meeting.hosts))
            return HostsReader(self.control, local, places, name=name, members=everyone)

        return reader_of

    def begin(self, doc: TrainingRecord, plan: Plan) -> None:
        """Record who takes part, and what a barrier of all hosts costs."""
        self._tell(doc, plan)
        doc.findings += same_machines(doc.job.hosts)
        if plan.workload.accelerator.sync == "step":
            doc.job.barrier_s = self._barrier_s()

    def prepare(self) -> None:
        """Let the other hosts prepare what a loader library needs, now that this one has it."""
        self.control.ask(Agent.prepare, lambda: None)

    def end(self, doc: TrainingRecord, plan: Plan) -> None:
        """Measure the clocks a last time, and record them; a lost host keeps what is known."""
        try:
            self.control.set_clocks(again=True)
        except (HostLostError, KeyboardInterrupt) as error:
            log.info("the clocks were not measured again: %s", error)
        self._tell(doc, plan)

    def _barrier_s(self) -> float:
        meeting, port = self.control.meeting, self.control.barrier_port
        return max(self.control.ask(Agent.barrier, lambda: barrier_s(meeting, port), port))

    def _tell(self, doc: TrainingRecord, plan: Plan) -> None:
        doc.job.hosts = known_hosts(self.control, plan.accelerators)
        doc.job.started_by = self.control.meeting.launch.by


def run_as_controller(
    control: Control, plan: Plan, options: Options, observer: Observer
) -> tuple[TrainingRecord, Path]:
    """Run the plan on all hosts, and then let the others go. Raises as ``experiment.run``."""

    def act() -> tuple[TrainingRecord, Path]:
        plan_of_all = plan
        if plan.subject.users:
            tried = control.ask(Agent.tried, lambda: list(plan.tried))
            plan_of_all = replace(plan, tried=[rank for host in tried for rank in host])
        return run(plan_of_all, options, observer, across=HostsJob(control))

    return led(control, act)


# Another host


def serve(
    meeting: Meeting,
    plan: Plan,
    mixed: Mixed | None,
    results: Path,
    command: Sequence[str] = (),
    rules: str = "quick",
) -> None:
    """Take part in the run as a host that is not the controller, until it ends.

    Where the run ends early, this host's part of it is kept in a directory in ``results``. Raises
    the error with which the run has ended.
    """
    bench = Bench(plan=plan, agent=HostAgent(plan.storage), directory=results, seconds=0.0)
    saves = SavesThere(meeting, mixed.plan) if mixed is not None else None
    agent = Agent(meeting, bench, saves)
    with bench.held:
        try:
            agent.serve()
        except IobenchError as error:
            raise with_part(error, bench, meeting, command, rules) from None
