"""The hosts of a job, as the story of a run, a study or a curve sees them on the first one."""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ...base.errors import HostLostError, UsageError
from ...checkpoint.catalog import CheckpointRoot
from ...checkpoint.manifest import part_name
from ...host.fio_depth import Depth
from ...host.nfs import MountStats
from ...host.resources import Snapshot
from ...record.curve import MeasuredWith
from ...record.host import Host, JobHost
from ...record.run import Finding, TrainingRecord
from ...storage.base import Storage
from ..agent import CacheState, Change, FetchCounter, HostAgent, Used
from ..barrier import HostsBarrier, lead_steps
from ..checkpoint_plan import StudyPlan
from ..crew import Crew, ForkedCrew
from ..curve.places import Place, Places
from ..curve.reader import PlaceReader
from ..messages import Task
from ..model_load_plan import LoadPlan
from ..options import Mixed
from ..phase import Phase
from ..plan import Plan
from ..tasks.load import Load
from .control import Control, check_same
from .crew import HostsCrew
from .hosts import Begin, Hosts, JobRecord, Order, PhaseOrder
from .launch import share_of
from .meeting import set_interface
from .member import Member, text_at
from .reads import HaveRead, LocalReads, ReadNow, rows_of, summed, together
from .serving import PlanOrder, Same, same_of

log = logging.getLogger(__name__)

ROUND_TRIPS = 20
"""From the command to begin an epoch to its start, so that it has reached every rank by then."""

MIN_HEAD_START_NS = 20_000_000

_HEAD_START_S = 0.05
"""From the order to read to its instant; beside that, ``ROUND_TRIPS``, and the time
that it takes to send the places."""

_PLACES_PER_S = 200_000
"""Places that are sent to a host in a second, at the least."""


def same_of_study(plan: StudyPlan) -> Same:
    """What must be the same on all hosts."""
    settings = plan.spec.model_dump_json()
    return {"to": plan.url, "settings": hashlib.sha256(settings.encode()).hexdigest()}


def same_of_loads(plan: LoadPlan) -> Same:
    """What must be the same on all hosts."""
    files = repr([(shard.key, shard.size) for shard in plan.weights.shards])
    settings = plan.spec.model_dump_json()
    return {
        "data": plan.location,
        "objects": hashlib.sha256(files.encode()).hexdigest(),
        "settings": hashlib.sha256(settings.encode()).hexdigest(),
    }


def same_of_run(plan: Plan, mixed: Mixed | None) -> Same:
    """What must be the same on all hosts. ``mixed``: the checkpoints during the run."""
    saves = {}
    if mixed is not None:
        saves = same_of_study(mixed.plan) | {"checkpoint-every": str(mixed.every)}
    return saves | same_of(plan)


def same_machines(hosts: Sequence[JobHost]) -> list[Finding]:
    """A finding if processes of one machine count as hosts of their own."""
    machines: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        machines.setdefault(host.machine or f"unknown {number}", []).append(number)
    shared = [numbers for numbers in machines.values() if len(numbers) > 1]
    if not shared:
        return []
    names = "; ".join(" and ".join(f"host {each}" for each in numbers) for numbers in shared)
    return [
        Finding(
            rule="hosts.same-machine",
            level="warning",
            evidence=f"{names} are the same machine: they share its cores, memory and page cache",
            remedy="start one process on each machine",
        )
    ]


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
            control.tell(Member.use, self._number)
        return control

    def of(self, plan: Plan, held: ExitStack) -> Hosts:
        control = self._control
        if plan.accelerators != control.meeting.accelerators:
            share_of(plan.accelerators, self.count)
        control.plans = number = control.plans + 1
        held.callback(control.tell, Member.forget, number)
        shares = control.share(plan.accelerators)
        orders = {host: (number, PlanOrder.of(plan, share)) for host, share in enumerate(shares)}
        mine = same_of(replace(plan, engine_choice=""))
        _, *others = control.ask_each(Member.open, orders, lambda *_: mine)
        check_same(control, mine, others)
        return JobHosts(control, number)

    def begin(self, doc: JobRecord, ranks: int) -> None:
        self.control().set_clocks(again=True)
        self._name_hosts(doc, ranks)
        doc.job.started_by = self.control().meeting.launch.by
        doc.findings += same_machines(doc.job.hosts)
        if isinstance(doc, TrainingRecord) and doc.job.workload.accelerator.sync == "step":
            doc.job.barrier_s = self.control().barrier_s()

    def end(self, doc: JobRecord, ranks: int) -> None:
        """Measure the clocks a last time; a lost host keeps what is known of it."""
        try:
            self.control().set_clocks(again=True)
        except (HostLostError, KeyboardInterrupt) as error:
            log.info("the clocks were not measured again: %s", error)
        if doc.job.hosts:
            self._name_hosts(doc, ranks)

    def _name_hosts(self, doc: JobRecord, ranks: int) -> None:
        """Whose the ranks are, in a training also those of its checkpoints."""
        doc.job.hosts = self.control().known_hosts(ranks)
        if doc.checkpoints is not None:
            doc.checkpoints.hosts = doc.job.hosts

    def only_one(self, what: str, remedy: str) -> None:
        raise UsageError(
            f"{what} is measured on one host, and this job has {self.count}", remedy=remedy
        )

    def share(self, ranks: int) -> Sequence[range]:
        return self.control().share(ranks)

    def agent(self, storage: Storage, *, plans: bool = False) -> HostAgent:
        return HostsAgent(storage, self, plans=plans)

    def check(self) -> None:
        for peer in self._control.peers:
            if peer.ready():
                peer.wire.put_back([peer.next()])

    def whole(self, plan: Plan) -> Plan:
        if not plan.subject.users:
            return plan
        found = self.control().ask(Member.tried, lambda: list(plan.tried))
        return replace(plan, tried=[rank for host in found for rank in host])

    def prepare(self) -> None:
        self.control().ask(Member.prepare, lambda: None)

    def head_start_ns(self, least_ns: int) -> int:
        return max(least_ns, MIN_HEAD_START_NS, ROUND_TRIPS * self.control().round_trip_ns)

    def loading(self, phase: Phase, meeting: str | None) -> tuple[Load, Crew]:
        """Raises HostLostError if a host was lost before."""
        control = self.control()
        shares = control.share(phase.accelerators)
        with_ranks = [host for host, share in enumerate(shares) if share]
        meeting = self.rendezvous() if phase.exchanges_gradients else None
        barrier = None
        if len(with_ranks) > 1 and (phase.in_step or meeting is not None):
            barrier = HostsBarrier(control.phases + 1, members=len(shares[0]) if meeting else 0)
        saving = phase.saving
        order = PhaseOrder(
            phase=phase,
            saves=(saving.every, saving.first) if saving is not None else None,
            rendezvous=saving.rendezvous if saving is not None else "",
            meeting=meeting,
            in_step=barrier is not None,
        )
        task = Load(phase, barrier, meeting=meeting)
        crew = self.crew(task, phase.accelerators, order)
        if barrier is not None:
            always = with_ranks if meeting is not None else []
            crew.ended = lead_steps(control.meeting.wires, control.meeting.peers, barrier, always)
        return task, crew

    def crew(self, task: Task, ranks: int, order: Order) -> HostsCrew:
        control = self.control()
        control.set_clocks()
        control.phases += 1
        here, *others = control.share(ranks)
        now = time.monotonic_ns()
        begins = {
            peer: Begin(
                first=share.start,
                count=len(share),
                world=ranks,
                offset_ns=peer.clock.there(now) - now,
                number=control.phases,
                order=order,
            )
            for peer, share in zip(control.peers, others, strict=True)
            if share
        }
        local = ForkedCrew(len(here), task, first=0, world=ranks)
        return HostsCrew(control, local, begins, task)

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
            found = self.control().ask(Member.text, lambda: text_at(plan.url, key), key)
        finally:
            root.remove(step)
        for name, seen in zip(self.names, found, strict=True):
            if seen != text:
                raise UsageError(
                    f"{name} does not see what {self.names[0]} writes to {root.url}",
                    remedy="name a place that all hosts share, with the same path on each",
                )

    def rendezvous(self) -> str:
        """The URL of a port of this host, for torch."""
        meeting = self.control().meeting
        set_interface(meeting.peers[0].connection)
        address = meeting.launch.address
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return f"tcp://{f'[{address}]' if ':' in address else address}:{port}"

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
        return HostsReader(self, local, places, name=name, members=some)


class HostsAgent(HostAgent):
    """The agents of all hosts as one: what it is asked, it asks all of them at the same time."""

    def __init__(
        self,
        storage: Storage,
        hosts: JobHosts,
        members: Sequence[int] = (),
        *,
        plans: bool = False,
    ) -> None:
        """Make the agents of some hosts (``members``), or of all.

        ``plans``: the objects are those that a plan's loader reads, which each host knows.
        """
        super().__init__(storage)
        self._hosts, self.plans = hosts, plans
        self.members = members or range(hosts.count)
        self._one = HostAgent(storage)
        self._all: FetchCounter | None = None

    @property
    def control(self) -> Control:
        """The other hosts, which measure with the plan of this agent."""
        return self._hosts.control()

    def describe_all(self) -> list[Host]:
        return self.control.ask(Member.describe, self.describe)

    def _sent(self, keys: Sequence[str]) -> tuple[str, ...]:
        """What says on the other hosts which objects these are."""
        return () if self.plans else tuple(keys)

    def cache(self, what: Change, keys: Sequence[str]) -> CacheState:
        asked = dict.fromkeys(self.members, (what, self._sent(keys)))
        states = self.control.ask_each(Member.cache, asked, lambda *_: self._one.cache(what, keys))
        ratios = tuple(state.ratio for state in states)
        known = [ratio for ratio in ratios if ratio is not None]
        worst = max(known) if len(known) == len(ratios) else None
        how = next((state.how for state in states if state.ratio == worst), states[0].how)
        return CacheState(worst, how, ratios)

    def fetch_counter(self, keys: Sequence[str], *, direct: bool) -> FetchCounter:
        """The counter that all hosts have, if they have the same."""
        if self._all is None:
            found = self.control.ask(
                Member.fetch_counter,
                lambda: self._one.fetch_counter(keys, direct=direct),
                self._sent(keys),
                direct,
            )
            self._all = found[0]
            if any(each.by != found[0].by for each in found):
                without = next(
                    (each for each in found if each.by == "nobody"),
                    FetchCounter(by="nobody", how="not measured: the hosts have other counters"),
                )
                self._all = without
        return self._all

    def mount_counters(self) -> MountStats | None:
        """The sums of the counters of all hosts' mounts; None if one is missing."""
        if self._all is None or self._all.by != "mount":
            return None
        found = self.control.ask(Member.mount, self._one.mount_counters)
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return known[0]._replace(read_bytes=sum(each.read_bytes for each in known))

    def snapshot(self) -> Snapshot:
        """Of this host; the others take one at the same time, and keep it."""
        taken: list[Snapshot] = []

        self.control.ask(Member.snapshot, lambda: taken.append(self._one.snapshot()))
        return taken[0]

    def used_since(self, before: Snapshot) -> Used:
        """What all hosts did since the last snapshot; this one's alone if a host is lost."""
        own = self._one.used_since(before)
        try:
            return replace(own, hosts=tuple(self.control.ask(Member.used, lambda: own)))
        except HostLostError as error:
            log.info("%s", error)
            return own


class HostsReader:
    """Reads on some hosts of a job, ``members``, by their numbers; see ``curve.reader``.

    ``name``: of the curve. ``points``: what each of the hosts read, point after point.
    """

    def __init__(
        self,
        hosts: JobHosts,
        local: LocalReads,
        places: Places,
        *,
        name: str,
        members: Sequence[int],
    ) -> None:
        self._hosts, self.local, self.name, self.members = hosts, local, name, members
        self.hosts = len(members)
        self.max_bytes, self.once = places.max_bytes, places.once
        self.agent: HostAgent = HostsAgent(local.storage, hosts, members)
        self.points: list[Sequence[Depth]] = []
        self.by: MeasuredWith = "engine"
        self.program = "threads of this process"
        self.notes: list[str] = []

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        """Read on all members, each with its share of the places and of the reads in flight.

        Raises StorageError or NoMemoryError of the first host that failed, with its name;
        HostLostError.
        """
        control = self._hosts.control()
        control.set_clocks()
        count = self.hosts
        trips_s = ROUND_TRIPS * control.round_trip_ns / 1e9
        head_s = _HEAD_START_S + trips_s + len(places) / _PLACES_PER_S
        at_ns = time.monotonic_ns() + round(head_s * 1e9)

        def order(member: int) -> tuple[ReadNow]:
            keys, rows = rows_of(places[self.members.index(member) :: count])
            now = ReadNow(
                curve=self.name,
                keys=keys,
                rows=rows,
                in_flight=max(1, in_flight // count),
                seconds=seconds,
                most=-(-most // count),
                at_ns=control.there(member, at_ns),
                max_bytes=self.max_bytes,
                once=self.once,
            )
            return (now,)

        found = control.ask_each(
            Member.read, {member: order(member) for member in self.members}, self.local.read
        )
        self._say(found)
        depths = tuple(together([each.depth for each in found]))
        self.points.append(depths)
        return summed(depths, in_flight=in_flight, given=len(places))

    def _say(self, found: Sequence[HaveRead]) -> None:
        """With what the hosts read; hosts with and without fio together count as without."""
        first = found[0]
        other = next((each for each in found if each.by != "fio"), first)
        self.by, self.program = other.by, other.program
        if len({each.program for each in found}) > 1:
            self.program = " and ".join(sorted({each.program for each in found}))
        self.notes = []
        for member, each in zip(self.members, found, strict=True):
            self.notes += [f"{self._hosts.names[member]}: {note}" for note in each.notes]
        if self.hosts > 1:
            self.notes.append(
                f"of all {self.hosts} hosts together; percentiles are those of the host on which "
                "they are largest"
            )
