"""Compare every byte of a dataset with its manifest: content, framing, and what is in between.

Damage is reported with its shard and sample. What could not be read is reported separately: an
error of the storage says nothing about the data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...base.errors import MissingObjectError, StorageError
from ...record.manifest import Manifest
from ...storage.base import Storage, exists, innermost, local_root, read_object
from ..dataset import index_file
from ..formats.base import Framed
from ..generator.pool import RunTasks, default_workers, run_tasks
from ..generator.writer import IN_FLIGHT, SMALL_BYTES
from .shards import (
    MAX_DAMAGES,
    MAX_UNREADABLE,
    Damage,
    PartialReport,
    ShardChecker,
    Unreadable,
    VerifyReport,
)

__all__ = ["MAX_DAMAGES", "MAX_UNREADABLE", "Damage", "Unreadable", "VerifyReport", "verify"]

_TASK_BYTES = 64 << 20
_TASK_SHARDS = 1000
_REMEDY = "a shard that can't be read may be damaged: try to read it with another program"


def verify(
    storage: Storage,
    manifest: Manifest,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    run: RunTasks = run_tasks,
) -> VerifyReport:
    """Read and compare everything.

    ``workers``: processes (default: by the number of cores). ``progress``: called with (bytes done,
    bytes in total). ``run``: who checks the tasks. Damage, and what can't be read, is in the report
    and not raised. Raises WorkerError.
    """
    start = time.monotonic()
    tasks = _tasks(manifest)
    count = default_workers(len(tasks)) if workers is None else workers
    total = PartialReport()
    stopped = False
    make = _maker(storage, manifest, tasks)
    results = run(range(len(tasks)), make, workers=count, remedy=_REMEDY)
    try:
        for part in results:
            total.add(part)
            if progress is not None:
                progress(total.bytes_read, manifest.header.stored_bytes)
            wrong = len(total.damages) + len(total.missing)
            if wrong > MAX_DAMAGES or len(total.unreadable) > MAX_UNREADABLE:
                stopped = True
                break
    finally:
        results.close()  # type: ignore[attr-defined]
    if not stopped and not manifest.header.origin:
        total.add(_check_index(storage, manifest))
    if total.samples or total.damages or not total.missing or _shows_anything(storage):
        for missing in total.missing:
            if _sees(storage, missing.shard):
                what = f"{missing.what}; but it is there now, as this host sees it"
                total.unreadable.append(Unreadable(missing.shard, what))
            else:
                total.damages.append(missing)
    else:
        total.unreadable += [Unreadable(shard, what) for shard, _, what in total.missing]
    damages = sorted(total.damages, key=lambda d: (d.shard, -1 if d.sample is None else d.sample))
    return VerifyReport(
        shards=total.shards,
        samples=total.samples,
        bytes_read=total.bytes_read,
        damages=tuple(damages[:MAX_DAMAGES]),
        unreadable=tuple(sorted(total.unreadable)[:MAX_UNREADABLE]),
        stopped=stopped,
        wall_s=time.monotonic() - start,
    )


def _check_index(storage: Storage, manifest: Manifest) -> PartialReport:
    """Compare the index file of the format, if it has one, with what its shards say."""
    part = PartialReport()
    if (found := index_file(manifest)) is not None:
        key, right = found
        try:
            if storage.size(key) != len(right) or read_object(storage, key) != right:
                part.damages.append(Damage(key, None, "it is not the index of these shards"))
        except MissingObjectError as error:
            part.missing.append(Damage(key, None, error.what))
        except StorageError as error:
            part.unreadable.append(Unreadable(key, str(error)))
    return part


def check_share(
    storage: Storage,
    manifest: Manifest,
    tasks: Sequence[int],
    *,
    host: str,
    workers: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> Generator[PartialReport, None, None]:
    """Compare some tasks of a verification that another host leads; ``host``: this one's name.

    ``check`` is called about once a second. Raises WorkerError.
    """
    if not tasks:
        return
    count = default_workers(len(tasks)) if workers is None else min(workers, len(tasks))
    make = _maker(storage, manifest, _tasks(manifest))
    for part in run_tasks(tasks, make, workers=count, remedy=_REMEDY, check=check):
        yield part.seen_by(host)


def _maker(
    storage: Storage, manifest: Manifest, tasks: Sequence[range]
) -> Callable[[], Callable[[int], PartialReport]]:
    """What makes, in each worker, the function that compares a task."""

    def make() -> Callable[[int], PartialReport]:
        checker = ShardChecker(storage, manifest)
        if not _takes_round_trips(checker):
            return lambda task: checker.check(tasks[task])
        checkers = [checker, *(ShardChecker(storage, manifest) for _ in range(1, IN_FLIGHT))]

        def check(task: int) -> PartialReport:
            shares = (tasks[task][at::IN_FLIGHT] for at in range(IN_FLIGHT))
            whole = PartialReport()
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                for part in pool.map(ShardChecker.check, checkers, shares):
                    whole.add(part)
            return whole

        return check

    return make


def _takes_round_trips(checker: ShardChecker) -> bool:
    """Whether a shard takes more time for requests to a server than for its bytes.

    Not for formats whose libraries may end the process: then the shard at hand is named.
    """
    return (
        not checker.storage.traits.page_cache
        and isinstance(checker.format, Framed)
        and checker.manifest.shards["size"].mean() < SMALL_BYTES
    )


def _sees(storage: Storage, key: str) -> bool:
    """Whether an object that was missing for another host, or a moment ago, is there."""
    try:
        return exists(storage, key)
    except StorageError:
        return False


def _shows_anything(storage: Storage) -> bool:
    """Whether the storage's root is visible, or any object below it.

    If neither is, a missing object says nothing: it may be the wrong place, a file system that is
    not mounted, or a server that gives every request the same answer.
    """
    root = local_root(innermost(storage))
    if root is not None:
        return root.is_dir()
    try:
        return next(iter(storage.list()), None) is not None
    except StorageError:
        return False


def _tasks(manifest: Manifest) -> list[range]:
    """Ranges of shards of about 64 MiB, or of 1000 shards."""
    tasks: list[range] = []
    first = size = 0
    for shard, nbytes in enumerate(manifest.shards["size"].tolist()):
        size += nbytes
        if size >= _TASK_BYTES or shard + 1 - first >= _TASK_SHARDS:
            tasks.append(range(first, shard + 1))
            first, size = shard + 1, 0
    if first < manifest.shard_count:
        tasks.append(range(first, manifest.shard_count))
    return tasks
