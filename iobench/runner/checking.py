"""The data of a check: a dataset that is there already, or one of the size that the time allows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..base import memory
from ..base.documents import require_place
from ..base.errors import (
    DatasetError,
    InterruptedRun,
    IobenchError,
    MissingPlaceError,
    NoRoomError,
    StorageError,
    TargetHeldError,
    TargetRefusedError,
    UsageError,
    WorkerError,
)
from ..base.filesystem import describe_path
from ..base.interrupts import defer_interrupts
from ..base.units import counted, format_bytes, format_duration, format_rate, format_share
from ..data.dataset import load_dataset_spec, read_manifest
from ..data.generator.cleaner import clean, discard
from ..data.generator.engine import GenerateReport, generate
from ..judge.evidence import needed_steps
from ..judge.judged import CHECKED
from ..record.manifest import MANIFEST, MARKER
from ..settings.base import known_specs
from ..settings.dataset import DatasetSpec, resized
from ..settings.workload import Workload, load_workload
from ..storage import below, open_storage
from ..storage.base import exists, innermost, local_root
from ..storage.locks.lock import exclusive
from .budget import Budget
from .options import Observer
from .results import fresh_name

DEFAULT_WORKLOAD = "resnet50-h100"

MIN_BUDGET_S = 10.0

GENERATE_SHARE = 0.3
"""Share of the budget for generating data, with its removal."""

SPACE_SHARE = 0.2
"""The most that a check writes, if no size is asked for: this share of the free space, and of the
free inodes."""

MEMORY_MULTIPLE = 5
"""A dataset of this multiple of the memory is large enough: MLPerf Storage demands no more."""

MIN_BATCHES = 2
"""Batches of each accelerator that the smallest dataset has; and all epochs together have those
that tell the bottleneck, where the workload reads it several times."""

_FIRST_BYTES = 256 << 10
_GROWTH, _SHORT_GROWTH = 64, 8
_SHORT_S = 3.0
"""The size is found by generating: first little, then up to _GROWTH times as much, until the next
size would take longer than there is time. A try of less than _SHORT_S tells little of the pace:
then _SHORT_GROWTH times as much may be tried whatever the pace."""

_USED = 0.7
"""Share of the time that is left that the next try may take by the pace of the last one."""

_STRETCH = 1.6
"""Multiple of the time for generating that the smallest dataset may take: a short run tells more
than a refusal."""

_REMOVAL_S, _CAUTION = 0.5, 2.0
"""The least time that is kept for the removal, and the multiple of the one that was seen."""

_PATIENCE = 2.0
"""A try is given up when it takes this multiple of the time for generating."""

HELD_S, _LOOK_S = 10.0, 0.05
"""How long the removal waits for processes that hold the data, and how often it looks."""

_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, kw_only=True)
class CheckPlace:
    """Where a check reads. ``found``: a dataset lies there, which is used and never removed."""

    url: str
    workload: Workload
    found: bool


@dataclass(frozen=True, kw_only=True)
class Provided:
    """The dataset to read. ``removal_s``: how long its removal at the end should take."""

    url: str
    removal_s: float = 0.0


def find_place(url: str, workload: str | None, overrides: list[str]) -> CheckPlace:
    """Look at what lies at a path or URL, and choose the workload if none is named.

    Raises UsageError if there is no such directory, or if the dataset that lies there is of no
    workload that iobench knows; DatasetError for a half generated dataset; StorageError.
    """
    home = innermost(open_storage(url))
    root = local_root(home)
    if root is not None:
        require_place(root, "name a directory of the storage to check, or a URL")
    found = exists(home, MANIFEST) or exists(home, MARKER)
    if workload is None and found:
        workload, more = _workload_of(url)
        overrides = [*more, *overrides]
    return CheckPlace(
        url=url, workload=load_workload(workload or DEFAULT_WORKLOAD, overrides), found=found
    )


def _workload_of(url: str) -> tuple[str, list[str]]:
    """The workload that trains on the dataset at ``url``, and what must be set for it."""
    manifest = read_manifest(open_storage(url))
    if manifest.header.origin:  # scanned: any workload may read it, but samples may be small
        return DEFAULT_WORKLOAD, ["reader.crop=null"]
    name = manifest.spec.name
    known = sorted(known_specs("workload"), key=lambda each: (not each.endswith("-h100"), each))
    for each in known:
        if load_workload(each).dataset == name:
            return each, []
    raise UsageError(
        f"{url} holds the dataset '{name}', on which no known workload trains",
        remedy="name yours with --workload FILE",
    )


def left_behind(place: CheckPlace) -> list[tuple[str, int]]:
    """The data of checks that were killed, and its bytes; of local directories only.

    What a process works with is not left behind.
    """
    root = local_root(innermost(open_storage(place.url)))
    found = []
    for folder in sorted(root.glob(f"{CHECKED}*")) if root is not None else ():
        try:
            if folder.is_symlink() or not folder.is_dir():
                continue
            storage = open_storage(str(folder))
            if not exists(innermost(storage), MARKER):
                continue
            with exclusive(storage, MARKER, verb="check"):
                pass
            found.append((str(folder), clean(str(folder), dry_run=True).bytes))
        except (IobenchError, OSError):
            continue  # it is in use, has just gone, or is not ours
    return found


@contextmanager
def provided(
    place: CheckPlace,
    *,
    accelerators: int,
    seconds: float,
    keep: bool,
    observer: Observer,
    size_bytes: int | None = None,
    look: Callable[[], None] = lambda: None,
) -> Iterator[Provided]:
    """The dataset to read: that of ``place``, or one that is generated below it.

    ``size_bytes``: of its samples; None: as many as the time and a share of the space allow.
    ``look``: called from time to time meanwhile, to look at the other hosts.

    Generating takes about ``seconds``, with the removal at the end. However this ends, what was
    generated is removed, unless ``keep``. Raises UsageError if the time or the space is too small
    for the smallest dataset of the workload; InterruptedRun; and what ``generate`` raises.
    """
    if place.found:
        if size_bytes is not None:
            raise UsageError(
                f"{place.url} holds a dataset, which is read as it is",
                remedy="leave --size out, or name another directory",
            )
        yield Provided(url=place.url)
        return
    url = below(place.url, fresh_name(CHECKED.removesuffix("-")))
    spec = load_dataset_spec(place.workload.dataset)
    filling = _Filling(place, spec, url, accelerators, seconds, keep, observer, size_bytes, look)
    try:
        removal_s = filling.run()
        yield Provided(url=url, removal_s=removal_s)
    finally:
        if not keep:
            with defer_interrupts():
                remove(url, observer)


def remove(url: str, observer: Observer) -> None:
    """Remove what was generated at ``url``, if anything was. Raises StorageError.

    Processes of this check that an interrupt has met while they began may hold the lock until they
    have ended, so that is waited for.
    """
    observer.note(f"removing {url}")
    gives_up = time.monotonic() + HELD_S
    while True:
        try:
            discard(url)
        except TargetHeldError:
            if time.monotonic() < gives_up:
                time.sleep(_LOOK_S)
                continue
            observer.note(f"not removed, because another process uses it: {url}")
        except (TargetRefusedError, MissingPlaceError, DatasetError):
            pass  # nothing was written yet
        return


@dataclass
class _Filling:
    """Generates datasets of growing size into one place, and keeps the last one."""

    place: CheckPlace
    spec: DatasetSpec
    url: str
    accelerators: int
    seconds: float
    keep: bool
    observer: Observer
    size_bytes: int | None = None
    look: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        spec, workload, size_bytes = self.spec, self.place.workload, self.size_bytes
        self.budget = Budget(seconds=self.seconds, end_s=0.0)
        self.sample_bytes = spec.sample_size.mean_bytes
        batches = -(-needed_steps(workload.loader.workers) // workload.epochs)
        least = workload.batch_size * self.accelerators * max(MIN_BATCHES, batches)
        self.least = min(least, spec.samples)
        asked = spec if size_bytes is None else resized(spec, size_bytes=size_bytes)
        if asked.samples < self.least:
            raise UsageError(
                f"--size {format_bytes(size_bytes or 0)} is less than the "
                f"{format_bytes(self.least * self.sample_bytes)} of the smallest dataset of "
                f"'{spec.name}' for this check",
                remedy=f"give a larger one{self._fewer()}",
            )
        if size_bytes is not None:
            self.least = asked.samples
        share = SPACE_SHARE if size_bytes is None else 1.0
        self.most = min(asked.samples, self._room(self.place.url, share))
        self.removal_s = 0.0  # for each sample

    def run(self) -> float:
        """Generate, and return the seconds that the removal should take.

        Raises UsageError where not even the smallest dataset is possible.
        """
        size = min(self.most, max(1, int(_FIRST_BYTES // self.sample_bytes)))
        while True:
            report = self._try(size)
            more = self._next(size, report.wall_s)
            if more <= size:
                return 0.0 if self.keep else max(_REMOVAL_S, _CAUTION * self.removal_s * size)
            began = time.monotonic()
            discard(self.url)
            self.removal_s = (time.monotonic() - began) / size
            size = more

    def _next(self, size: int, took_s: float) -> int:
        """Samples of the next try, after one of ``size`` that took so long; ``size``: no further.

        Raises UsageError if the smallest dataset takes too long.
        """
        pace = took_s / size
        left = self.budget.left_s
        for_all = pace + (0.0 if self.keep else _CAUTION * self.removal_s)
        wanted = min(self.most, size * _GROWTH, int(_USED * left / for_all))
        if took_s < _SHORT_S and left > _SHORT_GROWTH * took_s:
            wanted = min(self.most, max(wanted, size * _SHORT_GROWTH))
        if size >= self.least:
            return wanted if wanted >= 2 * size else size
        needed = pace * self.least
        spent = self.budget.used_s
        there_are = _STRETCH * self.seconds - spent
        fits = needed < there_are
        if wanted >= self.least:
            return wanted
        if took_s < _SHORT_S and wanted >= 2 * size and not (fits and self.least <= 2 * wanted):
            return wanted  # not where it would take half of the time, and be removed
        if fits:
            return self.least
        rate = format_rate(self.sample_bytes / pace)
        raise UsageError(
            f"the smallest dataset of '{self.spec.name}' for this check has "
            f"{format_bytes(self.least * self.sample_bytes)}, and {rate} can be generated here: "
            f"that takes about {format_duration(needed)}, and there are "
            f"{format_duration(max(0.0, there_are))}",
            remedy="give a larger --budget: at least "
            f"{(spent + needed) / (_STRETCH * GENERATE_SHARE) + MIN_BUDGET_S:.0f}s{self._fewer()}",
        )

    def _fewer(self) -> str:
        """The way that needs less data, if there is one."""
        if self.accelerators == 1:
            return ""
        return (
            "; or check with --accelerators 1, and let 'iobench size' compute what "
            f"{self.accelerators} take"
        )

    def _try(self, samples: int) -> GenerateReport:
        what = f"{format_bytes(samples * self.sample_bytes)} of '{self.spec.name}'"
        self.observer.phase(f"generating {what} ({counted(samples, 'sample')})")
        gives_up = time.monotonic() + _PATIENCE * self.seconds

        def told(done: int, total: int) -> None:
            self.look()
            self.observer.detail(f"{format_bytes(done)} of {format_bytes(total)}")
            if time.monotonic() > gives_up and done < total:
                raise StorageError(
                    f"generating {format_bytes(total)} takes too long: {format_bytes(done)} after "
                    f"{format_duration(_PATIENCE * self.seconds)}",
                    remedy="give a larger --budget",
                )

        try:
            report = generate(
                resized(self.spec, samples=samples), open_storage(self.url), progress=told
            )
        except InterruptedRun:
            raise InterruptedRun(
                "interrupted while data was generated, before the run had begun"
            ) from None
        except (NoRoomError, StorageError, WorkerError) as error:
            # ``generate`` names flags that a check has not, and a continuation that it is not.
            if "--size" in error.remedy or "same command" in error.remedy:
                error.remedy = "" if self.keep else "what was generated is removed"
            raise
        rate = format_rate(report.written_bytes / report.wall_s)
        self.observer.note(
            f"generated {what} in {format_duration(report.wall_s)}, {rate}: {self.url}"
        )
        return report

    def _room(self, url: str, share: float) -> int:
        """Samples that a share of the space allows, without limit where it is not known.

        Raises UsageError if the smallest dataset has no room.
        """
        most = self.spec.samples
        if total := memory.total_bytes():
            most = int(MEMORY_MULTIPLE * total / self.sample_bytes)
        root = local_root(innermost(open_storage(url)))
        if root is None:
            return max(most, self.least)
        space = os.statvfs(root)
        free = space.f_bavail * space.f_frsize
        if describe_path(root, write_probe=False).get("fs_type") in _IN_MEMORY:
            free = min(free, memory.available_bytes() or free)
        room = int(share * free / self.sample_bytes)
        if space.f_files:
            room = min(room, int(share * space.f_favail))
        if room < self.least:
            least = self.least * self.sample_bytes
            used = f", of which a check uses at most {format_share(share)}" if share < 1 else ""
            mebibytes = math.ceil(least / (1 << 20))
            fits = share < 1 and mebibytes << 20 <= free
            more = f"give --size {mebibytes}MiB, " if fits else ""
            raise NoRoomError(
                f"{root} has {format_bytes(free)} free{used}; the smallest dataset of "
                f"'{self.spec.name}' for it has {format_bytes(least)}",
                remedy=f"{more}make {format_bytes(least / share)} free, name another directory, "
                f"or a --workload with smaller batches{self._fewer()}",
            )
        return min(max(most, self.least), room)
