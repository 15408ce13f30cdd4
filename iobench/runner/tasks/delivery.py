"""A rank that proves what a library's loader delivers: it hashes every sample, undecoded."""

from __future__ import annotations

import numpy as np
import xxhash

from ...load import open_library
from ..messages import Delivered, Link
from ..plan import Plan

MAX_BYTES = 1 << 30
"""Limit for the samples' bytes, over all ranks, that are hashed; the rest of a dataset is not
checked.
"""


class ProveDelivery:
    """Hash two epochs of the plan's loader, or a part of one epoch if MAX_BYTES allows no more."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def run(self, link: Link) -> None:
        plan, workload = self.plan, self.plan.workload
        reading = workload.reader.model_copy(update={"decode": False, "crop": None})
        loader = open_library(
            plan.manifest,
            plan.storage,
            reading,
            workload.loader,
            batch_size=workload.batch_size,
            rank=link.rank,
            world=link.world,
            seed=plan.seed,
        )
        max_bytes = MAX_BYTES // link.world
        epochs, size = [], 0
        for epoch in range(2):
            seen: list[int] = []
            loader.set_epoch(epoch)
            for batch in loader:
                if link.stopped.value:
                    break
                for sample in batch:
                    seen.append(xxhash.xxh3_64_intdigest(sample.numpy().data))
                    size += len(sample)
                if epoch == 0 and size > max_bytes:
                    break
            epochs.append(np.array(seen, np.uint64))
            if size > max_bytes or link.stopped.value:
                break
        loader.shutdown()
        link.send(Delivered(epochs))
