"""What the repetitions of a KV cache say together: whether it is worth it, and the bottleneck."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import get_args

from ...record.kv_cache import KvStage, KvTrial, KvVerdict
from ...record.run import KvCacheRecord
from ...record.verdict import Estimate
from ..promise import shown
from ..serving.verdict import client_bound, leading
from ..statistics import mean_interval, ratio_estimate


def kv_verdict(doc: KvCacheRecord) -> KvVerdict | None:
    """The verdict; None before the first repetition."""
    tried = doc.job.repetitions
    if not tried:
        return None
    known = {each.holds for each in tried}
    factor = ratio_estimate([(one.recomputing_s or 0.0, one.loading_s or 0.0) for one in tried])
    gains = _gains(doc)
    found, why = ("client", bound) if (bound := client_bound(doc)) else leading(gains)
    stage: KvStage = next(each for each in get_args(KvStage) if each == found)
    lengths = [one.crossover_tokens for one in tried if one.crossover_tokens is not None]
    crossover = (min(lengths), max(lengths)) if all(lengths) and lengths else None
    sooner = ratio_estimate(
        [(one.recomputed_quantile_s or 0.0, one.quantile_s or 0.0) for one in tried]
    )
    worth = over(factor)
    if doc.job.scenario.share == 1 and worth is not True and over(sooner):
        worth = True
    return KvVerdict(
        worth=worth,
        factor=factor,
        break_even_bytes_per_s=_mean(one.break_even_bytes_per_s for one in tried),
        load_bytes_per_s=_mean(one.load_bytes_per_s for one in tried),
        of_plain=ratio_estimate(
            [(one.fetch_bytes_per_s or 0.0, one.plain_bytes_per_s or 0.0) for one in tried]
        ),
        crossover=crossover,
        freed=_mean(one.accelerators_freed for one in tried),
        ttft=sooner,
        holds=known.pop() if len(known) == 1 else None,
        bottleneck=stage,
        gains=gains,
        why=why,
        sentence=_sentence(worth, factor, sooner, crossover),
    )


def over(factor: Estimate | None) -> bool | None:
    """Whether a ratio is above 1, by more than chance; None: inconclusive."""
    if factor is None or factor.low is None or factor.high is None:
        return None
    return True if factor.low > 1 else False if factor.high < 1 else None


def factor_text(factor: Estimate) -> str:
    """As ``shown``; ``at most 0.31 x`` where the interval is wide, but on one side of 1."""
    wide = not shown(factor).endswith("]")
    if wide and over(factor) is True:
        return f"at least {factor.low:.2f} x"
    if wide and over(factor) is False:
        return f"at most {factor.high:.2f} x"
    return shown(factor)


def _mean(values: Iterable[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = mean_interval(known) if len(known) > 1 else (None, None)
    return Estimate(
        value=fmean(known), low=None if low is None else max(0.0, low), high=high, n=len(known)
    )


def _gains(doc: KvCacheRecord) -> dict[str, Estimate]:
    """How many times as long TTFT at the quantile is as without each stage."""
    tried = doc.job.repetitions

    def pairs(others: list[KvTrial]) -> Estimate | None:
        both = zip(tried, others, strict=False)
        return ratio_estimate([(one.quantile_s or 0.0, it.quantile_s or 0.0) for one, it in both])

    found = {
        "reads": pairs(doc.job.of("without-reads")),
        "writes": pairs(doc.job.of("without-writes")),
        "lookups": pairs(doc.job.of("without-lookups")),
        "prefill": ratio_estimate(
            [(one.quantile_s or 0.0, one.without_accelerator_s or 0.0) for one in tried]
        ),
    }
    return {stage: gain for stage, gain in found.items() if gain is not None}


def _sentence(
    worth: bool | None,
    factor: Estimate | None,
    sooner: Estimate | None,
    crossover: tuple[int, int] | None,
) -> str:
    if factor is None:
        return "Whether it is worth it is not known: nothing was loaded from this storage."
    answer = {True: "yes", False: "no", None: "inconclusive"}[worth]
    if worth and not over(factor) and sooner is not None:
        why = f"the first token comes {sooner.value:.3g} x as soon, though a load is"
        answer = f"Worth it: yes: {why} {factor.value:.2f} x as fast as computing again."
    else:
        loads = f"a load is {factor_text(factor)} as fast as computing again."
        answer = f"Worth it: {answer}: {loads}"
    if crossover is None:
        return f"{answer} At long contexts computing wins, too."
    low, high = crossover
    length = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{answer} Loads win from {length} tokens of context on."
