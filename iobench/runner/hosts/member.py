"""A host that is not the first one, and measures: its ranks, its page cache, its counters."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import fields
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Any

from ...base.errors import (
    HostLostError,
    InterruptedRun,
    IobenchError,
    MissingObjectError,
    WorkerError,
)
from ...base.text import quoted
from ...checkpoint.catalog import CheckpointRoot
from ...host import timeline
from ...host.nfs import MountStats
from ...host.resources import Snapshot
from ...host.timeline import Array
from ...judge.rebuild import rebuild
from ...record.host import Host
from ...record.run import EVENTS_FILE
from ...record.training import Repetition
from ...record.typed import OneOf, to_text
from ...storage import open_storage
from ...storage.base import Storage, read_object
from ...storage.scratch import scratch
from .. import messages
from ..agent import CacheState, Change, FetchCounter, HostAgent, Used
from ..barrier import HostsBarrier
from ..cache import cached_keys
from ..calibration.bench import Bench
from ..checkpoint_plan import at_scale
from ..crew import ForkedCrew
from ..messages import Answer, Command, Last, Link, Recorded, Stop, Task, Tried
from ..phase import Phase, PhaseSettings, Saving
from ..plan import Plan
from ..results import begin_record, new_directory, write_document
from ..study import rank_maker
from ..tasks.checkpoint import Checkpoint, CheckpointRank
from ..tasks.load import Load
from ..tasks.model_load import LoadOrder, ModelLoad
from ..third_party import prepare_library
from .hosts import Begin, Order, PhaseOrder, SaveOrder
from .meeting import Meeting, set_interface
from .reads import HaveRead, LocalReads, ReadNow
from .serving import PlanOrder, Same, Served, arguments_of, remote, result_of, same_of
from .wire import Error, Message

PATIENCE_S = 30.0
"""How long after Ctrl-C a host waits for the first one to end the run."""

TURN_S = 0.2
"""How long to wait for a message until the next turn."""

COUNTERS_S = 1.0
"""Time between two messages with the counters of the ranks."""

COLLECT_S = 3.0
"""How long the ranks have to say what they recorded, after the first host was lost."""


def phase_of(settings: PhaseSettings, bench: Bench, saving: Saving | None) -> Phase:
    """The phase that is ordered, over the dataset as this host sees it."""
    same = {each.name: getattr(settings, each.name) for each in fields(settings)}
    reader = bench.reader(settings.source, settings.reading, settings.copy_bytes)
    return Phase(reader=reader, saving=saving, **same)


AnyCommand = Annotated[Command, OneOf(*Command.__subclasses__())]

FromRank = tuple[
    int,
    Annotated[
        Answer,
        OneOf(
            *messages.Point.__subclasses__(),
            *(messages.PartSaved, messages.Recorded, messages.Ended),
        ),
    ],
]
"""What a rank of another host says, with its number."""

Counted = tuple[int, Array]
"""What the ranks of a host have done so far, from a rank on: rows of ``runner.counters``."""


class _Ranks:
    """The ranks of this host in one phase, or in a study. ``held``: until they have ended."""

    def __init__(self, begin: Begin, task: Task, held: ExitStack) -> None:
        self.begin, self.task, self.held = begin, task, held
        self.crew = ForkedCrew(begin.count, task, first=begin.first, world=begin.world)
        self.working = list(self.crew.ranks)
        self.kept: dict[int, Recorded] = {}
        self.failed = False

    def receive(self, timeout_s: float) -> Iterator[tuple[int, Answer]]:
        """What the ranks say, until one of them fails; their last messages are kept."""
        for rank, answer in self.crew.receive(list(self.working), timeout_s):
            if isinstance(answer, Last):
                self.working.remove(rank)
            if isinstance(answer, Recorded):
                self.kept[rank] = answer
            yield rank, answer

    def collect(self) -> None:
        """Keep what the ranks have recorded, since the first host can't collect it any more."""
        began = time.monotonic()
        self.crew.stop()
        for rank in self.working:
            with suppress(IobenchError):
                self.crew.send(rank, Stop())  # at the next point at which it waits
        while self.working and (waited := time.monotonic() - began) < COLLECT_S:
            if waited > COLLECT_S / 2:
                self.crew.hurry(self.working)
            try:
                deque(self.receive(0.2), maxlen=0)
            except IobenchError:
                self.working = [rank for rank in self.working if self.crew.is_alive(rank)]


class _Data:
    """What is measured now: a storage, and the bench of a plan if there is one.

    ``reads``: the storage that plain reads are made of, where that is another one.
    """

    def __init__(
        self,
        storage: Storage,
        results: Path,
        plan: Plan | None = None,
        reads: Storage | None = None,
    ) -> None:
        self.agent, self._held, self._bench = HostAgent(storage), ExitStack(), None
        if plan is not None:
            self._bench = Bench(plan=plan, agent=self.agent, directory=results, seconds=0.0)
            self._held.push(self._bench.held)
        folder = self._held.enter_context(scratch("curve"))
        self.reads = LocalReads(reads or storage, folder)
        self.before: Snapshot | None = None

    @property
    def bench(self) -> Bench:
        """Raises WorkerError if no plan is measured."""
        if self._bench is None:
            raise WorkerError("no plan is measured on this host")
        return self._bench

    @property
    def has_events(self) -> bool:
        return self._bench is not None and bool(self._bench.parts)

    def close(self) -> None:
        self._held.close()


class Member:
    """Does what the first host of a meeting asks for, until it says goodbye.

    A remote call that fails is answered with its error. If the first host is lost, what was begun
    here ends.
    """

    def __init__(self, meeting: Meeting, served: Served) -> None:
        """Raises what the first host would be told."""
        self.meeting, self.served = meeting, served
        (self.wire,) = meeting.peers
        self.bye: Message | None = None
        self.ranks: _Ranks | None = None
        self._interrupted: float | None = None
        self._told_interrupt = False
        self._counted = 0.0
        self._held = ExitStack()
        self._known: dict[int, _Data] = {}
        self._used = 0
        plan, storage, reads = served.plan, served.storage, None
        if served.saves is not None:
            self.root = CheckpointRoot.open(served.saves.url)
            storage = storage or self.root.storage
        if plan is not None:
            storage = plan.storage
        if served.loads is not None:
            storage, reads = served.loads.plan.storage, served.loads.plan.direct
        if storage is not None:
            self._add(0, storage, plan, reads)

    def _add(
        self, number: int, storage: Storage, plan: Plan | None, reads: Storage | None = None
    ) -> None:
        self._known[number] = _Data(storage, self.served.results, plan, reads)
        self._held.callback(self.forget, number)

    @property
    def data(self) -> _Data:
        """Raises WorkerError if there is none."""
        if self._used not in self._known:
            raise WorkerError(f"{self.wire.name} has not said what is measured")
        return self._known[self._used]

    def serve(self) -> int:
        """Do what the first host asks, until it ends the run; return the exit code.

        Raises the error with which the run has ended, HostLostError if the first host is lost, and
        InterruptedRun if it does not end the run within ``PATIENCE_S`` after Ctrl-C. Nothing that
        was begun is left in any case. What is measured then is kept in the results of this host.
        """
        with self._held:
            try:
                return self._serve()
            except IobenchError as error:
                if self._used in self._known and self.data.has_events:
                    try:
                        place = f"see it with: iobench report {quoted(str(self._keep_part(error)))}"
                        error.remedy = f"this host's part of the run is kept; {place}"
                    except IobenchError as failed:
                        error.remedy = f"this host's part of the run could not be kept: {failed}"
                raise

    def _keep_part(self, error: IobenchError) -> Path:
        """Write the events, and a record of what follows from them: the rates of these ranks alone.

        Return its directory.
        """
        bench, hosts, here = self.data.bench, self.meeting.hosts, self.meeting.launch.index
        plan = bench.plan
        directory = new_directory(bench.directory, f"{plan.workload.name}-host-{here}")
        path = directory / EVENTS_FILE
        events = timeline.write_events(path, bench.parts)
        doc = begin_record(
            plan,
            bench.agent,
            run_id=directory.name,
            command=self.served.command,
            rules=self.served.rules,
        )
        doc.files = {EVENTS_FILE: events}
        doc.status = "interrupted" if isinstance(error, InterruptedRun) else "failed"
        doc.error = f"the part of {hosts[here].label} of {len(hosts)} hosts; {error.what}"
        begun = [number for phase, number, _, _ in bench.parts if phase == "measure"]
        doc.job.repetitions = [
            Repetition(
                seed=plan.seed + number,
                accelerators=len({rank for _, _, rank, _ in bench.parts}),
                sync=plan.workload.accelerator.sync,
                complete=False,
            )
            for number in range(max(begun, default=-1) + 1)
        ]
        write_document(directory, rebuild(doc, timeline.read_events(path)))
        return directory

    def _serve(self) -> int:
        def note(number: int, frame: object) -> None:
            self._interrupted = self._interrupted or time.monotonic()

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self.bye is None:
                self._look()
                self._wait()
                self._obey_all()
                if self.bye is None:
                    self._turn()
        finally:
            self._end()
            self.meeting.wires.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        if why := self.wire.read(self.bye, str):
            interrupted = self.bye.code == InterruptedRun.exit_code
            error = (InterruptedRun if interrupted else IobenchError)(f"the run has ended: {why}")
            error.exit_code = self.bye.code
            raise error
        return self.bye.code

    def _look(self) -> None:
        """Tell the first host of Ctrl-C or SIGTERM on this one. Raises as ``serve``."""
        if self._interrupted is None:
            return
        if not self._told_interrupt:
            self._told_interrupt = True
            self.wire.send(Message("interrupted"))
        if time.monotonic() - self._interrupted > PATIENCE_S:
            raise InterruptedRun("interrupted; the controller did not end the run")

    def _wait(self) -> None:
        """Wait a moment for something to do."""
        if self.ranks is None or self.ranks.failed:
            wait([self.wire.fileno()], timeout=TURN_S)
            return
        crew = self.ranks.crew
        crew.wait([self.wire.fileno(), *map(crew.pipe, self.ranks.working)], TURN_S)

    def _obey_all(self) -> None:
        """Do what the first host has asked until now."""
        while self.bye is None and self.wire.poll():
            self._obey(self.wire.receive())

    def _obey(self, message: Message) -> None:
        if message.kind == "bye":
            self.bye = message
            self.wire.close()  # the first host waits for that
            return
        act = getattr(type(self), message.what, None)
        if message.kind != "call" or not getattr(act, "is_remote", False):
            raise HostLostError(f"{self.wire.name} has sent {message.kind} {message.what[:80]}")
        assert act is not None
        arguments = self.wire.read(message, arguments_of(act))
        try:
            answer = to_text(act(self, *arguments), result_of(act))
        except HostLostError:
            raise
        except IobenchError as error:
            self._refuse(error, message.code)
            return
        if message.code and not self.wire.closed:
            self.wire.send(Message("answer", code=message.code, body=answer))

    def _refuse(self, error: IobenchError, call: int = 0) -> None:
        self.wire.send(Message("refused", code=call, body=to_text(error, Error)))

    def _report(self, what: str, value: object, kind: Any) -> None:
        """Tell the first host something unasked. ``kind``: the type of the value."""
        self.wire.send(Message("report", what, body=to_text(value, kind)))

    @remote
    def share(self, tasks: tuple[int, ...], seen: str) -> None:
        """Do these tasks, and report each result."""
        if (shared := self.served.shared) is None:
            raise WorkerError("this host's command has no tasks to share")

        def check() -> None:
            self._look()
            self._obey_all()
            if self.bye is not None:
                raise _Over

        try:
            name = self.meeting.hosts[self.meeting.launch.index].label
            with closing(shared.work(name, tasks, seen, check)) as results:
                for result in results:
                    self._report("result", result, shared.kind)
        except _Over:
            pass

    # Plans

    @remote
    def open(self, number: int, order: PlanOrder) -> Same:
        """Make a plan; what the first host has made must be the same."""
        self.served.permitted.check(order)
        plan = order.make()
        self._add(number, plan.storage, plan)
        return same_of(plan)

    @remote
    def use(self, number: int) -> None:
        """From now on, all is about this plan."""
        self._used = number

    @remote
    def forget(self, number: int) -> None:
        """This plan is measured no more."""
        if number in self._known:
            data = self._known.pop(number)
            data.close()
            if number:
                data.bench.plan.storage.close()

    @remote
    def tried(self) -> list[Tried]:
        return list(self.data.bench.plan.tried)

    @remote
    def prepare(self) -> None:
        """Prepare what a loader library needs, or learn what the tensors of a model must hold."""
        if self.served.loads is not None:
            self.served.loads.prepare()
            return
        prepare_library(self.data.bench.plan, self.data.bench.held, proof=False)

    # What is asked of every host, however many ranks it has

    @remote
    def read(self, order: ReadNow) -> HaveRead:
        return self.data.reads.read(order)

    @remote
    def cache(self, what: Change, keys: tuple[str, ...]) -> CacheState:
        """Bring the page cache into a state for these objects, or for those that a plan reads."""
        return self.data.agent.cache(what, keys or cached_keys(self.data.bench.plan))

    @remote
    def describe(self) -> Host:
        return self.data.agent.describe()

    @remote
    def fetch_counter(self, keys: tuple[str, ...], direct: bool) -> FetchCounter:
        """For these objects, or for those that a plan reads."""
        return self.data.agent.fetch_counter(keys or self.data.bench.plan.keys, direct=direct)

    @remote
    def mount(self) -> MountStats | None:
        return self.data.agent.mount_counters()

    @remote
    def snapshot(self) -> None:
        """Take one, and keep it."""
        self.data.before = self.data.agent.snapshot()

    @remote
    def used(self) -> Used | None:
        """What this host did since the last snapshot."""
        before = self.data.before
        return self.data.agent.used_since(before) if before is not None else None

    @remote
    def text(self, key: str) -> str:
        """A short text at the place of the checkpoints."""
        assert self.served.saves is not None
        return text_at(self.served.saves.url, key)

    # The ranks

    @remote
    def begin(self, begin: Begin) -> None:
        """Start the ranks of this host."""
        barrier, order = None, begin.order
        if isinstance(order, PhaseOrder):
            self.data.reads.storage.close()  # the ranks inherit no file that a curve has opened
            if order.in_step:
                barrier = HostsBarrier(
                    begin.number,
                    offset_ns=0 if order.meeting else begin.offset_ns,
                    members=begin.count if order.meeting else 0,
                )
        with ExitStack() as held:
            task = self._task(order, barrier, held)
            if barrier is not None:
                held.callback(self.meeting.wires.meet(barrier.said, barrier.pass_on(self.wire)))
            self.ranks = _Ranks(begin, task, held.pop_all())
        self.ranks.crew.start()

    def _task(self, order: Order, barrier: HostsBarrier | None, held: ExitStack) -> Task:
        """Raises UsageError for what this host's command does not name."""
        if isinstance(order, LoadOrder):
            if self.served.loads is None:
                raise WorkerError("no model is loaded on this host")
            return ModelLoad(held.enter_context(self.served.loads.of(order)))
        if order.rendezvous or (isinstance(order, PhaseOrder) and order.meeting):
            set_interface(self.wire.connection)
        if isinstance(order, SaveOrder):
            return Checkpoint(self._saver(order.rendezvous, order.scale))
        saving = None
        if order.saves is not None:
            every, first = order.saves
            saver = self._saver(order.rendezvous)
            saving = Saving(every=every, first=first, records=None, saver=saver)
        phase = phase_of(order.phase, self.data.bench, saving)
        return Load(phase, barrier, meeting=order.meeting)

    def _saver(self, rendezvous: str, scale: str = "") -> Callable[[Link], CheckpointRank]:
        """``scale``: that of a pilot; empty: that of the study."""
        plan = self.served.saves
        assert plan is not None
        # The context only removes a directory in which these ranks do not meet.
        with rank_maker(at_scale(plan, scale or plan.spec.scale), self.root, rendezvous) as make:
            return make

    @remote
    def to_rank(self, rank: int, command: AnyCommand) -> None:
        """Send a command to a rank; its instants are on the clock of this host."""
        if self.ranks is not None:
            self._or_refused(lambda ranks: ranks.crew.send(rank, command))

    @remote
    def stop(self) -> None:
        """Set the flag ``stopped`` of the ranks."""
        if self.ranks is not None:
            self.ranks.crew.stop()

    @remote
    def hurry(self, ranks: list[int]) -> None:
        """Ask these ranks to send their last message now."""
        if self.ranks is not None:
            self.ranks.crew.hurry([rank for rank in ranks if rank in self.ranks.working])

    @remote
    def end_ranks(self, grace_s: float) -> None:
        """End all ranks within this time, and keep their events for this host's part."""
        if self.ranks is None:
            return
        ranks, self.ranks = self.ranks, None
        ranks.crew.stop()
        ranks.crew.end(grace_s)
        ranks.held.close()
        if isinstance(order := ranks.begin.order, PhaseOrder):
            self.data.bench.parts += [
                (order.phase.name, order.phase.repetition, rank, recorded.columns)
                for rank, recorded in sorted(ranks.kept.items())
            ]

    def _end(self) -> None:
        if self.ranks is not None:
            self.ranks.collect()
            self.end_ranks(1.0)

    def _turn(self) -> None:
        """Pass on what the ranks have sent, and from time to time what they have done."""
        if self.ranks is None:
            return
        if self.ranks.working and not self.ranks.failed:
            self._or_refused(self._pass_on)
        task, mine = self.ranks.task, self.ranks.crew.ranks
        if isinstance(task, Load) and (now := time.monotonic()) - self._counted >= COUNTERS_S:
            self._counted = now
            rows = task.counters.read()[mine.start : mine.stop]
            self._report("counted", (mine.start, rows), Counted)

    def _pass_on(self, ranks: _Ranks) -> None:
        for rank, answer in ranks.receive(0.0):
            self._report("rank", (rank, answer), FromRank)

    def _or_refused(self, act: Callable[[_Ranks], None]) -> None:
        """Do this with the ranks; their failure is the first host's affair, that of the wire not.

        After a failure nothing more is heard from the ranks, until the first host ends them.
        """
        assert self.ranks is not None
        try:
            act(self.ranks)
        except HostLostError:
            raise
        except IobenchError as error:
            self.ranks.failed = True
            self._refuse(error)


class _Over(Exception):
    """The controller has ended the job while this host was at work."""


def text_at(url: str, key: str) -> str:
    """A short text at this place; empty if there is none. No handle of it stays open."""
    storage = open_storage(url)
    try:
        return read_object(storage, key, max_bytes=1000).decode(errors="replace")
    except MissingObjectError:
        return ""
    finally:
        storage.close()
