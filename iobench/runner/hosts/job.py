"""A run on many hosts, from its meeting to its end: as the controller, and as another host."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...base.errors import HostLostError, IobenchError, UsageError
from ...checkpoint.catalog import CheckpointRoot
from ...checkpoint.manifest import part_name
from ...record.run import CheckpointRecord, TrainingRecord
from ...storage.base import Storage
from ..agent import HostAgent
from ..calibration.bench import Bench
from ..checkpoint_plan import StudyPlan
from ..crew import Crew, ForkedCrew
from ..curve.places import Places
from ..curve.reader import PlaceReader
from ..experiment import Options, run
from ..options import Mixed
from ..phase import Phase
from ..plan import Plan
from ..progress import Observer
from ..study import rank_maker
from ..tasks.checkpoint import Checkpoint
from ..tasks.load import Load
from .agent import Agent
from .agents import HostsAgent
from .barrier import HostsBarrier, barrier_s
from .control import Control, led
from .crew import HostsCrew, begins_of
from .facts import known_hosts, same_machines
from .hosts import Hosts
from .localreads import LocalReads
from .meeting import Meeting
from .orders import SavesOrder, order_of
from .part import with_part
from .place import SavesThere, text_at
from .ranked import RankedAgent
from .reads import HostsReader

log = logging.getLogger(__name__)

ROUND_TRIPS = 20
"""From the command to begin an epoch to its start, so that it has reached every rank by then."""

MIN_HEAD_START_NS = 20_000_000


def same_of_study(plan: StudyPlan) -> dict[str, str]:
    """What must be the same on all hosts."""
    settings = plan.spec.model_dump_json()
    return {"to": plan.url, "settings": hashlib.sha256(settings.encode()).hexdigest()}


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


class JobHosts(Hosts):
    """All hosts of a job, as the controller sees them."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.names = [host.label for host in control.meeting.hosts]

    def begin(self, doc: TrainingRecord | CheckpointRecord, ranks: int) -> None:
        self.control.set_clocks(again=True)
        doc.job.hosts = known_hosts(self.control, ranks)
        doc.job.started_by = self.control.meeting.launch.by
        doc.findings += same_machines(doc.job.hosts)

    def end(self, doc: TrainingRecord | CheckpointRecord, ranks: int) -> None:
        """Measure the clocks a last time; a lost host keeps what is known of it."""
        try:
            self.control.set_clocks(again=True)
        except (HostLostError, KeyboardInterrupt) as error:
            log.info("the clocks were not measured again: %s", error)
        if doc.job.hosts:
            doc.job.hosts = known_hosts(self.control, ranks)

    def share(self, ranks: int) -> Sequence[range]:
        return self.control.share(ranks)

    def agent(self, storage: Storage, *, plans: bool = False) -> HostAgent:
        return HostsAgent(storage, self.control, plans=plans)

    def prepare(self) -> None:
        self.control.ask(Agent.prepare, lambda: None)

    def barrier_s(self) -> float | None:
        meeting, port = self.control.meeting, self.control.barrier_port
        return max(self.control.ask(Agent.barrier, lambda: barrier_s(meeting, port), port))

    def head_start_ns(self, least_ns: int) -> int:
        return max(least_ns, MIN_HEAD_START_NS, ROUND_TRIPS * self.control.round_trip_ns)

    def loading(self, phase: Phase, bench: object, meeting: str | None) -> tuple[Load, Crew]:
        """Raises HostLostError if a host was lost before."""
        assert isinstance(bench, Bench), "only runs have several hosts"
        control = self.control
        control.set_clocks()
        control.phases += 1
        shares = control.share(phase.accelerators)
        hosts = [host for host, share in enumerate(shares) if share]
        together = len(hosts) > 1 and (phase.in_step or phase.exchanges_gradients)
        port = control.barrier_port if together else 0
        meeting = None
        if phase.exchanges_gradients:
            meeting = control.rendezvous()
            control.expect(hosts)
        barrier = None
        if port:
            barrier = HostsBarrier(
                control.meeting,
                port,
                control.phases,
                members=len(shares[0]) if meeting is not None else 0,
            )
        task = Load(phase, barrier, meeting=meeting)
        order = order_of(phase, control.phases, bench, meeting)
        begins = begins_of(control, order, shares, port)
        local = ForkedCrew(len(shares[0]), task, first=0, world=phase.accelerators)
        return task, HostsCrew(control, local, begins, task.counters)

    @contextmanager
    def saving(self, plan: StudyPlan, root: CheckpointRoot) -> Iterator[Crew]:
        control, ranks = self.control, plan.spec.ranks
        control.set_clocks()
        shares, rendezvous = control.share(ranks), control.rendezvous()
        order = SavesOrder(accelerators=ranks, rendezvous=rendezvous)
        begins = begins_of(control, order, shares)
        with rank_maker(plan, root, rendezvous) as make:
            local = ForkedCrew(len(shares[0]), Checkpoint(make), first=0, world=ranks)
            yield HostsCrew(control, local, begins)

    def check_place(self, plan: StudyPlan, root: CheckpointRoot) -> None:
        """Every host must read there what this one has written, as it was written just now.

        It lies where a rank's part of the next checkpoint would, which is removed like any other.
        """
        step = root.step(root.last_number() + 1)
        key, text = step.key(part_name(0)), secrets.token_hex(16)
        try:
            step.prepare()
            with root.storage.create(key, size_hint=len(text)) as sink:
                sink.write(text.encode())
            found = self.control.ask(RankedAgent.text, lambda: text_at(plan.url, key), key)
        finally:
            root.remove(step)
        for name, seen in zip(self.names, found, strict=True):
            if seen != text:
                raise UsageError(
                    f"{name} does not see what {self.names[0]} writes to {root.url}",
                    remedy="name a place that all hosts share, with the same path on each",
                )

    def rendezvous(self) -> str:
        return self.control.rendezvous()

    def reader(
        self,
        storage: Storage,
        places: Places,
        *,
        name: str,
        run_dir: Path,
        members: Sequence[int] | None = None,
    ) -> PlaceReader:
        local = LocalReads(storage, run_dir)
        some = range(self.count) if members is None else members
        return HostsReader(self.control, local, places, name=name, members=some)


def run_as_controller(
    control: Control, plan: Plan, options: Options, observer: Observer
) -> tuple[TrainingRecord, Path]:
    """Run the plan on all hosts, and then let the others go. Raises as ``experiment.run``."""

    def act() -> tuple[TrainingRecord, Path]:
        plan_of_all = plan
        if plan.subject.users:
            tried = control.ask(Agent.tried, lambda: list(plan.tried))
            plan_of_all = replace(plan, tried=[rank for host in tried for rank in host])
        return run(plan_of_all, options, observer, hosts=JobHosts(control))

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
