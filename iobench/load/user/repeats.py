"""Whether several workers of a user's DataLoader deliver the same samples.

torch gives each worker a copy of an iterable dataset. One that does not ask ``get_worker_info``
which share is its own delivers all samples, once by each worker. The samples of the first batches
are compared; those of a map-style dataset are not, since its sampler alone says what is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from ..torch_compat import is_map_style
from .tree import hashes

MAX_BATCHES = 10
"""Batches of an iteration that are compared, or as many as there are workers."""

_MAX_HASHED = 64 << 20
"""Bytes of a batch that are compared: a training waits for that."""

_MIN_DISTINCT = 0.5
"""Share of a worker's samples that must differ from one another for a comparison to say a thing."""


def why_not_compared(made: Iterable[Any], inner: DataLoader[Any] | None, workers: int) -> str:
    """Why the samples of workers are not compared; empty if they are."""
    if inner is None or workers < 2:
        return "the loader has fewer than two worker processes"
    if is_map_style(inner):
        return "a sampler hands the samples of a map-style dataset out to the workers"
    if inner is not made:
        return "the loader has a DataLoader inside, and may regroup its batches"
    return ""


class Repeats:
    """Compares what the workers of a DataLoader deliver in the first batches of an iteration."""

    def __init__(self, made: Iterable[Any], inner: DataLoader[Any] | None, workers: int) -> None:
        self.why_not = why_not_compared(made, inner, workers)
        self.workers = workers
        self.in_order = inner is not None and inner.in_order
        self.most = max(MAX_BATCHES, workers)
        self._found: list[list[int]] = []

    def begin(self) -> None:
        """An iteration begins; a later one is looked at only if the earlier ones were shorter."""
        if len(self._found) < self.most:
            self._found = []

    def give_up(self, why: str) -> None:
        """It is no longer known which batches belong together."""
        self.why_not, self._found = self.why_not or why, []

    def look(self, value: object) -> None:
        """Look at the next batch."""
        if not self.why_not and len(self._found) < self.most:
            self._found.append(hashes(value, max_bytes=_MAX_HASHED))

    @property
    def counts(self) -> tuple[int, int] | None:
        """(samples that several workers delivered, samples compared), or None."""
        groups: dict[int, list[int]] = {}
        for number, found in enumerate(self._found):
            groups.setdefault(number % self.workers if self.in_order else number, []).extend(found)
        if self.why_not or len(groups) < 2:
            return None
        distinct = {number: set(found) for number, found in groups.items()}
        total = sum(map(len, groups.values()))
        if sum(map(len, distinct.values())) < _MIN_DISTINCT * total or not total:
            return None
        seen: dict[int, int] = {}
        for each in distinct.values():
            for one in each:
                seen[one] = seen.get(one, 0) + 1
        return sum(1 for count in seen.values() if count > 1), len(seen)

    def facts(self) -> dict[str, Any]:
        """The keys of ``UserFacts`` that say what was found."""
        counts = self.counts
        return {
            "worker_shared_samples": counts[0] if counts else None,
            "worker_compared_samples": counts[1] if counts else None,
        }

    @property
    def why(self) -> str:
        """Why nothing was compared; empty if something was."""
        if self.counts is not None:
            return ""
        return self.why_not or (
            "too few batches, or batches whose samples are equal to one another or on a device"
        )
