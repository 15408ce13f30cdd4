"""``iobench ab``: measure two configurations in turns until their difference is told."""

from __future__ import annotations

from ..ask.compare.sequential import METRICS, MIN_TURNS, primary, verdict
from ..base.errors import UnknownNameError, UsageError
from ..judge.statistics import NOISE
from ..record.ab import AbRecord, Side
from ..report.ab import answer, planned_line, turn_line
from ..runner.ab import AbOptions, SideAsked, are_same, compare_in_turns, shortest_s
from ..runner.budget import Budget
from .gate import status_of
from .hosts import check_one_host
from .live import Live
from .outcome import finish_ab
from .requests.measure import AbRequest
from .sides import sides_of
from .terminal import whole_seconds


def run(request: AbRequest) -> int:
    check_one_host("ab")
    names = [metric.name for metric in METRICS]
    if request.metric not in names:
        raise UnknownNameError("metric", request.metric, names)
    threshold, budget_s = _threshold(request), request.budget_s
    a, b = sides_of(request)
    told = ShownTurns(quiet=request.quiet)
    options = AbOptions(
        results=request.results,
        metric=request.metric,
        threshold=threshold,
        max_turns=request.max_turns,
        budget=Budget(seconds=budget_s, began_s=request.began_s),
        rules=request.rules,
        command=request.command,
        break_lock=request.break_lock,
    )
    told.announce(a, b, options.max_turns)
    try:
        record, directory = compare_in_turns(a, b, options, told)
    finally:
        told.close()
    code = finish_ab(record, directory, kind=request.format, new=True)
    return code if request.fail_on is None else gated(request, record)


def gated(request: AbRequest, record: AbRecord) -> int:
    """The exit code of ``--fail-on``: 4 if B is worse, or as ``--if-inconclusive`` says.

    What is told of a side that is INVALID is inconclusive.
    """
    found = verdict(primary(record))
    inconclusive = [f"side {side.name} is INVALID" for side in invalid_sides(record)]
    if found == "inconclusive":
        inconclusive.append(answer(record).removeprefix("inconclusive").lstrip(": "))
    return status_of(
        request, failed=[answer(record)] if found == "worse" else [], inconclusive=inconclusive
    )


def invalid_sides(record: AbRecord) -> list[Side]:
    return [side for side in record.sides if side.validity == "invalid"]


def _threshold(request: AbRequest) -> float:
    """``--threshold``, or the change of ``--fail-on``, which must not be another one."""
    given = [each for each in (request.threshold, request.fail_on) if each is not None]
    if len(set(given)) > 1:
        raise UsageError(
            "--fail-on and --threshold are different, though both are the threshold",
            remedy="give one of them",
        )
    return given[0] if given else NOISE


class ShownTurns(Live):
    """What is told while the turns are taken: the time they take, and a line for each."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet, lines=True)
        self._turn_s = 0.0

    def announce(self, a: SideAsked, b: SideAsked, max_turns: int) -> None:
        """Tell what will be measured, and how long it takes at least."""

        for name, side in (("A", a), ("B", b)):
            given = f", {', '.join(side.settings)}" if side.settings else ""
            self.note(f"{name}: {side.plan.workload.name} on {side.plan.data}{given}")
        if are_same(a.plan, b.plan):
            self.note("A and B are the same: a difference would be a false alarm")
        least = shortest_s(a.plan, b.plan)
        if least is None:
            self.note("how long it takes is known after the warm-up of both sides")
            return
        first = whole_seconds((1 + MIN_TURNS) * least)
        line = f"a warm-up, then {MIN_TURNS} turns of 2 repetitions: at least {first}"
        if max_turns > MIN_TURNS:
            most = whole_seconds((1 + max_turns) * least)
            line += f"; if they do not tell, up to {max_turns} turns: at least {most}"
        self.note(line)

    def planned(self, record: AbRecord, turn_s: float) -> None:
        self._turn_s = turn_s
        self._expect(record)
        self.note(planned_line(record, turn_s))

    def turned(self, record: AbRecord) -> None:
        self._expect(record)
        self.note(turn_line(record))

    def _expect(self, record: AbRecord) -> None:
        """The turns that an answer takes at least; after these, each may be the last."""

        self.expect(max(1, MIN_TURNS - len(record.turns)) * self._turn_s, more=True)
