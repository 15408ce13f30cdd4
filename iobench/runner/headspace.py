"""How much faster could any loader make this run: the bound, and nothing more.

The run and the same run on ten batches that are kept take turns. Only the steady part of each
counts: an average over the fill, too, is too low, so that the bound would be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..analyse.compare.statistics import ratio_estimate
from ..analyse.verdict.knockouts import steady_rate
from ..errors import UsageError
from ..schema.verdict import Estimate
from ..storage.locks.reading import reading
from .agent import HostAgent
from .cache import run_cached_phase
from .loading import run_phase
from .plan import Plan
from .repetition import repetition_phase

_EPOCHS = 4
"""Epochs that the run itself may make until its time is over."""


@dataclass(frozen=True, kw_only=True)
class Headspace:
    """``bound``: the largest gain that a change of the loader can bring, over the turns.

    ``turns``: samples/s (with kept batches, as it is) of each.
    """

    bound: Estimate | None
    turns: list[tuple[float, float]]


def headspace(
    plan: Plan, *, seconds: float, tell: Callable[[str], None] = lambda title: None
) -> Headspace:
    """Measure ``plan.repetitions`` turns of ``seconds`` each way.

    Raises UsageError for an accelerator without a limit of its own, and as ``run_phase`` does.
    """
    if plan.workload.accelerator.kind == "null":
        raise UsageError(
            "a null accelerator takes no time, so nothing but the loader is there to be bounded",
            remedy="name a workload with a step time",
        )
    agent = HostAgent(plan.storage)
    rounds = max(1, plan.workload.loader.workers)
    together = plan.workload.accelerator.sync == "step" and plan.accelerators > 1
    kept = plan.workload.loader.model_copy(update={"replay": "batches"})
    turns: list[tuple[float, float]] = []
    with reading(plan.home, plan.manifest, verb="run"):
        for number in range(plan.repetitions):
            tell(f"turn {number + 1} of {plan.repetitions}")
            phase = replace(
                repetition_phase(plan, number),
                epochs=max(plan.workload.epochs, _EPOCHS),
                max_steps=None,
                limit_s=seconds,
                whole_rounds=True,
            )
            base = run_cached_phase(plan, agent, phase)
            best = run_phase(replace(phase, loading=kept, evicts=False))
            rates = [
                steady_rate(outcome.events(), round_steps=rounds, together=together)
                for outcome in (best, base)
            ]
            if rates[0] and rates[1]:
                turns.append((rates[0], rates[1]))
    return Headspace(bound=ratio_estimate(turns), turns=turns)
