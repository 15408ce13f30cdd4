"""Runs of a KV cache whose requests are made here, in virtual time: their answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from iobench.judge.kv import with_kv_figures
from iobench.judge.rebuild import conclude
from iobench.record.host import Host, StorageFacts
from iobench.record.run import KvCacheRecord
from iobench.record.serving import FoundRate, KvCacheRun, KvTrial, KvTrialKind
from iobench.settings.kv_cache import KvScenario

KV = KvScenario.model_validate(
    {
        "name": "tiny",
        "model": "llama3-8b",
        "prefill": {"tokens_per_s": 10_000},
        "prompts": {"max_tokens": 8192},
        "capacity": "1TB",
        "limit": 2,
    }
)
"""Prefill takes 0.1 ms a token, so a chunk of 256 tokens and 32 MiB takes 25.6 ms: loads break even
at 1.31 GB/s."""

BREAK_EVEN = 10_000 * 131_072
"""In bytes/s."""


ENOUGH = KV.model_copy(update={"prefill": KV.prefill.model_copy(update={"engines": 2})})
"""An engine more, so that the requests can be computed without the storage."""


def build_kv_trial(
    kind: KvTrialKind = "repetition",
    *,
    requests: int = 600,
    factor: float = 2.0,
    own_s: float = 0.0,
    chunks: int | None = None,
    seed: int = 1,
    late_s: float = 0.0,
    failed: int = 0,
    scenario: KvScenario = KV,
    **changes: Any,
) -> KvTrial:
    """A window of requests, 0.2 s after one another, each of 12 chunks and more that are computed.

    Loads take ``own_s``, and for each chunk as long as its prefill over ``factor``. ``chunks``: in
    each load; None: 4 to 12. ``late_s``: free readers begin so late. ``failed``: the first so many.
    """
    generator = np.random.default_rng(seed)
    count = np.full(requests, chunks) if chunks is not None else generator.integers(4, 13, requests)
    intended = np.arange(requests) * 0.2
    chunk_s = scenario.chunk_tokens / 10_000 * scenario.share
    takes = own_s + count * chunk_s / factor * generator.normal(1, 0.001, requests)
    if kind == "without-reads":
        takes = np.zeros(requests)
    issued = intended + late_s
    fails = (np.arange(requests) < failed).astype(np.uint8)
    rows: dict[str, Any] = {
        "intended_ns": (intended * 1e9).astype(np.int64),
        "taken_ns": (intended * 1e9).astype(np.int64),
        "issued_ns": (issued * 1e9).astype(np.int64),
        "waited_ns": (issued * 1e9).astype(np.int64),
        "looked_ns": (issued * 1e9).astype(np.int64),
        "copied_ns": (issued * 1e9).astype(np.int64),
        "ready_ns": ((issued + takes) * 1e9).astype(np.int64),
        "failed": fails,
        "tokens": np.full(requests, 12 * scenario.chunk_tokens + 100),
        "memory_tokens": np.zeros(requests, np.int64),
        "loaded_tokens": count * scenario.chunk_tokens,
        "chunks": count,
        "lookups": count + 1,
    }
    facts: dict[str, Any] = {
        "bytes": int(count.sum()) * scenario.chunk_bytes,
        "cpu_share": 0.1,
        "chunks_written": 0 if kind == "without-writes" else 500,
        "written_bytes": 0 if kind == "without-writes" else 500 * scenario.chunk_bytes,
        "before_bytes": 1 << 40,
        "behind_p99_s": 0.01,
        "stored_share": 1.0,
    }
    trial = KvTrial(
        kind=kind,
        seed=seed,
        rate=5.0,
        seconds=requests * 0.2,
        requests=requests,
        **facts | changes,
    )
    return with_kv_figures(trial, rows, scenario)


KINDS: tuple[KvTrialKind, ...] = (
    *("repetition", "without-reads", "without-writes", "without-lookups"),
)


def build_kv(
    trials: list[KvTrial] | None = None,
    *,
    repetitions: int = 3,
    scenario: KvScenario = KV,
    found: FoundRate | None = None,
    job: dict[str, Any] | None = None,
    storage: dict[str, Any] | None = None,
    head: dict[str, Any] | None = None,
    **window: Any,
) -> KvCacheRecord:
    """A concluded run; ``window``: how its windows differ from ``build_kv_trial``'s."""
    if trials is None:
        trials = [
            build_kv_trial(kind, seed=seed, scenario=scenario, **window)
            for seed in range(repetitions)
            for kind in KINDS
        ]
    facts: dict[str, Any] = {
        "iobench_version": "0.1.0",
        "run_id": "tiny-20260401-120000-abcd",
        "created": "2026-04-01T12:00:00+00:00",
        "command": ["iobench", "kv", "tiny", "--to", "kv"],
        "status": "ok",
        "validity": "unknown",
    }
    return conclude(
        KvCacheRecord(
            **facts | (head or {}),
            hosts=[Host(node="box", cores=8, memory_bytes=1 << 36)],
            storage=StorageFacts(
                **{"url": "/mnt/kv", "scheme": "file", "page_cache": True, **(storage or {})}
            ),
            job=KvCacheRun(
                scenario=scenario,
                rate=5.0,
                trials=trials,
                found=found,
                **{"direct": True, **(job or {})},
            ),
        )
    )
