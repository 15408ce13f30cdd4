"""The decision on what limits a run: one table, in the order in which it is applied.

The first row that has an answer decides. Where stages were left out in turns with the repetitions,
their gains decide. Without them the ceilings and the time that the run spent on each stage do. The
checks of the rows are in ``criteria``, and in ``watched`` for a training that was watched.
``docs/verdict.md`` shows the table, and a test compares the page with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import criteria
from . import watched as waits
from .cache import MAX_SERVED, MIN_CACHED
from .evidence import (
    AT_LIMIT,
    CPU_BUSY,
    CPU_NEAR,
    IN_TURNS,
    MIN_TOLD_STEPS,
    NOISE_OF_FILL,
    Bottleneck,
    Case,
    Decision,
    Evidence,
    too_short,
)
from .evidence import MIN_ROUNDS as ROUNDS_OF_WORKERS
from .figures.ablations import FEW_ROUNDS, MIN_ROUNDS
from .statistics import NOISE
from .user_loader import MIN_HELD_BACK, MOST_OF_MAKING, MOST_OF_WAITS


class Named(str):
    """Words for the answer of a row whose check names the bottleneck itself, by a Decision."""

    __slots__ = ()


class Criterion(NamedTuple):
    """One line of the table.

    ``source``: the threshold of the check, and where that comes from. ``check``: whether the row
    has the answer, or the reason why it has; if that is false or empty, the next row is asked.
    ``tested``: the answer rests on what leaving stages out brought.
    """

    when: str
    bottleneck: Bottleneck | Named
    source: str
    check: Callable[[Case], Decision | str | bool | None]
    tested: bool = False

    def answer(self, case: Case) -> Decision | None:
        """The answer of the row; None if it has none."""
        found = self.check(case)
        if isinstance(found, Decision):
            return found
        if not found or isinstance(self.bottleneck, Named):
            return None
        return Decision(
            bottleneck=self.bottleneck,
            basis="tested" if self.tested else "inferred",
            reason=found if isinstance(found, str) else "",
        )


class Criteria(NamedTuple):
    """Rows for the cases of one kind."""

    title: str
    applies: Callable[[Case], bool]
    rows: tuple[Criterion, ...]


def decide(evidence: Evidence) -> Decision:
    """The bottleneck of the run, and why; ``undecided`` with the reason where nothing tells."""
    return _first(TABLE, Case(evidence))


def by_inference(evidence: Evidence) -> Decision:
    """The bottleneck by the ceilings and by where the time went, not by ablations."""
    return _by_ceilings(Case(evidence))


def _by_ceilings(case: Case) -> Decision:
    return _first(BY_CEILINGS, case)


def _first(parts: Iterable[Criteria], case: Case) -> Decision:
    """The answer of the first row that has one; the last row of the table always has."""
    rows = (row for part in parts if part.applies(case) for row in part.rows)
    return next(found for row in rows if (found := row.answer(case)) is not None)


def _is_too_short(case: Case) -> Decision | None:
    short = too_short(case.evidence)
    if short is None or criteria.storage_is_far_too_slow(case):
        return None
    return Decision(bottleneck="undecided", reason=short.why, too_short=short)


def _is_not_measured(case: Case) -> str:
    return "" if case.evidence.measured is not None else "no repetition was completed"


def _hidden_by_the_fill(case: Case) -> Decision | None:
    """Batches from the fill hide what a stage costs, so that no gain refutes none."""
    return _by_ceilings(case) if case.evidence.drained else None


def _not_refuted(case: Case) -> Decision:
    """What the ceilings say, unless leaving that stage out brought nothing.

    Where most time went to a part that brought nothing, such as the waits of ranks for a slow one,
    the ceilings alone decide.
    """
    gains, known = case.evidence.gains, criteria.refuting(case)
    guess = _by_ceilings(known)
    if guess.bottleneck in gains:
        guess = _first(BY_CEILINGS[1:], known)
    if guess.bottleneck not in ("undecided", "accelerator", *gains):
        return guess
    tried = ", ".join(stage for stage in gains if stage != "accelerator")
    return Decision(
        bottleneck="undecided",
        basis="tested",
        reason=f"leaving out a stage ({tried or 'the accelerator'}) brought no significant gain",
    )


_NOISE = f"{NOISE:.0%}: machines drift by as much within hours, and MLPerf Storage's bound"
_CHOICE = "a choice"

BY_GAINS: tuple[Criteria, ...] = (
    Criteria(
        "Any run",
        lambda case: True,
        (
            Criterion(
                "the run is too short, or its data too small, to tell more than that a storage is "
                "far too slow",
                "undecided",
                f"{MIN_TOLD_STEPS} steps of a rank, {ROUNDS_OF_WORKERS} rounds of its workers: "
                "in the first round all of them fill their queues; the storage alone delivers less "
                f"than half of what is required, and reads took {waits.CLEAR:g} times as long as "
                "the rest",
                _is_too_short,
            ),
            Criterion("no repetition was completed", "undecided", "", _is_not_measured),
            Criterion(
                "the sampler of a user's loader takes most of the waits for batches",
                "loader",
                f"more than {MOST_OF_WAITS:g} of them: {_CHOICE}",
                criteria.sampler_takes_most,
            ),
        ),
    ),
    Criteria(
        "Leaving a stage out brought a significant gain",
        lambda case: case.any_gain,
        (
            Criterion(
                "a cache served the reads, and only leaving out the storage gains",
                "undecided",
                f"more than {MAX_SERVED:.0%} of the reads ({_CHOICE}); a gain whose interval is "
                f"above {1 + NOISE:.2f} ({_NOISE}); of fewer than {MIN_ROUNDS} rounds, whose "
                f"interval (Student's t) is too wide, a gain above {1 + FEW_ROUNDS:.2f} and above "
                "the spread of the repetitions",
                criteria.only_reading_gains,
                tested=True,
            ),
            Criterion(
                "the largest gain is less than what is lost beside it, a user's loader is not much "
                "faster over kept samples, and most of making a batch is collate_fn",
                "prep",
                "gain below the square root of 1 / utilization; "
                f"{MOST_OF_MAKING:g} of the time ({_CHOICE}), and more than "
                f"{criteria.MOSTLY:g} of the rate of its own ceiling",
                criteria.collating_costs_more,
            ),
            Criterion(
                "the largest gain is less than what is lost beside it, and a user's loader spends "
                "most of its waits handing batches over",
                "loader",
                f"gain below the square root of 1 / utilization; more than {criteria.MOSTLY:g} of "
                "the waits, or of the rate of its own ceiling: more than the rest",
                criteria.hand_over_costs_more,
            ),
            Criterion(
                "storage gains most, but less than what is lost beside it, and a user's loader was "
                "not run without its preparation",
                "prep",
                "gain of the storage below the square root of 1 / utilization",
                criteria.prep_was_not_left_out,
            ),
            Criterion(
                "storage or prep gains most, and leaving out the barrier about as much",
                "sync",
                f"{criteria.UNEVEN:g} of that gain, in logarithms: {_CHOICE}",
                criteria.ranks_are_uneven,
                tested=True,
            ),
            Criterion(
                "storage or prep gains most, all cores are busy, and the stages share them",
                "cpu",
                f"within {CPU_NEAR:.0%} of the CPU ceiling, {CPU_BUSY:.0%} of the cores, "
                f"{criteria.MIN_SHARED:.0%} of the CPU time for each stage: {_CHOICE}",
                criteria.gains_share_the_cores,
                tested=True,
            ),
            Criterion(
                "prep gains most, of a user's loader whose reads were left out with it",
                Named("storage, prep, or both"),
                f"prep if the run reached {criteria.MIN_EXPLAINED:.0%} of its rate over the page "
                f"cache; else by the waits of its workers, {waits.CLEAR:g} times as long for one: "
                f"{_CHOICE}",
                criteria.read_and_prepared_in_one,
            ),
            Criterion(
                "the fill gains most, and a ceiling is so low that longer epochs are not enough",
                Named("that stage, and the fill if both take as much"),
                "ceiling below the required share of the demand; demand over ceiling against "
                f"ceiling over rate, within {FEW_ROUNDS:.0%}: as of few rounds",
                criteria.fill_hides_a_stage,
            ),
            Criterion(
                "otherwise",
                Named("the largest gain, with all whose intervals reach it"),
                "intervals that overlap",
                criteria.largest_gain,
            ),
        ),
    ),
    Criteria(
        "Stages were left out, and none of them gains",
        lambda case: case.left_out,
        (
            Criterion(
                "how busy the accelerators are is not known, and leaving them out gains",
                "accelerator",
                "as above",
                criteria.accelerator_gains_alone,
                tested=True,
            ),
            Criterion(
                "batches from the fill hide how busy they are, and every ceiling is enough",
                "accelerator",
                f"a fill of more than {NOISE_OF_FILL:.0%} of the time, and the utilization that is "
                "required is reached only with the batches that were in flight then",
                criteria.ceilings_keep_up,
            ),
            Criterion(
                "batches from the fill hide how busy they are",
                Named("what the ceilings say"),
                "",
                _hidden_by_the_fill,
            ),
            Criterion(
                "the accelerators are busy",
                "accelerator",
                f"{criteria.FED:.0%} of the time: the rest is within noise",
                criteria.accelerators_are_busy,
                tested=True,
            ),
            Criterion(
                "leaving the accelerators out brings more than all waiting could",
                "accelerator",
                "the low end of that gain over 1 / utilization, and no other gain above its square "
                "root, or above noise with an interval that reaches it",
                criteria.accelerator_gains_most,
                tested=True,
            ),
            Criterion(
                "all cores are busy",
                "cpu",
                f"within {CPU_NEAR:.0%} of the CPU ceiling, {CPU_BUSY:.0%} of the cores: {_CHOICE}",
                criteria.cores_are_busy,
            ),
            Criterion(
                "a user's loader is not much faster over kept samples, and most of making a batch "
                "is collate_fn",
                "prep",
                f"{MOST_OF_MAKING:g} of the time ({_CHOICE}), and more than {criteria.MOSTLY:g} of "
                "the rate of its own ceiling",
                criteria.collating_costs_most,
            ),
            Criterion(
                "a user's loader spends most of its waits handing batches over",
                "loader",
                f"more than {criteria.MOSTLY:g} of them, or of the rate of its own ceiling",
                criteria.hand_over_costs_most,
            ),
            Criterion(
                "the run is about as fast as the loader over samples that are there",
                "loader",
                f"{criteria.MIN_EXPLAINED:.0%} of its ceiling: {_CHOICE}",
                criteria.loader_explains_it,
            ),
            Criterion(
                "otherwise",
                Named(
                    "what the ceilings say, of the stages that were not left out; else undecided"
                ),
                "",
                _not_refuted,
            ),
        ),
    ),
    Criteria(
        "No stage was left out",
        lambda case: not case.left_out,
        (
            Criterion(
                "the fill gains, and a ceiling is so low that longer epochs are not enough",
                Named("that stage, and the fill if both take as much"),
                "as above",
                criteria.fill_hides_a_stage,
            ),
            Criterion(
                "the rate without the fill of the epochs, from the same events, gains",
                "fill",
                "as above",
                criteria.fill_gains,
            ),
        ),
    ),
)

BY_CEILINGS: tuple[Criteria, ...] = (
    Criteria(
        "By where the time went",
        lambda case: True,
        (
            Criterion(
                "saves, fill or sync took more of the time than all waits for batches",
                Named("the one that took most"),
                f"a gain above {1 + NOISE:.2f} without it ({NOISE:.0%}: noise), and a rate below "
                "the lowest ceiling by more than that",
                criteria.lost_beside_loading,
            ),
            Criterion(
                "the accelerators are busy",
                "accelerator",
                f"{criteria.FED:.0%} of the time: the rest is within noise",
                criteria.accelerators_are_busy,
            ),
        ),
    ),
    Criteria(
        "A training that was watched, by what its loader did while batches were waited for",
        lambda case: case.evidence.watched is not None,
        (
            Criterion(
                "its accelerators are as busy as is required",
                "accelerator",
                "the utilization that the workload requires",
                waits.training_is_fed,
            ),
            Criterion("what its loader did is not known", "undecided", "", waits.unknown_loader),
            Criterion(
                "its workers had nothing to do",
                "loader",
                f"less than {waits.MOST:g} of the waits: {_CHOICE}",
                waits.workers_are_idle,
            ),
            Criterion(
                "one worker is slow, and the others' batches are held back",
                "prep",
                f"{MIN_HELD_BACK:.0%} of the waits: {_CHOICE}",
                waits.one_worker_is_slow,
            ),
            Criterion(
                "its workers clearly computed for longer than they waited",
                "prep",
                f"{waits.CLEAR:g} times as long: {_CHOICE}",
                waits.workers_compute,
            ),
            Criterion(
                "most of making a batch is collate_fn",
                "prep",
                f"{MOST_OF_MAKING:g} of the time",
                waits.collate_takes_most,
            ),
            Criterion(
                "a cache served its files",
                "prep",
                f"{MIN_CACHED:.0%} of them while batches were waited for, or devices delivered at "
                f"most {MAX_SERVED:.0%} of what was read: {_CHOICE}",
                waits.files_were_cached,
            ),
            Criterion(
                "its workers clearly waited for longer than they computed",
                "storage",
                f"{waits.CLEAR:g} times as long: {_CHOICE}",
                waits.workers_wait,
            ),
            Criterion("otherwise", Named("storage and prep"), "", waits.workers_do_both),
        ),
    ),
    Criteria(
        "By the ceilings",
        lambda case: True,
        (
            Criterion("no ceiling was measured", "undecided", "", criteria.nothing_is_known),
            Criterion(
                "a cache served the reads, and reading is slower than every other stage",
                "undecided",
                f"{NOISE:.0%} slower: noise",
                criteria.cached_reads_are_slowest,
            ),
            Criterion(
                "all cores are busy, the CPU ceiling is the lowest, and no stage has most of it",
                "cpu",
                f"{criteria.MIN_EXPLAINED:.0%} of that ceiling, less than "
                f"{criteria.DOMINANT:.0%} of the CPU time for a stage: {_CHOICE}",
                criteria.cores_are_shared,
            ),
        ),
    ),
    Criteria(
        "The demand of the accelerators is below every ceiling",
        lambda case: case.demand_is_lowest,
        (
            Criterion(
                "their utilization was not measured, nor was a ceiling",
                "undecided",
                f"{NOISE:.0%} below: noise",
                criteria.utilization_is_missing,
            ),
            Criterion(
                "their utilization was not measured",
                "accelerator",
                "",
                criteria.utilization_is_unknown,
            ),
            Criterion(
                "the workers clearly took longest for reads, or for preparing",
                Named("storage or prep"),
                f"{waits.CLEAR:g} times as long as for the other: {_CHOICE}",
                criteria.workers_took_longest,
            ),
            Criterion(
                "workers that fetch and prepare in turns are slower than the demand",
                Named("the lower ceiling of both"),
                f"below {criteria.FED:.0%} of the demand, and the run reached {1 - IN_TURNS:.0%} "
                f"of that rate: {_CHOICE}",
                criteria.in_turns,
            ),
            Criterion("otherwise", "undecided", "", criteria.nothing_explains_the_waits),
        ),
    ),
    Criteria(
        "A ceiling is below the demand",
        lambda case: True,
        (
            Criterion(
                "a user's loader is not much faster over kept samples, and most of making a batch "
                "is collate_fn",
                "prep",
                "as above",
                criteria.collating_costs_most,
            ),
            Criterion(
                "two ceilings can't be told apart",
                "undecided",
                f"{NOISE:.0%}, or intervals that overlap",
                criteria.rivals,
            ),
            Criterion(
                "a ceiling was not measured, and the lowest one does not explain the rate",
                "undecided",
                f"{criteria.MIN_EXPLAINED:.0%} of that ceiling: {_CHOICE}",
                criteria.a_ceiling_is_missing,
            ),
            Criterion(
                "the lowest one is the storage's, and reading alone takes all cores",
                "cpu",
                f"90% of the cores, and less than {AT_LIMIT:.0%} of raw storage: {_CHOICE}",
                criteria.reading_takes_all_cores,
            ),
            Criterion(
                "otherwise",
                Named("the lowest ceiling"),
                "the roofline model",
                criteria.lowest_ceiling,
            ),
        ),
    ),
)

TABLE: tuple[Criteria, ...] = (*BY_GAINS, *BY_CEILINGS)
"""The whole decision, in the order in which it is applied."""
