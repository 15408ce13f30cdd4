"""A rank that tries the user's loader: a few batches, off the clock."""

from __future__ import annotations

import time
from collections import Counter

from ...schema.manifest import Manifest
from ...schema.workload import Workload
from ...storage.base import Storage
from ...subject.batches import hashes
from ...subject.loader import open_user_loader
from ..messages import Link, Tried

MAX_BATCHES = 10
"""Batches that are looked at, whose samples are compared between the ranks."""

_MAX_S = 20.0
"""Seconds after which a slow loader is asked for no more batches."""


class TryUserLoader:
    """Call the factory, and look at the first batches of its loader."""

    others_code = True  # see ``Load``

    def __init__(self, workload: Workload, manifest: Manifest, storage: Storage) -> None:
        self.workload, self.manifest, self.storage = workload, manifest, storage

    def run(self, link: Link) -> None:
        workload = self.workload
        loader = open_user_loader(
            self.manifest,
            self.storage,
            workload.loader.model_copy(update={"replay": "none"}),
            batch_size=workload.batch_size,
            rank=link.rank,
            world=link.world,
            bounded=False,
            silent=link.rank > 0,
            compares=True,
        )
        sizes: Counter[int] = Counter()
        seen: list[int] = []
        began = time.monotonic()
        loader.set_epoch(0)
        batches = iter(loader)
        for batch in batches:
            sizes[batch.stats.samples] += 1
            seen += hashes(batch.value)
            if sizes.total() >= MAX_BATCHES or time.monotonic() - began > _MAX_S:
                break
            if link.stopped.value:
                break
        facts = loader.facts()
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        loader.shutdown()
        link.send(
            Tried(
                facts=facts,
                batch_size=sizes.most_common(1)[0][0] if sizes else workload.batch_size,
                prefetch_factor=loader.meter.prefetch_factor or workload.loader.prefetch_factor,
                persistent=bool(getattr(loader.meter.inner, "persistent_workers", False)),
                hashes=seen,
                not_cached=loader.not_cached,
            )
        )
