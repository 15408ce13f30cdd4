"""What ``run`` and ``check`` say on stderr: how long the run should take, and how far it is."""

from __future__ import annotations

import time

from ..record.plan import PartTime
from ..runner.budget import USUAL_S
from ..runner.estimate import TimeLeft, shorter, total
from ..runner.options import Options
from ..runner.plan import Plan
from .live import Live, about
from .terminal import warn

MIN_TOLD_S = 10.0
"""A run that should end sooner says nothing."""

ESTIMATE_S = 1.0
"""Time between two estimates of the time left within a phase."""


class RunTold(Live):
    """The progress of a run: the parts with their times before it, and then how far it is."""

    def __init__(self, plan: Plan, options: Options, *, quiet: bool, hosts: int = 1) -> None:
        super().__init__(quiet=quiet)
        self._time = TimeLeft(plan, options, hosts)
        self._warned = False
        self._estimated: float | None = None  # when the time left was estimated

    def fitted(self, plan: Plan, options: Options) -> None:
        """Tell what was fitted into the time that the user has given."""
        self._time = TimeLeft(plan, options, self._time.hosts)
        self.announce(always=not options.budget.usual)

    def announce(self, *, always: bool = False) -> None:
        """Tell what the run will do and how long it should take, part by part.

        Of a run that takes long it warns, with what makes it shorter. ``always``: tell also of a
        short run, and warn of none, since the user has said how long it may take.
        """
        budget = self._time.options.budget
        usual = budget.usual
        self._warned = always or usual
        plan, parts = self._time.plan, self._time.parts()
        if total(parts)[0] < MIN_TOLD_S and not always:
            return
        self.note(f"run of {plan.workload.name} on {plan.data}:")
        width = max(len(part.what) for part in parts)
        for part in parts:
            self.note(f"  {part.what:<{width}}  {_time_of(part)}")
        if len(parts) > 1:
            seconds, more = total(parts)
            self.note(f"  {'in all':<{width}}  {about(seconds, more=more)}")
        if usual:
            self.note(
                f"fitted to {about(budget.seconds or 0.0, more=False)}; a longer --budget gives "
                "tighter intervals"
            )
        self._warn(parts)

    def rate(self, samples_per_s: float) -> None:
        """The ceilings are measured, so the time of the repetitions is known better."""
        self._time.samples_per_s = samples_per_s
        self._expect()
        seconds, more = self._time.seconds()
        if seconds < MIN_TOLD_S:
            return
        self.note(f"the stages are measured: {about(seconds, more=more)} left")
        self._warn(self._time.parts())

    def finished(self, part: str, seconds: float) -> None:
        self._time.finished(part, seconds)
        self._expect()

    def phase(self, title: str) -> None:
        if self._estimated is None:
            self._expect()
        super().phase(title)

    def detail(self, text: str) -> None:
        now = time.monotonic()
        if self._estimated is None or now - self._estimated >= ESTIMATE_S:
            self._expect()
        super().detail(text)

    def _expect(self) -> None:
        """Estimate anew how long the rest takes."""
        self._estimated = time.monotonic()
        seconds, more = self._time.seconds()
        self.expect(seconds, more=more)

    def _warn(self, parts: list[PartTime]) -> None:
        seconds, more = total(parts)
        if self._quiet or self._warned or seconds <= USUAL_S:
            return
        self._warned = True
        how = shorter(self._time.plan, parts)
        remedy = f"; to make it shorter, add {' or '.join(how)}" if how else ""
        warn(f"this run takes {about(seconds, more=more)}{remedy}")


def _time_of(part: PartTime) -> str:
    if part.seconds is None:
        return f"not known: {part.not_known}"
    return about(part.seconds, more=part.at_least)
