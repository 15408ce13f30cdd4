"""A copy of a model's files in another place, made anew as often as it is asked for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from ..base import buffers
from ..base.buffers import Buffer
from ..base.errors import ShortObjectError, TargetRefusedError, UsageError
from ..base.filesystem import describe_path
from ..serve.weights import WeightShard
from ..storage import is_local, open_storage
from ..storage.base import Guarded, Storage
from .model_load_plan import LoadPlan

BLOCK = 8 << 20
AHEAD = 16
"""Bytes of a read, and reads in flight: as many as a good copy program keeps."""


class CopiedFiles:
    """The files of ``plan`` at ``url``, once ``make`` has returned."""

    def __init__(self, plan: LoadPlan, url: str, target: Storage) -> None:
        self.plan, self.url, self._target = plan, url, target
        self._there: list[str] = []

    @classmethod
    @contextmanager
    def claimed(cls, plan: LoadPlan, to: str | None) -> Iterator[CopiedFiles | None]:
        """Use the directory ``to``, which must be new or empty, and leave it as it was.

        Raises UsageError, TargetRefusedError. None: no copy is asked for.
        """
        if to is None:
            yield None
            return
        if not is_local(to):
            raise UsageError(
                f"--copy-to needs a directory of this host, and {to} is a URL",
                remedy="name a directory on local disk",
            )
        if plan.spec.state == "warm":
            raise UsageError(
                "whether a copy pays is about cold loads",
                remedy="leave out --copy-to, or --state warm",
            )
        target, place = open_storage(to), Path(to)
        if (there := describe_path(place, write_probe=False))["is_network"]:
            raise UsageError(
                f"--copy-to needs a local disk, and {to} is {there['fs_type']}",
                remedy="name a directory on local disk",
            )
        if isinstance(target, Guarded):
            target.check_target()
        is_new = not place.exists()
        if not is_new and (not place.is_dir() or any(place.iterdir())):
            raise TargetRefusedError(
                f"{to} is not empty, and nothing in it may be replaced",
                remedy="name a new or an empty directory with --copy-to",
            )
        copy = cls(plan, to, target)
        try:
            yield copy
        finally:
            copy._remove()
            if is_new:
                with suppress(OSError):
                    place.rmdir()

    def make(self) -> float:
        """Copy all files, in place of an earlier copy; return the seconds that this took."""
        self._remove()
        memory = [buffers.private(BLOCK).array.data for _ in range(AHEAD)]
        began = time.monotonic()
        with ThreadPoolExecutor(AHEAD) as threads:
            for shard in self.plan.weights.shards:
                self._copy(shard, threads, memory)
        return time.monotonic() - began

    def _copy(self, shard: WeightShard, threads: ThreadPoolExecutor, memory: list[Buffer]) -> None:
        """Copy a file front to back, while so many of its next blocks are being read."""
        source = self.plan.direct
        free, going = deque(memory), deque[tuple[Future[int], Buffer, int]]()
        offset = 0
        with self._target.create(shard.key, size_hint=shard.size) as sink:
            self._there.append(shard.key)
            while offset < shard.size or going:
                while free and offset < shard.size:
                    block, needed = free.popleft(), min(BLOCK, shard.size - offset)
                    future = threads.submit(source.read_into, shard.key, offset, block)
                    going.append((future, block, needed))
                    offset += needed
                future, block, needed = going.popleft()
                if (found := future.result()) < needed:
                    raise ShortObjectError(
                        f"{shard.key} has {needed - found} bytes fewer than when it was looked at",
                        remedy="check that nothing writes to the files, and try again",
                    )
                sink.write(block[:needed])
                free.append(block)

    def _remove(self) -> None:
        while self._there:
            self._target.delete(self._there.pop())
