"""The hosts of a job, as the story of a run, a study or a curve sees them on the first one."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ...base.errors import HostLostError, UsageError
from ...checkpoint.catalog import CheckpointRoot
from ...checkpoint.manifest import part_name
from ...record.run import CheckpointRecord, TrainingRecord
from ...storage.base import Storage
from ..agent import HostAgent
from ..checkpoint_plan import StudyPlan
from ..crew import Crew, ForkedCrew
from ..curve.places import Places
from ..curve.reader import PlaceReader
from ..options import Mixed
from ..phase import Phase
from ..plan import Plan
from ..study import rank_maker
from ..tasks.checkpoint import Checkpoint
from ..tasks.load import Load
from .agent import Agent
from .agents import HostsAgent
from .barrier import HostsBarrier, barrier_s
from .control import Control
from .crew import HostsCrew, begins_of
from .hosts import Copies, Hosts
from .launch import share_of
from .localreads import LocalReads
from .orders import SavesOrder, order_of, text_at
from .plans import PlanOrder, Same, check_same, same_of
from .reads import HostsReader
from .records import known_hosts, same_machines

log = logging.getLogger(__name__)

ROUND_TRIPS = 20
"""From the command to begin an epoch to its start, so that it has reached every rank by then."""

MIN_HEAD_START_NS = 20_000_000


def same_of_study(plan: StudyPlan) -> Same:
    """What must be the same on all hosts."""
    settings = plan.spec.model_dump_json()
    return {"to": plan.url, "settings": hashlib.sha256(settings.encode()).hexdigest()}


def same_of_run(plan: Plan, mixed: Mixed | None) -> Same:
    """What must be the same on all hosts. ``mixed``: the checkpoints during the run."""
    saves = {}
    if mixed is not None:
        saves = same_of_study(mixed.plan) | {"checkpoint-every": str(mixed.every)}
    return saves | same_of(plan)


class JobHosts(Hosts):
    """All hosts of a job, as the controller sees them. ``number``: of the plan they measure."""

    def __init__(self, control: Control, number: int = 0) -> None:
        self._control, self._number = control, number
        self.names = [host.label for host in control.meeting.hosts]

    def control(self) -> Control:
        """The other hosts, which from now on do what they are asked for with this plan."""
        control = self._control
        if control.used != self._number:
            control.used = self._number
            control.tell(Agent.use, self._number)
        return control

    def of(self, plan: Plan, held: ExitStack) -> Hosts:
        control = self._control
        if plan.accelerators != control.meeting.accelerators:
            share_of(plan.accelerators, self.count)
        control.plans = number = control.plans + 1
        held.callback(control.tell, Agent.forget, number)
        shares = control.share(plan.accelerators)
        orders = {host: (number, PlanOrder.of(plan, share)) for host, share in enumerate(shares)}
        mine = same_of(replace(plan, engine_choice=""))
        _, *others = control.ask_each(Agent.open, orders, lambda *_: mine)
        check_same(control, mine, others)
        return JobHosts(control, number)

    def begin(self, doc: TrainingRecord | CheckpointRecord, ranks: int) -> None:
        self.control().set_clocks(again=True)
        doc.job.hosts = known_hosts(self.control(), ranks)
        doc.job.started_by = self.control().meeting.launch.by
        doc.findings += same_machines(doc.job.hosts)
        if isinstance(doc, TrainingRecord) and doc.job.workload.accelerator.sync == "step":
            meeting, port = self.control().meeting, self.control().barrier_port
            waits = self.control().ask(Agent.barrier, lambda: barrier_s(meeting, port), port)
            doc.job.barrier_s = max(waits)

    def end(self, doc: TrainingRecord | CheckpointRecord, ranks: int) -> None:
        """Measure the clocks a last time; a lost host keeps what is known of it."""
        try:
            self.control().set_clocks(again=True)
        except (HostLostError, KeyboardInterrupt) as error:
            log.info("the clocks were not measured again: %s", error)
        if doc.job.hosts:
            doc.job.hosts = known_hosts(self.control(), ranks)

    def share(self, ranks: int) -> Sequence[range]:
        return self.control().share(ranks)

    def agent(self, storage: Storage, *, plans: bool = False) -> HostAgent:
        return HostsAgent(storage, self.control, plans=plans)

    def check(self) -> None:
        for peer in self._control.peers:
            if peer.ready():
                peer.inbox.append(peer.next())

    def whole(self, plan: Plan) -> Plan:
        if not plan.subject.users:
            return plan
        found = self.control().ask(Agent.tried, lambda: list(plan.tried))
        return replace(plan, tried=[rank for host in found for rank in host])

    def prepare(self) -> None:
        self.control().ask(Agent.prepare, lambda: None)

    def head_start_ns(self, least_ns: int) -> int:
        return max(least_ns, MIN_HEAD_START_NS, ROUND_TRIPS * self.control().round_trip_ns)

    def loading(self, phase: Phase, copies: Copies, meeting: str | None) -> tuple[Load, Crew]:
        """Raises HostLostError if a host was lost before."""
        control = self.control()
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
        order = order_of(phase, control.phases, copies, meeting)
        begins = begins_of(control, order, shares, port)
        local = ForkedCrew(len(shares[0]), task, first=0, world=phase.accelerators)
        return task, HostsCrew(control, local, begins, task.counters)

    @contextmanager
    def saving(self, plan: StudyPlan, root: CheckpointRoot) -> Iterator[Crew]:
        control, ranks = self.control(), plan.spec.ranks
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
            found = self.control().ask(Agent.text, lambda: text_at(plan.url, key), key)
        finally:
            root.remove(step)
        for name, seen in zip(self.names, found, strict=True):
            if seen != text:
                raise UsageError(
                    f"{name} does not see what {self.names[0]} writes to {root.url}",
                    remedy="name a place that all hosts share, with the same path on each",
                )

    def rendezvous(self) -> str:
        return self.control().rendezvous()

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
