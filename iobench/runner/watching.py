"""``iobench.watch``: measure the loader of a training that iobench does not run.

This is the context that the user's script holds. ``runner.watched_record`` looks at the host around
each iteration, and makes the record of what all ranks of a host leave.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..base.errors import IobenchError, UsageError
from ..base.text import printable, quoted
from ..base.units import format_count, utc_now
from ..host import host as this_host
from ..record.host import Host
from ..record.run import TrainingRecord
from ..record.training import WatchedRank, WatchFacts
from ..settings.tags import checked_tags, tagged
from ..subject.board import Board, Gauge
from ..subject.factory import one_line
from ..subject.meter import Meter
from ..subject.process import listen
from ..subject.watched import EpochHooks, Watched, WatchedSteps, watched
from .results import run_directory
from .watched_record import (
    NO_DATA,
    Data,
    Ended,
    HostWatch,
    WatchedPart,
    leave,
    locked,
    look_at,
    merged,
    opened_files,
    parts_in,
    shared_directory,
    write,
)

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_NAMES_BYTES = 64 << 10
"""Room for the names of the files that a process opened, about 600 of them."""

_counts: Counter[str] = Counter()  # how often this process has watched, by name


@dataclass(eq=False, repr=False)
class Watch:
    """See ``watch``. ``directory``: the run directory, after the context has been left."""

    loader: Iterable[Any]
    name: str
    results: Path
    data: str | Path | None
    batch_size: int | None
    rank: int
    world: int
    synchronize: bool
    tags: Mapping[str, str]

    def __post_init__(self) -> None:
        self.directory: Path | None = None
        self._meter: Meter | None = None
        self._steps: WatchedSteps | None = None
        self._host: HostWatch | None = None
        self._data = Data()
        self._number = 0

    def __enter__(self) -> Any:
        if self._steps is not None:
            raise UsageError("this watch was entered before", remedy="call iobench.watch again")
        try:
            return self._begin()
        except Exception as error:
            log.warning("iobench.watch does not measure this training: %s", one_line(error))
            if self._meter is not None:
                self._meter.close()
            self._steps = None
            return self.loader

    def __iter__(self) -> Iterator[Any]:
        raise UsageError(
            "iobench.watch(loader) is a context, which gives the loader back when it is entered",
            remedy="write: with iobench.watch(loader) as batches: for batch in batches: ...",
        )

    def _begin(self) -> Watched:
        self._number = _counts[self.name]
        _counts[self.name] += 1
        try:
            self._data = look_at(self.data)
        except IobenchError as error:
            log.warning("iobench.watch: %s", one_line(error))
        self.created = utc_now()
        hooks = EpochHooks()
        if _is_first_of_host(self.rank):
            hooks = self._host = HostWatch(self._data)
        self._meter = Meter(
            self.loader,
            gauge=Gauge(Board(1, _NAMES_BYTES), 0, self._data.root),
            stated=self.batch_size,
            wait_for_device=self.synchronize,
        )
        listen(self._meter.gauge)
        self._began = time.monotonic()
        self._steps = WatchedSteps(self._meter, hooks, stored_bytes=self._data.stored_bytes)
        return watched(self.loader, self._steps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._steps is None or self._meter is None:
            return
        try:
            with tagged(self.tags):
                self._end(self._steps, self._meter, error)
        except Exception as own:
            log.warning("iobench.watch could not leave a record: %s", one_line(own))

    def _end(self, steps: WatchedSteps, meter: Meter, error: BaseException | None) -> None:
        with steps.guarded():
            steps.end()
        wall_s = time.monotonic() - self._began
        cpu_s = steps.cpu_ns / 1e9 + meter.workers_cpu_s()
        meter.close()
        part = self._part(steps, meter, error, wall_s=wall_s, cpu_s=cpu_s)
        try:
            doc, self.directory, ranks = self._leave(part)
        except (OSError, IobenchError) as unwritten:  # what was measured is nowhere else
            doc = merged(self.results, [part])
            rate = doc.job.repetitions[0].samples_per_s
            _say(*([f"{format_count(rate)} samples/s"] if rate else []), " ".join(_verdict(doc)))
            if isinstance(unwritten, IobenchError):
                unwritten.remedy = "make room there, or choose another with watch(results=...)"
            raise
        log.info("what was watched is in %s", self.directory)
        if ranks == _ranks_here(self.world):  # the last one of this host
            _say(_verdict(doc)[0], f"iobench report {quoted(str(self.directory))}")

    def _leave(self, part: WatchedPart) -> tuple[TrainingRecord, Path, int]:
        """Write the record of this rank and those before it; return it, its place and their number.

        Raises OSError, IobenchError.
        """
        if self.world == 1:
            with run_directory(self.results, self.name) as directory:
                return write(directory, [part]), directory, 1
        directory = shared_directory(self.results, self.name, self.rank, self._number)
        with locked(directory):
            leave(directory, part)
            parts = parts_in(directory)
            return write(directory, parts), directory, len(parts)

    def _part(
        self,
        steps: WatchedSteps,
        meter: Meter,
        error: BaseException | None,
        *,
        wall_s: float,
        cpu_s: float,
    ) -> WatchedPart:
        facts, host = meter.facts(), self._host
        resources = nfs = samples = None
        about = Host()
        resident: tuple[float | None, str] = (None, "measured by another rank of this host")
        if host is not None:
            resources, nfs = host.used()
            samples = host.sampler.close()
            about = Host.model_validate(this_host.fingerprint())
            resident = _resident(host, meter, facts.files_outside or 0)
        if not self._data.root:
            facts = facts.model_copy(
                update={"files_outside": 0, "files_inside": facts.files_outside, "outside": []}
            )
        status, told = _ended(error)
        rank = WatchedRank(
            schema_version="1",
            name=self.name,
            rank=self.rank,
            world=self.world,
            created=self.created,
            status=status,
            error=told,
            user=facts.model_copy(update={"shared_samples": None}),
            prefetch_factor=meter.prefetch_factor,
            batch_size=max(meter.sizes, key=lambda size: meter.sizes[size], default=None),
            epochs=steps.epochs,
            facts=WatchFacts(
                world=self.world,
                samples_by=meter.samples_by,
                synchronized=meter.synchronized,
                between_s=steps.between_ns / 1e9,
                resident_after=resident[0],
                resident_how=resident[1],
                lost=steps.lost,
            ),
            wall_s=wall_s,
            cpu_s=cpu_s,
            resources=resources,
            nfs=nfs,
            host=about,
            storage=self._data.about,
            dataset=self._data.facts,
        )
        return WatchedPart(rank, steps.recorder.columns(), samples)


def _resident(host: HostWatch, meter: Meter, opened: int) -> tuple[float | None, str]:
    """Share of the dataset in the page cache at the end.

    Of the files that were opened, if it is not known which files are the dataset's.
    """
    state = host.cache_state()
    if state.how != NO_DATA:
        return state.ratio, state.how
    return opened_files(meter.names(), opened)


def _ended(error: BaseException | None) -> tuple[Ended, str]:
    """How the user's training ended: (status, one line)."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "ok", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    return ("ok", "") if error is None else ("failed", f"your training failed: {one_line(error)}")


def _ranks_here(world: int) -> int:
    """The ranks of this host, as far as torchrun tells."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(world, int(text)) if text.isdigit() and int(text) else world


def _verdict(doc: TrainingRecord) -> list[str]:
    """The sentences of the verdict, of which the first says what was found."""
    verdict = doc.job.verdict
    said = verdict.sentence if verdict is not None else "no verdict, since too little was measured"
    return re.split(r"(?<=\.)\s", printable(said))


def _say(*lines: str) -> None:
    """Write lines to stderr."""
    with suppress(Exception):  # the training may have closed it
        sys.stderr.write("".join(f"iobench.watch: {line}\n" for line in lines))
        sys.stderr.flush()


def _is_first_of_host(rank: int) -> bool:
    return int(os.environ.get("LOCAL_RANK") or rank) == 0


def watch(
    loader: Iterable[Any],
    *,
    name: str = "training",
    results: str | Path = "results",
    data: str | Path | None = None,
    batch_size: int | None = None,
    rank: int | None = None,
    world: int | None = None,
    synchronize: bool = False,
    tags: Mapping[str, str] | None = None,
) -> Watch:
    """Measure how your own training and its loader get on, and leave a run directory.

    A context that gives the loader back with stamps: its batches, its length and its exceptions are
    the same. It measures the time in which the training waits for a batch, the time until it asks
    for the next one, and what the processes of the loader did: CPU time, bytes that they read,
    files that they opened. When it is left, also by an exception, a new directory below ``results``
    has the record, which ``iobench report`` and the other verbs read.

    ``loader``: a torch DataLoader, or any iterable of batches. ``data``: the dataset's directory or
    URL; then the page cache is looked at before each epoch. ``batch_size``: samples of a batch, if
    the first dimension of its tensors is something else. ``rank`` and ``world``: of this process;
    None: RANK and WORLD_SIZE of torchrun. The ranks of a host share one directory.
    ``synchronize``: wait for CUDA before each request, so that the time between batches has all
    work of the device; without it, work that runs on is not seen. ``tags``: labels of the run, as
    ``{"box": "nfs-b"}``.

    At the end two lines on stderr have the verdict, and the command that shows the report. Errors
    of the measurement, and arguments that it can't use, are logged once and never reach the
    training. Raises UsageError for a loader that can't be iterated over.

    >>> batches = [torch.zeros(4, 3)] * 10
    >>> with iobench.watch(batches, name="tiny") as watched:
    ...     for batch in watched:
    ...         seen = batch.shape
    """
    if not hasattr(loader, "__iter__"):
        raise UsageError(
            f"watch() got a {type(loader).__name__}, which can't be iterated over",
            remedy="pass a torch DataLoader, or an iterable of batches",
        )
    if not _NAME.fullmatch(name):
        log.warning("iobench.watch: the name %r can't be part of a directory's name", name[:100])
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:100] or "training"
    if batch_size is not None and batch_size < 1:
        log.warning("iobench.watch: batch_size is %d, so it is taken from the batches", batch_size)
        batch_size = None
    try:
        labels = checked_tags(tags or {})
    except UsageError as error:
        log.warning("iobench.watch: %s", one_line(error))
        labels = {}
    world = _number(world, "WORLD_SIZE", 1)
    rank = _number(rank, "RANK", 0)
    if not 0 <= rank < world:
        log.warning("iobench.watch: rank %d is not one of %d, so it stands alone", rank, world)
        rank, world = 0, 1
    return Watch(
        loader,
        name=name,
        results=Path(results),
        data=data,
        batch_size=batch_size,
        rank=rank,
        world=world,
        synchronize=synchronize,
        tags=labels,
    )


def _number(given: int | None, variable: str, default: int) -> int:
    if given is not None:
        return given
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else default
