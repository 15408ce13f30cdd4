"""A run on many hosts, from its meeting to its end: as the controller, and as another host."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import HostLostError, InterruptedRun, UsageError
from ...schema.record import TrainingRecord
from ...schema.workload import OWN_LOADER
from ..agent import HostAgent
from ..calibration.bench import Bench
from ..curve.places import Places
from ..experiment import Options, run
from ..plan import Plan
from ..progress import Progress
from .agent import Agent
from .barrier import round_trip_s
from .control import Control, HostsAgent, led
from .crew import HostsRanks
from .facts import known_hosts, same_machines
from .localreads import LocalReads
from .meeting import Meeting
from .part import with_part
from .reads import HostsReader
from .serving import error_of
from .words import Ask

log = logging.getLogger(__name__)


def share_of(accelerators: int, hosts: int) -> int:
    """The ranks of each host. Raises UsageError if they can't be the same on all."""
    each, rest = divmod(accelerators, hosts)
    if rest or not each:
        raise UsageError(
            f"{accelerators} accelerators can't be shared by {hosts} hosts",
            remedy="use a multiple of the number of hosts, or --accelerators-per-host",
        )
    return each


def check_supported(plan: Plan, options: Options) -> None:
    """Raise UsageError for what can't be measured over many hosts yet."""
    if plan.workload.loader.kind != OWN_LOADER:
        what = f"the loader '{plan.workload.loader.kind}'"
    elif options.mixed is not None:
        what = "a run with checkpoints"
    elif plan.workload.accelerator.gradient_sync == "ddp":
        what = "the exchange of gradients (accelerator.gradient_sync=ddp)"
    else:
        return
    raise UsageError(f"{what} can't be measured over many hosts yet", remedy="measure it on one")


def same_of(plan: Plan) -> dict[str, str]:
    """What must be the same on all hosts."""
    header = plan.manifest.header.model_dump_json()
    return {
        "verb": "run",
        "data": plan.home.url,
        "dataset": hashlib.sha256(header.encode()).hexdigest(),
        "workload": hashlib.sha256(plan.workload.model_dump_json().encode()).hexdigest(),
    }


# The controller


class HostsJob:
    """What a run needs of the other hosts of its job; see ``experiment.Across``."""

    def __init__(self, control: Control) -> None:
        self.control = control

    def attach(self, bench: Bench) -> None:
        """Give the bench the agents and the ranks of all hosts."""
        bench.agent = HostsAgent(bench.plan.storage, self.control, bench.plan)
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

    def end(self, doc: TrainingRecord, plan: Plan) -> None:
        """Measure the clocks a last time, and record them; a lost host keeps what is known."""
        try:
            self.control.set_clocks(again=True)
        except (HostLostError, KeyboardInterrupt) as error:
            log.info("the clocks were not measured again: %s", error)
        self._tell(doc, plan)

    def _barrier_s(self) -> float:
        meeting = self.control.meeting
        hosts = range(len(meeting.hosts))

        def mine() -> float:
            return round_trip_s(meeting.launch, meeting.store, "rounds/1", hosts=hosts)

        return max(self.control.ask(Ask("barrier"), float, mine))

    def _tell(self, doc: TrainingRecord, plan: Plan) -> None:
        doc.job.hosts = known_hosts(self.control, plan.accelerators)
        doc.job.started_by = self.control.meeting.launch.by


def run_as_controller(
    control: Control, plan: Plan, options: Options, progress: Progress
) -> tuple[TrainingRecord, Path]:
    """Run the plan on all hosts, and then let the others go. Raises as ``experiment.run``."""

    def act() -> tuple[TrainingRecord, Path]:
        check_supported(plan, options)
        return run(plan, options, progress, across=HostsJob(control))

    return led(control, act)


# Another host


def serve(meeting: Meeting, plan: Plan, results: Path, command: Sequence[str] = ()) -> None:
    """Take part in the run as a host that is not the controller, until it ends.

    Where the run ends early, this host's part of it is kept in a directory in ``results``. Raises
    the error with which the run has ended.
    """
    bench = Bench(plan=plan, agent=HostAgent(plan.storage), directory=results, seconds=0.0)
    agent = Agent(meeting, bench)
    with bench.held:
        try:
            bye = agent.serve()
        except (HostLostError, InterruptedRun) as error:
            raise with_part(error, bench, meeting, command) from None
    if bye.why:
        raise with_part(error_of(bye), bench, meeting, command)
