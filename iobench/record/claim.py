"""What may be said about two groups of runs, and on what it rests.

The unit across runs is the run: repetitions of one run share its hour, its cache and its
neighbours, so that they tell nothing about another day. Ratios are candidate over baseline.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..settings.base import Record
from ..settings.numbers import Count, Figure, Share
from .verdict import Estimate

Answer = Literal["different", "equal", "inconclusive"]
"""``equal``: the interval of the ratio lies within the threshold. ``different``: it excludes 1, and
does not lie within the threshold. ``inconclusive``: everything else."""

Basis = Literal["runs", "drift", "turns"]
"""``runs``: the runs of both sides, by permutation. ``drift``: the interval adds the variance
between runs that is known from earlier runs on the same host and storage. ``turns``: both sides
were measured in turns, with a sequential test."""

Degrees = Annotated[int, Field(strict=True, ge=0)]


Method = Literal["ranks", "t", "sequential", ""]
"""How the interval was found. ``ranks``: the exact permutation test of rank sums, inverted. ``t``:
Student's t of the log ratio. ``sequential``: repeated intervals, for turns."""


class Drift(Record):
    """How much the medians of equal runs differ from one another: of one host and storage.

    ``sd``: the standard deviation of the natural logarithm of a run's median, which is about the
    relative one, with ``degrees`` of freedom. It holds the noise within a run, too.
    """

    metric: str
    sd: Figure
    degrees: Degrees
    runs: Count
    first: str = ""  # when the first of these runs was made: ISO 8601, UTC
    last: str = ""


class Claim(Record):
    """The answer for one metric. ``better`` is None unless the two are different."""

    metric: str
    answer: Answer
    better: bool | None = None
    ratio: Estimate | None = None  # n: runs of the smaller side, or turns
    threshold: Share
    p: Share | None = None
    basis: Basis | None = None
    method: Method = ""
    confidence: Share = 0.95  # of the interval; above 0.95 where several metrics are told at once
    baseline_runs: Count = 0
    candidate_runs: Count = 0
    more: Count | None = None  # further runs on each side, or turns, that would tell; None: unknown
    why: str = ""  # it is inconclusive
