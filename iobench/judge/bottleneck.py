"""The decision on what limits a run: one table, in the order in which it is applied.

The first row that has an answer decides. Where stages were left out in turns with the repetitions,
their gains decide. Without them the ceilings and the time that the run spent on each stage do. The
checks of the rows are in ``criteria``, and in ``watched`` for a training that was watched.
``docs/verdict.md`` says each row in words, with its threshold and where that comes from; a test
compares the page with the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import criteria
from . import watched as waits
from .evidence import Bottleneck, Case, Decision, Evidence, too_short


class Criterion(NamedTuple):
    """One line of the table.

    ``check``: whether the row has the answer, or the reason why it has; if that is false or empty,
    the next row is asked. ``bottleneck``: the answer; None: the check names it, by a Decision.
    ``tested``: the answer rests on what leaving stages out brought.
    """

    check: Callable[[Case], Decision | str | bool | None]
    bottleneck: Bottleneck | None = None
    tested: bool = False

    def answer(self, case: Case) -> Decision | None:
        """The answer of the row; None if it has none."""
        found = self.check(case)
        if isinstance(found, Decision):
            return found
        if not found or self.bottleneck is None:
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
    return _first(TABLE, Case(evidence.as_read()))


def by_inference(evidence: Evidence) -> Decision:
    """The bottleneck by the ceilings and by where the time went, not by ablations."""
    return _by_ceilings(Case(evidence.as_read()))


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


def _not_left_out(case: Case) -> Decision | None:
    """What the ceilings say, where that had no turn, and what had one explains little of the loss.

    A short time has turns for a few stages alone, and the slow one may not be among them.
    """
    found = _by_ceilings(case)
    had_turns = found.bottleneck in case.evidence.gains
    if had_turns or not criteria.leaves_most(case, case.top):
        return None
    if found.bottleneck not in ("storage", "prep"):
        return None
    return found if criteria.explains(case.ceilings.get(found.bottleneck), case) else None


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


BY_GAINS: tuple[Criteria, ...] = (
    Criteria(
        "Any run",
        lambda case: True,
        (
            Criterion(_is_too_short, "undecided"),
            Criterion(_is_not_measured, "undecided"),
            Criterion(criteria.sampler_takes_most, "loader"),
        ),
    ),
    Criteria(
        "Leaving a stage out brought a significant gain",
        lambda case: case.any_gain,
        (
            Criterion(criteria.only_reading_gains, "undecided", tested=True),
            Criterion(criteria.collating_costs_more, "prep"),
            Criterion(criteria.hand_over_costs_more, "loader"),
            Criterion(criteria.prep_was_not_left_out, "prep"),
            Criterion(_not_left_out),
            Criterion(criteria.ranks_are_uneven, "sync", tested=True),
            Criterion(criteria.steps_are_slowed, "cpu", tested=True),
            Criterion(criteria.gains_share_the_cores, "cpu", tested=True),
            Criterion(criteria.read_and_prepared_in_one),
            Criterion(criteria.fill_hides_a_stage),
            Criterion(criteria.largest_gain),
        ),
    ),
    Criteria(
        "Stages were left out, and none of them gains",
        lambda case: case.left_out,
        (
            Criterion(criteria.accelerator_gains_alone, "accelerator", tested=True),
            Criterion(criteria.ceilings_keep_up, "accelerator"),
            Criterion(_hidden_by_the_fill),
            Criterion(criteria.accelerators_are_busy, "accelerator", tested=True),
            Criterion(criteria.accelerator_gains_most, "accelerator", tested=True),
            Criterion(criteria.cores_are_busy, "cpu"),
            Criterion(criteria.collating_costs_most, "prep"),
            Criterion(criteria.hand_over_costs_most, "loader"),
            Criterion(criteria.loader_explains_it, "loader"),
            Criterion(_not_refuted),
        ),
    ),
    Criteria(
        "No stage was left out",
        lambda case: not case.left_out,
        (Criterion(criteria.fill_hides_a_stage), Criterion(criteria.fill_gains, "fill")),
    ),
)

BY_CEILINGS: tuple[Criteria, ...] = (
    Criteria(
        "By where the time went",
        lambda case: True,
        (
            Criterion(criteria.lost_beside_loading),
            Criterion(criteria.accelerators_are_busy, "accelerator"),
        ),
    ),
    Criteria(
        "A training that was watched, by what its loader did while batches were waited for",
        lambda case: case.evidence.watched is not None,
        (
            Criterion(waits.training_is_fed, "accelerator"),
            Criterion(waits.unknown_loader, "undecided"),
            Criterion(waits.workers_are_idle, "loader"),
            Criterion(waits.one_worker_is_slow, "prep"),
            Criterion(waits.workers_compute, "prep"),
            Criterion(waits.collate_takes_most, "prep"),
            Criterion(waits.files_were_cached, "prep"),
            Criterion(waits.workers_wait, "storage"),
            Criterion(waits.workers_do_both),
        ),
    ),
    Criteria(
        "By the ceilings",
        lambda case: True,
        (
            Criterion(criteria.nothing_is_known, "undecided"),
            Criterion(criteria.cached_reads_are_slowest, "undecided"),
            Criterion(criteria.cores_are_shared, "cpu"),
        ),
    ),
    Criteria(
        "The demand of the accelerators is below every ceiling",
        lambda case: case.demand_is_lowest,
        (
            Criterion(criteria.utilization_is_missing, "undecided"),
            Criterion(criteria.utilization_is_unknown, "accelerator"),
            Criterion(criteria.workers_took_longest),
            Criterion(criteria.in_turns),
            Criterion(criteria.nothing_explains_the_waits, "undecided"),
        ),
    ),
    Criteria(
        "A ceiling is below the demand",
        lambda case: True,
        (
            Criterion(criteria.collating_costs_most, "prep"),
            Criterion(criteria.rivals, "undecided"),
            Criterion(criteria.a_ceiling_is_missing, "undecided"),
            Criterion(criteria.reading_takes_all_cores, "cpu"),
            Criterion(criteria.lowest_ceiling),
        ),
    ),
)

TABLE: tuple[Criteria, ...] = (*BY_GAINS, *BY_CEILINGS)
"""The whole decision, in the order in which it is applied."""
