"""Runs of a KV cache: the figures of each window, whether the cache is worth it, and the rules.

The figures follow from the times and the tokens of a window's requests. A rule returns None if it
finds no violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from statistics import median
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from ..base.units import counted, format_bytes, format_duration, format_rate
from ..record.run import KvCacheRecord
from ..record.serving import KvStage, KvTraffic, KvTrial, KvTrialKind, KvVerdict
from ..record.verdict import Estimate
from ..settings.kv_cache import MAX_CONTEXT, KvScenario
from .figures.requests import Answered, Rows, answers, of_answers, quantile
from .promise import shown
from .rules_data import RuleOutcome, unknown
from .serving import AMPLE, beside, few_requests, leading, why_client_bound
from .statistics import mean_estimate, ratio_estimate

Array = npt.NDArray[np.float64]


def with_kv_figures(trial: KvTrial, rows: Rows, spec: KvScenario) -> KvTrial:
    """The window with every figure that follows from its requests, and those before it."""
    traffic, arrives = _traffic(trial, rows, spec), rows["intended_ns"] >= 0
    rows = {name: each[arrives] for name, each in rows.items()}
    update, good = answers(rows)
    update["traffic"] = traffic
    if not good.any():
        return trial.model_copy(update=update)
    intended, taken, issued, waited, looked, copied, ready = (
        rows[f"{name}_ns"][good].astype(np.float64) / 1e9
        for name in ("intended", "taken", "issued", "waited", "looked", "copied", "ready")
    )
    copies = copied - looked  # also made without the storage
    tokens, memory, loaded, chunks = (
        rows[name][good].astype(np.float64)
        for name in ("tokens", "memory_tokens", "loaded_tokens", "chunks")
    )
    with_storage = _prefills(spec, tokens, memory + loaded)
    without = _prefills(spec, tokens, memory)
    engines = spec.prefill.engines
    begins = prefill_begins(ready, with_storage, engines)
    again = prefill_begins(intended + copies, without, engines) + without - intended
    parts = {
        "reader_wait_s": issued - intended,
        "write_wait_s": waited - issued,
        "lookup_s": looked - waited,
        "memory_s": copies,
        "load_s": ready - copied,
        "engine_wait_s": begins - ready,
        "prefill_s": with_storage,
    }
    times = Answered(
        intended=intended, taken=taken, issued=issued, ready=ready, answered=begins + with_storage
    )
    lookups = float(rows["lookups"][good].sum())
    update |= of_answers(trial, times, parts, update, limit_s=spec.limit_s, at=spec.quantile)
    update |= {
        "without_accelerator_s": quantile(ready - intended, spec.quantile),
        "prompt_tokens": int(tokens.sum()),
        "memory_tokens": int(memory.sum()),
        "loaded_tokens": int(loaded.sum()),
        "chunks_loaded": int(chunks.sum()),
        "lookups": int(lookups),
        "lookup_mean_s": float((looked - waited).sum()) / lookups if lookups else None,
        "recomputed_p50_s": quantile(again, 0.5),
        "recomputed_quantile_s": quantile(again, spec.quantile),
        "busy": float(with_storage.sum()) / trial.seconds / engines,
        "recomputed_busy": float(without.sum()) / trial.seconds / engines,
    }
    if (loads := chunks > 0).any():
        load, fetch, saved = ready - issued - copies, ready - copied, without - with_storage
        columns = (load, fetch, saved, chunks)
        update |= _of_loads(spec, *(each[loads] for each in columns))
    return trial.model_copy(update=update)


def _traffic(trial: KvTrial, rows: Rows, spec: KvScenario) -> KvTraffic | None:
    """What the requests of the window and of the time before it need."""
    names, seconds = ("tokens", "memory_tokens", "loaded_tokens"), trial.seconds + trial.earlier_s
    tokens, memory, loaded = (rows[name].astype(np.float64) for name in names)
    if not len(tokens):
        return None
    known = (memory + loaded, memory, np.zeros(len(tokens)))
    busy_s = [float(_prefills(spec, tokens, each).sum()) for each in known]
    # Of all layers: of fewer, the prefill takes so much less.
    needed = [each / spec.share * spec.prefill.accelerators / seconds for each in busy_s]
    saved_s = busy_s[1] - busy_s[0]
    moved = float(loaded.sum()) * spec.chunk_bytes / spec.chunk_tokens
    return KvTraffic(
        requests=len(tokens),
        prompt_tokens=int(tokens.sum()),
        memory_tokens=int(memory.sum()),
        loaded_tokens=int(loaded.sum()),
        accelerators=needed[0],
        accelerators_without_storage=needed[1],
        accelerators_uncached=needed[2],
        loaded_bytes_per_s=moved / spec.share / seconds,
        break_even_bytes_per_s=moved / saved_s if saved_s > 0 else None,
    )


def _prefills(spec: KvScenario, tokens: Array, cached: Array) -> Array:
    pairs = zip(tokens.tolist(), cached.tolist(), strict=True)
    return np.array([spec.prefill_s(whole, known) for whole, known in pairs])


def prefill_begins(ready: Array, seconds: Array, engines: int) -> Array:
    """When each prefill begins, if engines take prompts one at a time as they get ready."""
    begins, free = np.empty(len(ready)), [0.0] * min(engines, len(ready))
    for request in np.argsort(ready, kind="stable").tolist():
        begins[request] = max(free[0], ready[request])
        heapreplace(free, begins[request] + seconds[request])
    return begins


def _of_loads(
    spec: KvScenario, load: Array, fetch: Array, saved: Array, chunks: Array
) -> dict[str, Any]:
    """The figures of the requests that loaded something, against computing the same again."""
    moved = float(chunks.sum()) * spec.chunk_bytes
    load_s, fetch_s, saved_s = (float(each.sum()) for each in (load, fetch, saved))
    return {
        "loads": len(load),
        "load_p50_s": quantile(load, 0.5),
        "load_p99_s": quantile(load, 0.99),
        "loading_s": load_s,
        "recomputing_s": saved_s,
        "load_bytes_per_s": moved / load_s if load_s > 0 else None,
        "fetch_bytes_per_s": moved / fetch_s if fetch_s > 0 else None,
        "crossover_tokens": crossover(spec, chunks, load),
    }


def crossover(spec: KvScenario, chunks: Sequence[float] | Array, load: Array) -> int:
    """From how many tokens on a prefix is loaded faster than it is computed; 0: never.

    A load takes a time of its own and one for each chunk, by least squares over the loads.
    """
    number = np.asarray(chunks, np.float64)
    own, each = 0.0, float(load.sum() / number.sum())
    if len(set(number.tolist())) > 1:
        slope, base = (float(one) for one in np.polyfit(number, load, 1))
        if base >= 0 and slope >= 0:
            own, each = base, slope
        elif slope < 0:
            own, each = float(load.mean()), 0.0
    size = spec.chunk_tokens
    found = 0
    for count in range(max(1, MAX_CONTEXT // size), 0, -1):
        if own + each * count >= spec.prefill_s(count * size):
            break
        found = count * size
    return found


LEFT_OUT: dict[str, KvTrialKind] = {
    "reads": "without-reads",
    "writes": "without-writes",
    "lookups": "without-lookups",
}

KV_SUMMARISED = (
    *("latency_p50_s", "latency_p99_s", "latency_p999_s", "latency_max_s", "requests_per_s"),
    *("hit_rate", "load_p99_s", "load_bytes_per_s", "break_even_bytes_per_s"),
    *("accelerators_freed", "read_bytes_per_s", "write_bytes_per_s", "drive_writes_per_day"),
)


def kv_verdict(doc: KvCacheRecord) -> KvVerdict | None:
    """The verdict; None before the first repetition."""
    tried = doc.job.repetitions
    if not tried:
        return None
    known = {each.holds for each in tried}
    factor = ratio_estimate([(one.recomputing_s or 0.0, one.loading_s or 0.0) for one in tried])
    gains = _gains(doc)
    looked = doc.job.scenario.looks_up
    missing = [name for name in LEFT_OUT if name not in gains and (looked or name != "lookups")]
    bound = why_client_bound(doc, gains)
    found, why = ("client", bound) if bound else leading(gains, missing, few=few_requests(doc.job))
    stage: KvStage = next(each for each in get_args(KvStage) if each == found)
    lengths = [one.crossover_tokens for one in tried if one.crossover_tokens is not None]
    crossover = (min(lengths), max(lengths)) if all(lengths) and lengths else None
    sooner = ratio_estimate(
        [(one.recomputed_quantile_s or 0.0, one.quantile_s or 0.0) for one in tried]
    )
    worth, whole = over(factor), doc.job.scenario.share == 1
    beyond = _beyond(doc) if worth else ""
    if factor is not None and whole and worth is not True and over(sooner):
        worth = True
    elif beyond:
        worth = None
    holds = known.pop() if len(known) == 1 else None
    traffic = [one.traffic for one in tried if one.traffic is not None]
    return KvVerdict(
        worth=worth,
        factor=factor,
        break_even_bytes_per_s=mean_estimate(one.break_even_bytes_per_s for one in tried),
        load_bytes_per_s=_at_most(
            _seen_bytes_per_s(tried),
            ratio_estimate([(one.load_bytes_per_s or 0.0, 1.0) for one in tried]),
        ),
        of_plain=ratio_estimate(
            [(one.fetch_bytes_per_s or 0.0, one.plain_bytes_per_s or 0.0) for one in tried]
        ),
        crossover=crossover,
        freed=_at_most(
            max((each.accelerators_without_storage for each in traffic), default=0.0),
            mean_estimate(one.accelerators_freed for one in tried),
        ),
        ttft=sooner,
        holds=holds if whole or not holds else None,  # no queue grows with fewer layers
        bottleneck=stage,
        gains=gains,
        why=why,
        sentence=_sentence(worth, factor, sooner, crossover, beyond),
    )


def _beyond(doc: KvCacheRecord) -> str:
    """Why fewer layers can't tell that it is worth it.

    The loads of all layers together are more than the storage was seen to deliver. Empty: they are
    not, or all layers were measured.
    """
    tried, asked = doc.job.repetitions, [one.traffic for one in doc.job.repetitions if one.traffic]
    if doc.job.scenario.share == 1 or not asked:
        return ""
    needed = median(each.loaded_bytes_per_s for each in asked)
    seen = _seen_bytes_per_s(tried)
    if needed <= seen:
        return ""
    return (
        f"The loads of all layers need {format_rate(needed)} together, more than the "
        f"{format_rate(seen)} that the storage was seen to deliver: with fewer layers they wait "
        "less for each other."
    )


def _at_most(most: float, found: Estimate | None) -> Estimate | None:
    """The estimate of what can exceed this by chance alone."""
    if found is None or found.high is None:
        return found
    return found.model_copy(update={"high": max(found.value, min(found.high, most))})


def _seen_bytes_per_s(tried: Sequence[KvTrial]) -> float:
    """The most that the storage was seen to deliver."""
    rates = ("plain_bytes_per_s", "fetch_bytes_per_s", "read_bytes_per_s")
    return max(getattr(one, rate) or 0.0 for one in tried for rate in rates)


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


def _gains(doc: KvCacheRecord) -> dict[str, Estimate]:
    """How many times as long TTFT at the quantile is as without each stage."""
    tried = doc.job.repetitions

    def pairs(others: list[KvTrial]) -> Estimate | None:
        both = beside(tried, others)
        times = [(one.quantile_s or 0.0, it.quantile_s or 0.0) for one, it in both]
        return ratio_estimate(times, ample=AMPLE)

    found = {
        **{name: pairs(doc.job.of(kind)) for name, kind in LEFT_OUT.items()},
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
    beyond: str,
) -> str:
    if factor is None:
        return "Whether it is worth it is not known: nothing was loaded from this storage."
    answer = {True: "yes", False: "no", None: "inconclusive"}[worth]
    if worth is None and factor.low is None:
        beyond = "One repetition does not tell how much that varies."
    if worth and not over(factor) and sooner is not None:
        why = f"the first token comes {sooner.value:.3g} x as soon, though a load is"
        answer = f"Worth it: yes: {why} {factor.value:.2f} x as fast as computing again."
    else:
        loads = f"a load is {factor_text(factor)} as fast as computing again."
        answer = f"Worth it: {answer}: {loads}"
    # From which length loads win is as inconclusive as whether they do.
    lengths = "" if worth is None or over(factor) else "At long contexts computing wins, too."
    if worth is not None and crossover is not None:
        low, high = crossover
        length = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        lengths = f"Loads win from {length} tokens of context on."
    return " ".join(filter(None, (answer, beyond, lengths)))


MEMORY_MULTIPLE = 3
"""So many times the memory of the host, a page cache can serve little of the reads."""

MAX_BEHIND = 1.0
"""Seconds, or the limit if that is longer, that a write may begin late."""


def nothing_offloaded(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that the tier on storage was written to at all."""
    if not doc.job.repetitions or any(one.chunks_written for one in doc.job.repetitions):
        return None
    error = next((one.write_error for one in doc.job.repetitions if one.write_error), "")
    return RuleOutcome(
        "nothing was written to the storage, so this cache is one of memory alone"
        + (f"; the first error: {error}" if error else ""),
        "use a longer --duration or a higher --rate, admission=always, or repair the storage",
    )


def nothing_loaded(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that something was found on the storage."""
    if not doc.job.repetitions or any(one.chunks_loaded for one in doc.job.repetitions):
        return None
    return RuleOutcome(
        "nothing was found on the storage: memory serves every hit, or nothing is used again",
        "lower dram, use longer pauses (arrivals.person_pause), or a longer --duration",
    )


def working_set(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that this host's page cache can't serve the loads."""
    if doc.job.direct or doc.storage.page_cache is False or not doc.job.repetitions:
        return None
    lies = max(one.before_bytes + one.written_bytes for one in doc.job.repetitions)
    memory, remedy = doc.memory_bytes, "use a storage with O_DIRECT, or a longer --duration"
    if memory is None:
        return unknown("how much memory the page cache can take is not known", remedy)
    if lies >= MEMORY_MULTIPLE * memory:
        return None
    return RuleOutcome(
        f"{format_bytes(lies)} on the storage are less than {MEMORY_MULTIPLE} times the "
        f"{format_bytes(memory)} of memory of this host, whose page cache may serve loads",
        remedy,
    )


def write_failures(doc: KvCacheRecord) -> RuleOutcome | None:
    failed = sum(one.writes_failed for one in doc.job.repetitions)
    if not failed:
        return None
    first = next((one.write_error for one in doc.job.repetitions if one.write_error), "")
    return RuleOutcome(
        f"{counted(failed, 'write or deletion', 'writes or deletions')} failed; the first: {first}",
        "free space, or repair the storage: requests that need such a chunk fail",
    )


def writes_behind(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that the storage takes the chunks as fast as they are computed."""
    tried, allowed = doc.job.repetitions, max(MAX_BEHIND, doc.job.limit_s)
    late = [one.behind_p99_s for one in tried if one.behind_p99_s is not None]
    left = sum(one.writes_left for one in tried)
    behind = bool(late) and median(late) > allowed
    if not behind and not left:
        return None
    told = f"1 % of the writes began {format_duration(median(late))} late or more" if late else ""
    lost = f"{counted(left, 'chunk')} had not been written in time" if left else ""
    return RuleOutcome(
        "writes fall behind: " + " and ".join(filter(None, [told if behind else "", lost])),
        "use admission=seen-twice, more writers, a lower --rate, or a faster storage",
    )


def scaled(doc: KvCacheRecord) -> RuleOutcome | None:
    """Say that fewer layers were measured than the model has."""
    spec = doc.job.scenario
    if spec.share == 1:
        return None
    whole = format_bytes(spec.whole_chunk_bytes / spec.pieces)
    return RuleOutcome(
        f"{spec.measured_layers} of {spec.model.layers} layers were measured: reads and writes are "
        f"of {format_bytes(spec.piece_bytes)} and not {whole}, and prefill, limit, times to the "
        f"first token and what the storage is asked for are {spec.share:.3g} of the model's",
        "leave layers out to measure the whole model",
    )
