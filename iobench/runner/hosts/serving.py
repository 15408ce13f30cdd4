"""A host that is not the first one: it does what the first host asks, until that ends the job.

The first host calls deeds: methods of what serves it here, by their names. Arguments, results and
reports are JSON, which is checked against the types that the method declares. A deed that fails is
answered with its error. If the first host is lost, what was begun here ends.

What all hosts measure: before anything is done, they must be about to do the same.

Then the first host may ask for other plans: trials, sides, changes. What a host reads at a URL, and
what it runs as code, is still decided by its own command.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import wait
from typing import Any, TypeVar, get_type_hints

from ...base.errors import HostLostError, InterruptedRun, IobenchError, UsageError
from ...base.text import printable
from ...record.typed import Count, to_text
from ...settings.base import apply_overrides
from ...settings.workload import Workload, code_of, option_texts
from ...storage import below, is_local
from ..plan import Plan, make_plan
from .meeting import Meeting
from .wire import Error, Message

PATIENCE_S = 30.0
"""How long after Ctrl-C a host waits for the first one to end the run."""

TURN_S = 0.2
"""How long to wait for a message until the next turn."""

F = TypeVar("F", bound=Callable[..., Any])


def deed(function: F) -> F:
    """Mark a method as one that the first host may call here."""
    function.is_deed = True  # type: ignore[attr-defined]
    return function


@cache
def arguments_of(function: Callable[..., object]) -> Any:
    """The type of a deed's arguments, as a tuple."""
    hints = get_type_hints(function, include_extras=True)
    return tuple[tuple(hint for name, hint in hints.items() if name != "return")]  # type: ignore[misc]


@cache
def result_of(function: Callable[..., object]) -> Any:
    """The type of what a deed returns."""
    return get_type_hints(function, include_extras=True)["return"]


class Serving:
    """Serves the first host of a meeting until it says goodbye.

    A verb adds deeds; to ``turn`` what is done between two of them, and to ``close`` how its work
    ends.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        (self.wire,) = meeting.peers
        self.bye: Message | None = None
        self._interrupted: float | None = None
        self._told_interrupt = False

    def serve(self) -> int:
        """Do what the first host asks, until it ends the run; return the exit code.

        Raises the error with which the run has ended, HostLostError if the first host is lost, and
        InterruptedRun if it does not end the run within ``PATIENCE_S`` after Ctrl-C. Nothing that
        was begun is left in any case.
        """

        def note(number: int, frame: object) -> None:
            self._interrupted = self._interrupted or time.monotonic()

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self.bye is None:
                self.look()
                self.wait()
                self.obey_all()
                if self.bye is None:
                    self.turn()
        finally:
            self.close()
            self.meeting.wires.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        if why := self.wire.read(self.bye, str):
            interrupted = self.bye.code == InterruptedRun.exit_code
            error = (InterruptedRun if interrupted else IobenchError)(f"the run has ended: {why}")
            error.exit_code = self.bye.code
            raise error
        return self.bye.code

    def look(self) -> None:
        """Tell the first host of Ctrl-C or SIGTERM on this one. Raises as ``serve``."""
        if self._interrupted is None:
            return
        if not self._told_interrupt:
            self._told_interrupt = True
            self.wire.send(Message("interrupted"))
        if time.monotonic() - self._interrupted > PATIENCE_S:
            raise InterruptedRun("interrupted; the controller did not end the run")

    def wait(self) -> None:
        """Wait a moment for something to do."""
        wait([self.wire.fileno()], timeout=TURN_S)

    def obey_all(self) -> None:
        """Do what the first host has asked until now."""
        while self.bye is None and self.wire.poll():
            self.obey(self.wire.receive())

    def turn(self) -> None:
        """Called again and again, at least each 0.2 s while no deed takes longer."""

    def close(self) -> None:
        """Called at the end, also after an error."""

    def report(self, what: str, value: object, kind: Any) -> None:
        """Tell the first host something unasked. ``kind``: the type of the value."""
        self.wire.send(Message("report", what, body=to_text(value, kind)))

    def refuse(self, error: IobenchError, call: int = 0) -> None:
        self.wire.send(Message("refused", code=call, body=to_text(error, Error)))

    def obey(self, message: Message) -> None:
        if message.kind == "bye":
            self.bye = message
            self.wire.close()  # the first host waits for that
            return
        act = getattr(type(self), message.what, None)
        if message.kind not in ("call", "tell") or not getattr(act, "is_deed", False):
            raise HostLostError(f"{self.wire.name} has sent {message.kind} {message.what[:80]}")
        assert act is not None
        arguments = self.wire.read(message, arguments_of(act))
        try:
            answer = to_text(act(self, *arguments), result_of(act))
        except HostLostError:
            raise
        except IobenchError as error:
            self.refuse(error, message.code)
            return
        if message.kind == "call" and not self.wire.closed:
            self.wire.send(Message("answer", code=message.code, body=answer))


Same = dict[str, str]
"""What a host is about to do, by the names of what must be the same on all hosts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOrder:
    """A plan that each other host makes, too; see ``make_plan``.

    ``first`` and ``count``: the ranks of the host that gets it.
    """

    workload: Workload
    data: str
    origin: str | None
    accelerators: int
    seed: int
    first: int
    count: Count

    @classmethod
    def of(cls, plan: Plan, share: range) -> PlanOrder:
        """The order for the host that has this share of the ranks."""
        return cls(
            workload=plan.workload,
            data=plan.data,
            origin=plan.origin,
            accelerators=plan.accelerators,
            seed=plan.seed,
            first=share.start,
            count=len(share),
        )

    def make(self) -> Plan:
        """Raises as ``make_plan``."""
        return make_plan(
            self.workload,
            self.data,
            origin=self.origin,
            accelerators=self.accelerators,
            repetitions=1,
            seed=self.seed,
            here=range(self.first, self.first + self.count),
        )


def same_of(plan: Plan) -> Same:
    """What of a plan must be the same on all hosts."""
    header = plan.manifest.header.model_dump_json()
    return {
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


def reaching_out(settings: Mapping[str, object]) -> dict[str, object]:
    """What the settings of a workload name as code or write to, and the options of its storage.

    The settings may be wrong, or a part of a workload.
    """
    found, options = code_of(settings), settings.get("storage")
    if isinstance(options, Mapping):
        found |= {f"storage.{key}": text for key, text in option_texts(options).items()}
    log = settings.get("log")
    if isinstance(log, Mapping) and log.get("to") is not None:
        found["log.to"] = log["to"]
    return found


@dataclass(frozen=True, kw_only=True)
class Permitted:
    """What the command of this host names: a plan of the first host may not name anything else.

    That is so of code, of the options of storages, and of URLs, but not of directories of this
    host, which are only read. ``places``: the URLs, also of data below them. ``said``: the rest, by
    the keys of ``reaching_out``.
    """

    places: Sequence[str] = ()
    said: Mapping[str, Sequence[object]] = field(default_factory=dict)

    @classmethod
    def by(
        cls,
        workloads: Iterable[Mapping[str, object]],
        overrides: Iterable[str],
        places: Sequence[str],
    ) -> Permitted:
        """By the settings of workloads that the command names, and by its overrides."""
        said: dict[str, list[object]] = {}
        for settings in [*workloads, *(apply_overrides({}, [text]) for text in overrides)]:
            for key, value in reaching_out(settings).items():
                said.setdefault(key, []).append(value)
        return cls(places=places, said=said)

    @classmethod
    def of(cls, plan: Plan) -> Permitted:
        """By a plan of this host itself."""
        places = [place for place in (plan.data, plan.origin) if place]
        return cls.by([plan.workload.model_dump(mode="json")], (), places)

    def check(self, order: PlanOrder) -> None:
        """Raises UsageError."""
        wrong = [place for place in (order.data, order.origin) if place and not self._knows(place)]
        settings = reaching_out(order.workload.model_dump(mode="json"))
        wrong += [
            f"{key}={value}"
            for key, value in settings.items()
            if value not in self.said.get(key, ())
        ]
        if wrong:
            raise UsageError(
                f"the first host asks for {printable(wrong[0], 100)}, which the command of this "
                "host does not name",
                remedy="start the same command on all hosts, and name it in --data, in --set or by "
                "the file of a workload",
            )

    def _knows(self, place: str) -> bool:
        name = place.partition("?")[0].rpartition("/")[2]
        known = [each for url in self.places for each in (url, below(url, name))]
        return is_local(place) or (place in known and name not in ("", "..", "."))
