"""A run of requests that arrive by themselves, whatever they ask for: windows of them at one rate.

A repetition is a window with all stages, and one without each of some stages, in turns. Where no
rate is given, the largest one that holds the limit is searched first. Whatever happens on the way,
what was measured until then is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from ..base.errors import UsageError
from ..base.units import format_count, format_duration
from ..host.tables import Described, RequestColumns, write_requests
from ..judge.serving import MAX_LATE_WINDOWS, window_client_bound
from ..record.run import EVENTS_FILE, RequestsRecord
from ..record.serving import FoundRate, KvCacheRun, RequestWindow, ServingRun
from ..serve.arrivals import Arrivals
from ..settings.kv_cache import KvScenario
from ..settings.scenario import Scenario
from ..storage.base import Storage
from .agent import HostAgent
from .budget import Budget
from .options import Observer, VerbOptions
from .results import Ending, failures_recorded, new_record, storage_facts
from .trials import STEP, LoadSearch, seed_of, take_turns

R = TypeVar("R", bound=RequestsRecord)

MAX_RATE = 50_000.0
"""Requests/s. One process can't issue more, however little it does for each."""

DRAIN_S, DRAIN = 2.0, 10.0
"""Requests may wait for a reader for so long after the last arrival, or for so many limits."""

SEARCHED = 8
"""So many windows a search for the largest rate usually has."""

PART = "window"
"""The name of a window in the budget."""

ROUNDS = 3
"""So many repetitions decide: one has no interval, and that of two is three times as wide as that
of three (Student's t)."""

ENOUGH = 70
"""Requests of a window, by chance a few less: 50 tell whether their latency grows."""

LEAST_LATE = 2
"""Windows without a stage that are made after the repetitions: one alone would have no interval."""


@dataclass(frozen=True, kw_only=True)
class RequestsPlan:
    """A run of requests with all decisions made.

    ``rate``: requests/s; None: the largest one that holds the limit, which is to be found.
    ``usual_s``: how long a window is without a budget; None: as it is.
    """

    scenario: Scenario | KvScenario
    arrivals: Arrivals
    rate: float | None
    repetitions: int
    seed: int
    usual_s: float | None = None

    @property
    def seconds(self) -> float:
        """For which requests arrive in a window."""
        return self.scenario.duration

    @property
    def kinds(self) -> Sequence[str]:
        """Of the windows in each repetition; the one with all stages is the first."""
        raise NotImplementedError

    @property
    def arrivals_together(self) -> float | None:
        """Of a trace: the share of arrivals at the instant of another one."""
        trace = self.arrivals.trace
        return trace.together if trace is not None else None

    def fitted(
        self,
        budget: Budget,
        *,
        found: float | None = None,
        made: int = 0,
        besides_s: float | None = None,
    ) -> Self:
        """The plan with windows of which all fit into the budget. Raises UsageError.

        ``found``: the rate of the repetitions, once a window has been measured, ``made``: so many
        of theirs, and ``besides_s``: what the last of them took besides its requests.
        """
        rate, usual_s, kinds = found or self.rate, self.usual_s or self.seconds, len(self.kinds)
        seconds = budget.window_s(
            usual_s,
            max(1, kinds * self.repetitions + (SEARCHED if rate is None else 0) - made),
            least=0 if found else kinds,
            fewer=max(0, 2 * min(ROUNDS, self.repetitions) - made) if rate else 0,
            useful_s=ENOUGH / rate if rate else 0.0,
            besides_s=besides_s,
        )
        scenario = self.scenario.model_copy(update={"duration": seconds})
        return replace(self, scenario=scenario, usual_s=usual_s)


def asked_rate(
    scenario: Scenario | KvScenario, arrivals: Arrivals, *, find_max: bool, other: str = ""
) -> float | None:
    """The rate of the repetitions in requests/s; None: the largest one is to be found.

    Raises UsageError for none, in which ``other`` names one more remedy, and for one that can't be
    measured.
    """
    if find_max:
        return None
    rate, seconds = scenario.arrivals.rate or arrivals.usual_rate(), scenario.duration
    if rate is None:
        raise UsageError(
            "how many requests arrive in a second is not known",
            remedy="give --rate, or --find-max to look for the largest rate that holds the limit"
            + other,
        )
    if not 0 < rate <= MAX_RATE:
        raise UsageError(
            f"a rate of {rate:,.6g} requests/s is out of range: one process can issue at most "
            f"{MAX_RATE:,.0f} requests/s",
            remedy="give a lower --rate, and run more processes at the same time if you need more",
        )
    if rate * seconds < 1:
        raise UsageError(
            f"{rate:g} requests/s for {format_duration(seconds)} are less than one request",
            remedy="give a longer --duration, or a higher --rate",
        )
    return rate


class RequestsRun(Generic[R]):
    """A run of requests while it is measured. A subclass says what a ``window`` of it is.

    ``columns``: of its events. ``whole``: what is told of a window with all stages. ``run_id``: by
    default the name of the directory.
    """

    columns: ClassVar[Described]
    whole: ClassVar[str]

    def __init__(
        self,
        kind: type[R],
        job: ServingRun | KvCacheRun,
        plan: RequestsPlan,
        storage: Storage,
        directory: Path,
        options: VerbOptions,
        observer: Observer,
        *,
        run_id: str = "",
    ) -> None:
        self.plan, self.directory, self.observer = plan, directory, observer
        self.budget, self.break_lock = options.budget, options.break_lock
        self.agent = HostAgent(storage)
        self.windows: list[RequestColumns] = []
        self.besides_s: float | None = None  # what the last whole window took besides its requests
        self.rate = plan.rate
        self.doc = new_record(
            kind,
            run_id or directory.name,
            options.command,
            rules=options.rules,
            hosts=self.agent.describe_all(),
            storage=storage_facts(storage),
            job=job,
        )

    def begin(self) -> None:
        """What is measured before any request arrives."""

    def window(self, kind: Any, rate: float, seed: int) -> RequestWindow:
        """Measure a window of this kind, and record it. Raises IobenchError."""
        raise NotImplementedError

    def rates(self) -> RateSearch:
        """The search for the largest rate, which has tried none."""
        raise NotImplementedError

    def run(self) -> R:
        with failures_recorded(self.doc) as ending:
            self.begin()
            if self.rate is None:
                self._search()
            if self.rate is not None:
                self.repeat(self.rate)
        return self.write(ending)

    def write(self, ending: Ending) -> R:
        """Write the events and the record, and return that; raise the failure that ended it."""
        path = self.directory / EVENTS_FILE
        return ending.write(
            self.doc,
            self.directory,
            files=lambda: {EVENTS_FILE: write_requests(path, self.windows, self.columns)},
        )

    @property
    def drain_s(self) -> float:
        """How long after the last arrival a request may wait."""
        return max(DRAIN_S, DRAIN * self.doc.job.limit_s)

    def repeat(self, rate: float) -> None:
        """Measure all repetitions, or as many as the budget allows, but at least one.

        ``ROUNDS`` repetitions come before the windows without one stage each. Where a window takes
        more besides its requests than was planned, those of the rounds after it are shorter. The
        first window of a place may take longer than the others, so a stage for which there seemed
        to be no time is left out after them, at the same requests, as often as the time allows, but
        at least twice. Further repetitions come after that.
        """
        total, kinds = self.plan.repetitions, [*self.plan.kinds]
        rounds, plans, made = min(ROUNDS, total), {0: self.plan}, 0

        def measure(kind: str, turn: int, of: int = total) -> None:
            nonlocal made
            what = self.whole if kind == "repetition" else kind.replace("-", " ")
            self.observer.phase(f"{format_count(rate)} requests/s {what}, {turn + 1} of {of}")
            if turn not in plans:
                plans[turn] = shortened()
            self.plan = plans[turn]
            self._measured(kind, rate, self.seed(turn))
            made += 1
            while made < len(kinds) and not fits(rounds * len(kinds) - made):
                kinds.pop()

        def shortened() -> RequestsPlan:
            first = replace(plans[0], usual_s=plans[0].seconds)
            return first.fitted(self.budget, found=rate, made=made, besides_s=self.besides_s)

        def fits(windows: int) -> bool:
            return self.budget.fits(windows * (shortened().seconds + (self.besides_s or 0.0)))

        def left() -> list[str]:
            return [kind for kind in self.plan.kinds if kind not in kinds]

        def stop(turn: int, active: Sequence[str]) -> bool:
            wanted = rounds if left() else total
            return turn >= wanted or (turn > 0 and not fits(len(active)))

        take_turns(self.plan.kinds, measure, stop, is_active=lambda kind: kind in kinds)
        self._late(left(), rounds, lambda kind, turn: measure(kind, turn, rounds))
        if left():
            take_turns(
                kinds,
                lambda kind, number: measure(kind, rounds + number),
                lambda number, active: rounds + number >= total or not fits(len(active)),
            )

    def _measured(self, kind: str, rate: float, seed: int) -> RequestWindow:
        """A window, after which it is known what one takes besides its requests."""
        window = self.window(kind, rate, seed)
        if kind in ("repetition", "find-max"):
            self.besides_s = max(0.0, self.budget.last_s(PART) - window.seconds)
        return window

    def _late(self, kinds: list[str], rounds: int, measure: Callable[[str, int], None]) -> None:
        """Windows of these kinds after the repetitions: as many rounds as the time allows."""

        def fits(windows: int) -> bool:
            return self.budget.fits(windows * self.budget.last_s(PART))

        def stop(turn: int, active: Sequence[str]) -> bool:
            return turn >= rounds or (turn >= LEAST_LATE and not fits(len(active)))

        while kinds and (rounds < LEAST_LATE or not fits(LEAST_LATE * len(kinds))):
            kinds.pop()
        take_turns(kinds, measure, stop)

    def seed(self, repetition: int) -> int:
        """Of all windows of a repetition."""
        return seed_of(self.plan.seed, "repetition", repetition)

    def _search(self) -> None:
        """Find the largest rate that holds the limit, and keep what is known after each window."""
        job, search, late = self.doc.job, self.rates(), 0
        job.found = FoundRate()
        while (rate := search.next_load()) is not None:
            each = self.budget.longest_s(PART)
            # The repetitions at the rate that is found are still to come, or one of them at least.
            rounds = 1 if job.found.low is None else min(ROUNDS, self.plan.repetitions)
            if not self.budget.fits(each, keeping_s=rounds * len(self.plan.kinds) * each):
                search.bound = "the budget had no time for another rate"
                break
            self.observer.phase(f"trying {format_count(rate)} requests/s")
            seed = seed_of(self.plan.seed, "find-max", len(job.of("find-max")))
            window = self._measured("find-max", rate, seed)
            held = bool(window.holds) and window.steady is not False
            why = "" if held else window_client_bound([window], job.limit_s)
            late = late + 1 if why else 0
            if late == MAX_LATE_WINDOWS:
                search.bound = f"the client could not tell: {why}"
                break
            if not why:
                search.tried(rate, passed=held)
            job.found = search.found()
        job.found = search.found()
        self.rate = job.rate = job.found.low
        if self.rate is not None:
            self.plan = self.plan.fitted(self.budget, found=self.rate, besides_s=self.besides_s)
            job.scenario = self.plan.scenario


FIRST_RATE = 32.0
"""Requests/s with which a search begins where nothing better is known."""

CLOSE = 1.1
"""The search ends where the rate that fails is at most so many times the one that holds."""


class RateSearch(LoadSearch):
    """The largest rate in requests/s that holds the limit. ``bound``: what ended the search."""

    bound = ""

    def between(self, low: float | None, high: float) -> float | None:
        if low is None:
            return max(self.least, high / STEP) if high > self.least else None
        return math.sqrt(low * high) if high > CLOSE * low else None

    def found(self) -> FoundRate:
        """What is known so far."""
        low, high = self.edge()
        bound = self.bound if high is None or low is None else ""
        if not bound and low is not None and high is None:
            bound = f"no rate above {low:g} requests/s was tried"
        elif not bound and low is None and high == self.least:
            bound = f"even {high:g} requests/s do not hold the limit"
        return FoundRate(low=low, high=high, bound=bound)
