"""What a training that was watched waited for, from the counts of its loader's processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ...schema.job import UserFacts
from ...schema.record import TrainingRecord
from ...schema.training import Repetition


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderWaits:
    """Shares are 0 to 1; None: not known.

    ``working``: of the time, in which the busiest worker made batches. ``handed_over``: of the
    waits, in which the batch was made, but not here yet; ``held_back``: in which a later one was
    ready. ``collate``: of the time to make batches. ``starting``: of the time, in which workers
    started, ``starts`` times. ``uneven``: seconds for a
    batch of a worker that is far slower than the others, and of these.
    ``batch_bytes``: of a batch, on average.
    """

    working: float | None = None
    handed_over: float | None = None
    held_back: float | None = None
    collate: float | None = None
    starting: float | None = None
    starts: int | None = None
    uneven: tuple[float, float] | None = None
    batch_bytes: float | None = None


def loader_waits(doc: TrainingRecord) -> LoaderWaits | None:
    """What was seen of the loader of a training that was watched; None for another run."""
    facts = doc.job.loader.user
    if doc.job.watched is None or facts is None:
        return None
    done = [each for each in doc.job.repetitions if each.complete]
    waited, starts = facts.wait_s or 0.0, facts.worker_starts
    return LoaderWaits(
        working=_working(done, facts),
        handed_over=_share(facts.hand_over_s, waited),
        held_back=facts.held_back,
        collate=_share(facts.collate_s, facts.fetch_wall_s or 0.0),
        starting=_starting(done, facts),
        starts=starts,
        uneven=facts.slow_worker,
        batch_bytes=facts.delivered_bytes / facts.batches if facts.batches else None,
    )


def _working(done: Sequence[Repetition], facts: UserFacts) -> float | None:
    """Share of the time in which the busiest worker read or prepared.

    Workers get their batches in turns, so the busiest one is the one that takes longest for each.
    """
    known = [
        each.worker_time.read + each.worker_time.prep
        for each in done
        if each.worker_time is not None
        and each.worker_time.read is not None
        and each.worker_time.prep is not None
    ]
    if not known:
        return None
    means = facts.fetch_s_by_worker
    busiest = max(means) / fmean(means) if means and fmean(means) > 0 else 1.0
    return min(1.0, median(known) * busiest)


def _starting(done: Sequence[Repetition], facts: UserFacts) -> float | None:
    """Share of a rank's time in which its workers started."""
    walls = [rank.wall_s for each in done for rank in each.ranks]
    if facts.worker_ready_s is None or facts.worker_starts is None or not walls:
        return None
    return _share(facts.worker_ready_s * facts.worker_starts, median(walls))


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else min(1.0, part / whole)
