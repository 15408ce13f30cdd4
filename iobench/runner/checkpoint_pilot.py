"""What a save and a restore of a study will take, by small ones that are made before.

A study has a budget, but a save can't be ended early. So where one may take longer than the budget,
the state is first saved and restored at a few small scales, each four times as large as the one
before. Two sizes tell what a byte takes, without what any save takes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

from ..checkpoint.catalog import CheckpointRoot
from ..record.checkpoint import Study
from .budget import Budget
from .checkpoint_plan import StudyPlan, at_scale
from .conductor import Script
from .hosts.hosts import Hosts
from .study import StudyJob, begin_study

log = logging.getLogger(__name__)

_FIRST_BYTES, _GROWTH = 1 << 20, 4
"""Bytes of a rank in the first small save, and how many times as many the next one has."""

_ENOUGH, _MOST = 0.03, 0.125
"""Shares of the time: small saves that took the first one tell enough, and where a single one took
the second one, a larger one is not tried."""

_CAUTION = 0.8
"""Share of the least time below which a study is refused: a small save may have been disturbed."""


class Small(NamedTuple):
    """What a small save and its restore took."""

    bytes: int
    save_s: float
    restore_s: float

    @property
    def both_s(self) -> float:
        return self.save_s + self.restore_s


class Expected(NamedTuple):
    """Seconds that a save and a restore take at least; ``steps``: numbers that the pilot used."""

    save_s: float = 0.0
    restore_s: float = 0.0
    steps: int = 0


def expected(found: Sequence[Small], nbytes: int) -> Expected:
    """What so many bytes take at least; a single small save tells no more than its own time."""
    if not found:
        return Expected()
    last, before = found[-1], found[-2] if len(found) > 1 else None
    more = (nbytes - last.bytes) / (last.bytes - before.bytes) if before else 0.0

    def longer(last_s: float, before_s: float) -> float:
        return last_s + max(0.0, last_s - before_s) * more

    known = before or last
    return Expected(
        longer(last.save_s, known.save_s),
        longer(last.restore_s, known.restore_s),
        steps=len(found),
    )


def measure_pilot(
    plan: StudyPlan, root: CheckpointRoot, budget: Budget, after: int, hosts: Hosts
) -> Expected:
    """What a whole save takes at least, and a restore, by small ones with numbers from ``after``.

    None is made where even the smallest would be a large part of the state, and no further one once
    all is known to fit. Raises UsageError if the budget is too short for a save.
    """
    found: list[Small] = []
    size, seconds = _FIRST_BYTES * plan.spec.ranks, budget.seconds or 0.0
    while _GROWTH * size <= plan.bytes:
        small = _small_plan(plan, size)
        if 2 * small.bytes > plan.bytes or (found and small.bytes <= found[-1].bytes):
            break
        found.append(_saved(small, root, after + len(found), hosts))
        last = found[-1]
        if budget.fits(last.both_s * plan.bytes / last.bytes):
            break
        if last.both_s >= seconds * (_ENOUGH if len(found) > 1 else _MOST):
            break
        size *= _GROWTH
    told = expected(found, plan.bytes)
    log.info("small saves: %s; a whole one takes at least %s", found, told)
    if not budget.ends_in_time(_CAUTION * told.save_s):
        raise budget.too_short(
            told.save_s, what="one save of this study", other=", or a smaller --scale"
        )
    return told


def _small_plan(plan: StudyPlan, nbytes: int) -> StudyPlan:
    return at_scale(plan, f"1/{math.ceil(plan.full.state_bytes / nbytes)}")


def _saved(plan: StudyPlan, root: CheckpointRoot, after: int, hosts: Hosts) -> Small:
    """Save and restore once, and remove the checkpoint."""
    job, taken = StudyJob(plan, root, begin_study(plan, Study), hosts, after), Budget()

    def script() -> Script:
        with taken.trial("save"):
            yield from job.save()
            yield from job.drain()
        if plan.spec.restore_count:
            with taken.trial("restore"):
                yield from job.restore()

    job.run(script())
    root.keep(0, above=after)
    return Small(plan.bytes, taken.spent_s("save"), taken.spent_s("restore"))
