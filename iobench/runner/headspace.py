"""How much faster could any loader make this run: the bound, and nothing more.

The run and the same run on ten batches that are kept take turns. Only the steady part of each
counts: an average over the fill, too, is too low, so that the bound would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..analyse.compare.statistics import ratio_estimate
from ..analyse.figures.knockouts import steady_rate
from ..errors import UsageError
from ..schema.verdict import Estimate
from ..storage.locks.lock import reading
from .agent import HostAgent
from .cache import run_cached_phase
from .loading import run_phase
from .plan import Plan
from .progress import Observer
from .repetition import repetition_phase
from .trials import rounds, take_turns

_EPOCHS = 4
"""Epochs that the run itself may make until its time is over."""


@dataclass(frozen=True, kw_only=True)
class Headspace:
    """``bound``: the largest gain that a change of the loader can bring, over the turns.

    ``turns``: samples/s (with kept batches, as it is) of each.
    """

    bound: Estimate | None
    turns: list[tuple[float, float]]


def headspace(plan: Plan, *, seconds: float, observer: Observer | None = None) -> Headspace:
    """Measure ``plan.repetitions`` turns of ``seconds`` each way.

    Raises UsageError for an accelerator without a limit of its own, and as ``run_phase`` does.
    """
    if plan.workload.accelerator.kind == "null":
        raise UsageError(
            "a null accelerator takes no time, so nothing but the loader is there to be bounded",
            remedy="name a workload with a step time",
        )
    observer = observer or Observer()
    kept = plan.workload.loader.model_copy(update={"replay": "batches"})
    agent = HostAgent(plan.storage)
    rounds_of = max(1, plan.workload.loader.workers)
    together = plan.workload.accelerator.sync == "step" and plan.accelerators > 1
    rates: dict[str, list[float | None]] = {"kept": [], "as it is": []}

    def measure(side: str, turn: int) -> None:
        observer.note(f"turn {turn + 1} of {plan.repetitions}, {side}")
        phase = replace(
            repetition_phase(plan, turn),
            epochs=max(plan.workload.epochs, _EPOCHS),
            max_steps=None,
            limit_s=seconds,
            whole_rounds=True,
        )
        if side == "kept":
            outcome = run_phase(replace(phase, loading=kept, evicts=False))
        else:
            outcome = run_cached_phase(plan, agent, phase)
        rate = steady_rate(outcome.events(), round_steps=rounds_of, together=together)
        rates[side].append(rate)

    with reading(plan.home, plan.manifest, verb="run"):
        take_turns(list(rates), measure, rounds(plan.repetitions))
    turns = [(best, base) for best, base in zip(*rates.values(), strict=True) if best and base]
    return Headspace(bound=ratio_estimate(turns), turns=turns)
