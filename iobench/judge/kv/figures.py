"""The figures of a window of a KV cache, from the times and the tokens of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapreplace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...record.kv_cache import KvParts, KvTraffic, KvTrial
from ...settings.kv_cache import MAX_CONTEXT, KvScenario
from ..serving.figures import SLOW, Rows, of_latency, quantile

Array = npt.NDArray[np.float64]


def with_kv_figures(trial: KvTrial, rows: Rows, spec: KvScenario) -> KvTrial:
    """The window with every figure that follows from its requests, and those before it."""
    traffic, arrives = _traffic(trial, rows, spec), rows["intended_ns"] >= 0
    rows = {name: each[arrives] for name, each in rows.items()}
    number, failed, unserved = len(rows["failed"]), rows["failed"] > 0, rows["ready_ns"] < 0
    good = ~failed & ~unserved
    update: dict[str, Any] = {
        "requests": number,
        "failed": int(failed.sum()),
        "unserved": int(unserved.sum()),
        "traffic": traffic,
    }
    nothing = {"over": 1.0, "holds": False, "steady": False} if number else {}
    if not good.any():
        return trial.model_copy(update=update | nothing)
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
    latency = begins + with_storage - intended
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
    update |= of_latency(
        trial,
        latency,
        intended + latency,
        limit_s=spec.limit_s,
        at=spec.quantile,
        number=number,
    )
    wall = max(trial.seconds, float(ready.max()))
    lookups = float(rows["lookups"][good].sum())
    late = issued - np.maximum(intended, taken)
    update |= {
        "steady": False if update["unserved"] else update["steady"],
        "without_accelerator_s": quantile(ready - intended, spec.quantile),
        "late_p99_s": quantile(late, 0.99),
        "parts": _means(parts, np.ones(len(latency), bool)),
        "slow_parts": _means(parts, latency >= quantile(latency, 1 - SLOW)),
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
        "read_bytes_per_s": trial.bytes / wall,
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


def _means(parts: Mapping[str, Array], of: npt.NDArray[np.bool_]) -> KvParts:
    return KvParts(**{name: max(0.0, float(each[of].mean())) for name, each in parts.items()})


KV_SUMMARISED = (
    *("latency_p50_s", "latency_p99_s", "latency_p999_s", "latency_max_s", "requests_per_s"),
    *("hit_rate", "load_p99_s", "load_bytes_per_s", "break_even_bytes_per_s"),
    *("accelerators_freed", "read_bytes_per_s", "write_bytes_per_s", "drive_writes_per_day"),
)
