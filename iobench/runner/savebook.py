"""Records the saves of a job as its ranks report them.

When the last rank has reported its part, the checkpoint is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ..checkpoint.catalog import CheckpointRoot
from ..schema.checkpoint import CheckpointSpec, RankSave, Save

HEAD_START_NS = 2_000_000
"""Time from a command to the common start, so that every rank has received it by then."""


class SaveBook:
    """The checkpoints of one job.

    ``saves`` has an entry for each checkpoint that was completed, and ``committed`` the steps of
    those that still exist.
    """

    def __init__(self, root: CheckpointRoot, spec: CheckpointSpec, saves: list[Save]) -> None:
        self.root, self.spec, self.saves = root, spec, saves
        self.committed: list[int] = []
        self.head_start_ns = HEAD_START_NS
        self._starts: dict[int, int] = {}
        self._parts: dict[int, dict[int, RankSave]] = {}

    def make_room(self) -> None:
        """Remove all checkpoints but the latest ``keep``; that takes time on some storages."""
        while len(self.committed) > self.spec.keep:
            self.root.remove(self.root.step(self.committed.pop(0)))

    def begin(self, step: int) -> int:
        """Return the common start of all ranks, on the monotonic clock in nanoseconds."""
        self._starts[step] = time.monotonic_ns() + self.head_start_ns
        return self._starts[step]

    def take_down(self, rank: int, step: int, part: RankSave) -> None:
        """Record that a rank's part is durable and published; commit after the last part."""
        parts = self._parts.setdefault(step, {})
        parts[rank] = part
        if len(parts) < self.spec.ranks:
            return
        self.root.step(step).commit(writer=self.spec.writer, world=self.spec.ranks)
        committed_s = (time.monotonic_ns() - self._starts[step]) / 1e9
        self.committed.append(step)
        self.saves.append(joined_save(step, [parts[rank] for rank in sorted(parts)], committed_s))
        del self._parts[step]


def joined_save(step: int, parts: Sequence[RankSave], committed_s: float) -> Save:
    """Combine the ranks' saves to the job's: each of its times is that of the slowest rank."""

    def slowest(name: str) -> float | None:
        return _slowest(getattr(part, name) for part in parts)

    ends = [part.durable_s if part.durable_s is not None else part.accepted_s for part in parts]
    known = [end for end in ends if end is not None]
    cpu = [part.cpu_s for part in parts]
    return Save(
        step=step,
        blocked_s=max(part.blocked_s for part in parts),
        accepted_s=slowest("accepted_s"),
        durable_s=slowest("durable_s"),
        committed_s=committed_s,
        first_done_s=min(known, default=None),
        last_done_s=max(known, default=None),
        staged_s=slowest("staged_s"),
        waited_s=slowest("waited_s"),
        persist_s=_slowest(map(_persist_s, parts)),
        bytes=sum(part.bytes for part in parts),
        files=sum(part.files for part in parts),
        cpu_s=None if None in cpu else sum(value for value in cpu if value is not None),
        extra_memory_bytes=slowest("extra_memory_bytes"),  # type: ignore[arg-type]
        ranks=list(parts),
    )


def _slowest(times: Iterable[float | None]) -> float | None:
    """The longest of the ranks' times; None if that of one rank is not known."""
    values = list(times)
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _persist_s(part: RankSave) -> float | None:
    """From a rank's copy until it is durable. The copy began after the wait for the save before."""
    if part.durable_s is None or part.staged_s is None:
        return None
    return part.durable_s - part.staged_s - (part.waited_s or 0.0)
