"""The record of two variants that were measured in turns: ``ab.json``, in a directory of its own.

The variants have run directories below it, ``a`` and ``b``, with a ``run.json`` and events each.
The record is written again after every round, so that a process that is killed loses none.

A ``Claim`` is what may be said about two groups of runs, and on what it rests. The unit across runs
is the run: repetitions of one run share its hour, its cache and its neighbours, so that they tell
nothing about another day. Ratios are candidate over baseline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..settings.base import Count, Figure, Record, RecordHead, Share, load_record, save_record
from .metrics import ComparedMetric
from .verdict import Estimate

AB_FILE = "ab.json"
SCHEMA_VERSION = "1.0"

MAX_ROUNDS = 200

Name = Literal["A", "B"]
"""A is the baseline, B the candidate."""

Ended = Literal["", "significant", "rounds", "budget"]
"""Why no further round was taken. ``rounds``: all that were planned; ``budget``: no time was left.
Empty: it still runs, or was interrupted, or has failed."""


Answer = Literal["different", "equal", "inconclusive"]
"""``equal``: the interval of the ratio lies within the threshold. ``different``: it excludes 1, and
does not lie within the threshold. ``inconclusive``: everything else."""

Basis = Literal["runs", "drift", "rounds"]
"""``runs``: the runs of both variants, by permutation. ``drift``: the interval adds the variance
between runs that is known from earlier runs on the same host and storage. ``rounds``: both variants
were measured in turns, with a sequential test."""

Degrees = Annotated[int, Field(strict=True, ge=0)]


Method = Literal["ranks", "t", "sequential", ""]
"""How the interval was found. ``ranks``: the exact permutation test of rank sums, inverted. ``t``:
Student's t of the log ratio. ``sequential``: repeated intervals, for rounds."""


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
    ratio: Estimate | None = None  # n: runs of the smaller variant, or rounds
    threshold: Share
    p: Share | None = None
    basis: Basis | None = None
    method: Method = ""
    confidence: Share = 0.95  # of the interval; above 0.95 where several metrics are told at once
    baseline_runs: Count = 0
    candidate_runs: Count = 0
    more: Count | None = None  # further runs of each, or rounds, that would tell; None: unknown
    why: str = ""  # it is inconclusive


class AbVariant(Record):
    """One of the two configurations, and the directory of its run."""

    name: Name
    run: str  # its run directory, relative to the record's
    data: str  # directory or URL, as the user wrote it or the repeated run has it
    workload: str
    settings: list[str] = []  # KEY=VALUE that were given for this variant alone
    repeats: str = ""  # the id of the run whose workload and settings are repeated
    validity: Literal["valid", "invalid", "unknown"] = "unknown"
    identity: dict[str, str] = {}  # ask.compare.identity, of its run
    warm_up_s: Figure | None = None  # how long the repetition took that is not counted


class AbTrial(Record):
    """One repetition of a variant. A figure that was not measured has no key."""

    seconds: Figure
    figures: dict[str, Figure] = {}  # by the names of schema.metrics


class AbRound(Record):
    """One repetition of each variant, with the same seed."""

    round: Count  # from 0; also the number of the repetition in both runs
    first: Name  # which variant was measured first
    began: str  # ISO 8601, UTC
    seed: Count
    a: AbTrial
    b: AbTrial


class AbRecord(RecordHead):
    """The content of ``ab.json``. Ratios and claims are B over A."""

    schema_version: str = SCHEMA_VERSION
    status: Literal["running", "ok", "failed", "interrupted"] = "running"
    ended: Ended = ""
    metric: ComparedMetric  # whose difference ends the rounds
    threshold: Annotated[float, Field(strict=True, gt=0, le=100)]  # 0.05: 5 %
    max_rounds: Annotated[int, Field(strict=True, ge=1, le=MAX_ROUNDS)]  # as asked for
    # As many as the budget has time for, known before the first one; None: not known yet.
    planned_rounds: Annotated[int, Field(strict=True, ge=1, le=MAX_ROUNDS)] | None = None
    budget_s: Figure | None = None
    a: AbVariant
    b: AbVariant
    rounds: list[AbRound] = Field(default=[], max_length=MAX_ROUNDS)
    claims: list[Claim] = []  # that of ``metric`` first

    @property
    def variants(self) -> tuple[AbVariant, AbVariant]:
        return self.a, self.b


def save_ab(directory: Path, record: AbRecord) -> None:
    """Write ``ab.json`` atomically. Raises IobenchError."""
    save_record(directory / AB_FILE, record)


def load_ab(directory: Path) -> AbRecord:
    """Load ``ab.json`` of a directory. Raises IobenchError as ``load_record`` does."""
    what = "a directory of iobench ab"
    return load_record(directory / AB_FILE, AbRecord, version=SCHEMA_VERSION, what=what)
