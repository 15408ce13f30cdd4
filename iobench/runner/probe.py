"""Probe a storage: how long one read takes, and how many must be in flight (Little's law)."""

from __future__ import annotations

import math
import time
from statistics import median

import numpy as np

from ..ask.capacity import sizing
from ..base import buffers
from ..record.plan import ProbeFigures
from .agent import HostAgent
from .plan import Plan

_READS = 16
_UNCOUNTED = 2  # the first reads open connections and look up directories


def probe(plan: Plan) -> ProbeFigures:
    """Time single reads at random places, of the size that the reader will request.

    ``concurrency`` is the least that each worker needs for the accelerators' demand, if a read
    takes no longer while others are in flight. It is None if the accelerators have no step time.
    Raises StorageError.
    """
    workload, manifest, storage = plan.workload, plan.manifest, plan.storage
    together = (
        workload.batch_size * manifest.mean_stored_bytes
        if plan.sequential
        else float(np.median(manifest.samples["stored"]))
    )
    size = int(max(storage.alignment, min(workload.reader.block_size, together)))
    size += -size % storage.alignment
    agent = HostAgent(storage)
    memory = buffers.private(size).array.data
    chance = np.random.default_rng(plan.seed)
    shards = chance.choice(manifest.shard_count, _READS + _UNCOUNTED)
    took = []
    try:
        for shard in shards.tolist():
            key = manifest.key(shard)
            if not plan.direct:
                agent.empty_cache([key])
            blocks = max(1, (int(manifest.shards["size"][shard]) - size) // storage.alignment)
            offset = int(chance.integers(blocks)) * storage.alignment
            started = time.perf_counter()
            storage.read_into(key, offset, memory)
            took.append(time.perf_counter() - started)
    finally:
        storage.close()
    latency = median(took[_UNCOUNTED:])
    found = ProbeFigures(
        reads=_READS,
        request_bytes=size,
        latency_p50_s=latency,
        latency_max_s=max(took[_UNCOUNTED:]),
        reads_in_flight=None,
        concurrency=None,
    )
    workers = max(1, workload.loader.workers) * plan.accelerators
    step_time = workload.accelerator.step_time
    if step_time is None:
        return found
    demand = sizing.demanded_bytes_per_s(
        batch_size=workload.batch_size,
        step_time_s=step_time,
        accelerators=plan.accelerators,
        bytes_per_sample=manifest.mean_stored_bytes,
    )
    needed = sizing.reads_in_flight(reads_per_s=demand / size, latency_s=latency)
    return found.model_copy(
        update={"reads_in_flight": needed, "concurrency": math.ceil(needed / workers)}
    )
