"""What is to be loaded, by what, and from where: decided before anything is measured.

A copy of a model's files in another place is made anew as often as it is asked for.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base import buffers
from ..base.buffers import Buffer
from ..base.errors import ShortObjectError, TargetRefusedError, UsageError
from ..base.filesystem import describe_path
from ..base.units import counted
from ..record.model_load import TensorClass
from ..serve.loaders import MODEL_LOADERS, make_model_loader, model_loader_options
from ..serve.loaders.base import LARGEST, SIZE_CLASSES, size_class
from ..serve.loaders.direct import DirectLoader
from ..serve.weights import SUFFIX, Weights, WeightShard, read_weights, require_memory
from ..settings.any_workload import LoadSpec
from ..storage import is_local, open_storage, rewrapped
from ..storage.base import (
    Cached,
    Entry,
    Files,
    Guarded,
    MaybeDirect,
    Storage,
    innermost,
    local_root,
)
from .curve.places import Places, blocks

MAX_RANKS = 256
"""Processes of a trial: all of them are on one host."""

MAX_IN_FLIGHT = 256
MIN_READS = 8
"""Plain reads of each reader: those of a small model are shorter than the loader's."""

_PAGE = 4096

PROCESS_BYTES = 96 << 20
"""Memory of a process beside its tensors."""


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """``storage`` reads through the page cache, ``direct`` past it where the storage can."""

    spec: LoadSpec
    url: str
    storage: Storage
    direct: Storage
    weights: Weights

    @property
    def keys(self) -> list[str]:
        return [shard.key for shard in self.weights.shards]

    @property
    def model(self) -> str:
        """What the files say of themselves, or the name of their folder."""
        if self.weights.made is not None:
            return self.weights.made.model
        return innermost(self.storage).url.rstrip("/").rpartition("/")[2] or "model"

    @property
    def location(self) -> str:
        """Where the files are, whatever the current directory is."""
        if not is_local(self.url):
            return self.url
        return rewrapped(self.url, innermost(self.storage).url)

    def read_by(self, loader: str) -> Storage:
        """The storage that a loader reads: a warm page cache is not passed by."""
        through = self.spec.state == "warm" or MODEL_LOADERS.load(loader).buffered
        return self.storage if through else self.direct

    def classes(self) -> list[TensorClass]:
        """The tensors by their sizes, the smallest class first."""
        names = (*SIZE_CLASSES, LARGEST)
        found = {name: TensorClass(name=name, tensors=0, bytes=0) for name in names}
        for tensor in self.weights.tensors:
            of = found[size_class(tensor.nbytes)]
            of.tensors += 1
            of.bytes += tensor.nbytes
        return [each for each in found.values() if each.tensors]

    def plain_reads(self, count: int, *, seed: int, more: int = 1) -> tuple[Places, int]:
        """Reads of all files as ``count`` replicas make them by ``direct``: places, in flight.

        ``more``: with so many times as many in flight, of the same size.
        """
        loader = DirectLoader(**options_of(self.spec, DirectLoader.name))
        in_flight = min(MAX_IN_FLIGHT, loader.concurrency * count * self.spec.tensor_parallel)
        most = self.weights.file_bytes // (MIN_READS * in_flight) // _PAGE * _PAGE
        block = max(_PAGE, min(loader.block_on(self.direct), most))
        entries = [Entry(shard.key, shard.size) for shard in self.weights.shards]
        places = blocks(entries, block, order="sequential", seed=seed)
        return places, min(in_flight * more, MAX_IN_FLIGHT, len(places))

    def at(self, url: str) -> LoadPlan:
        """The same plan for a copy of the files at another place."""
        storage = open_storage(url)
        direct = _past_the_cache(url, storage, self.weights)
        return replace(self, url=url, storage=storage, direct=direct)


def options_of(spec: LoadSpec, loader: str) -> dict[str, Any]:
    """The options that were asked for, and that the loader has."""
    asked = {"block_size": spec.block_size, "concurrency": spec.concurrency}
    known = model_loader_options(loader)
    return {name: value for name, value in asked.items() if value is not None and name in known}


def make_load_plan(url: str, spec: LoadSpec) -> LoadPlan:
    """Read the headers of the weights, and refuse what can't be measured.

    Without loaders in ``spec``, these are ``direct`` and what most engines do on such a storage.
    Raises UsageError, NoRoomError, UnknownNameError, DatasetError, StorageError.
    """
    ranks = max(spec.replicas) * spec.tensor_parallel
    if ranks > MAX_RANKS:
        raise UsageError(
            f"{counted(ranks, 'process', 'processes')} on one host are too many",
            remedy=f"use at most {MAX_RANKS}: replicas times --tensor-parallel",
        )
    storage = open_storage(url)
    if spec.state == "warm" and not isinstance(storage, Cached):
        raise UsageError(
            f"{storage.url} has no page cache on this host, so nothing of it can be warm",
            remedy="leave out --state: the weights come from the storage each time",
        )
    _refuse_links(storage)
    weights = read_weights(storage)
    if not spec.loaders:
        usual = _usual_loaders(storage)
        if spec.share != "all":
            usual = [each for each in usual if spec.share in MODEL_LOADERS.load(each).sharing]
        spec = spec.model_copy(update={"loaders": usual})
    for name in spec.loaders:
        _check(name, spec, storage)
    for name, value in (("block-size", spec.block_size), ("concurrency", spec.concurrency)):
        if value is not None and not any(
            name.replace("-", "_") in model_loader_options(loader) for loader in spec.loaders
        ):
            raise UsageError(
                f"none of these loaders has --{name}: {', '.join(spec.loaders)}",
                remedy=f"leave it out, or add --loader {DirectLoader.name}",
            )
    most = max(spec.replicas)
    needed = min(memory_needed(spec, weights, loader, most) for loader in spec.loaders)
    require_memory(needed, counted(most, "replica"))
    direct = _past_the_cache(url, storage, weights)
    return LoadPlan(spec=spec, url=url, storage=storage, direct=direct, weights=weights)


def _refuse_links(storage: Storage) -> None:
    """Links that lead out of the place are not followed, and a hub's cache has nothing else."""
    root = local_root(innermost(storage))
    if root is None:
        return
    for path in root.glob(f"*{SUFFIX}"):
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise UsageError(
                f"{path} is a link to a file elsewhere, as in the cache of a hub, and is not "
                "followed",
                remedy=f"name a copy without links: cp -rL {shlex.quote(str(root))} COPY",
            )


def _past_the_cache(url: str, storage: Storage, weights: Weights) -> Storage:
    inner = innermost(storage)
    if isinstance(inner, MaybeDirect) and inner.supports_direct(weights.shards[0].key):
        return open_storage(url, direct=True)
    return storage


def memory_needed(
    spec: LoadSpec, weights: Weights, loader: str, count: int, *, one_read: bool = False
) -> int:
    """Bytes of memory for all processes of ``count`` replicas.

    Whoever reads through the page cache shares it, and so do ranks that exchange.
    """
    ranks, copies = count * spec.tensor_parallel, count
    if one_read or MODEL_LOADERS.load(loader).buffered:
        copies = 1
    elif spec.share == "all":
        copies = ranks
    return copies * weights.nbytes + ranks * PROCESS_BYTES


def one_of_each(spec: LoadSpec, storage: Storage) -> LoadSpec:
    """The loads by which a run is compared: by the first loader, with the fewest replicas."""
    loaders = (spec.loaders or _usual_loaders(storage))[:1]
    return spec.model_copy(update={"loaders": loaders, "replicas": [min(spec.replicas, default=1)]})


def _usual_loaders(storage: Storage) -> list[str]:
    """``direct``, and what most engines do on such a storage if its package is there."""
    other = "mmap" if isinstance(storage, Files) else "eager"
    try:
        MODEL_LOADERS.load(other)
    except UsageError:
        return [DirectLoader.name]
    return [DirectLoader.name, other]


def _check(name: str, spec: LoadSpec, storage: Storage) -> None:
    loader = MODEL_LOADERS.load(name)
    if loader.local_only and not isinstance(storage, Files):
        raise UsageError(
            f"the loader {name} maps files of this host, and {storage.url} has none",
            remedy=f"use --loader {DirectLoader.name}, or mount the storage and name the directory",
        )
    if spec.share not in loader.sharing:
        can = [other for other in MODEL_LOADERS.entries() if other != name]
        raise UsageError(
            f"the loader {name} does not have --share {spec.share}",
            remedy=f"it can share: {', '.join(sorted(loader.sharing))}; others: {', '.join(can)}",
        )
    make_model_loader(name, options_of(spec, name)).close()


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
