"""Decide what a run will do: nothing here writes or evicts, or reads a sample.

Only a loader of the user's own is tried, since nobody else knows the size of its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..accelerate import ACCELERATORS
from ..base.errors import DatasetError, UsageError
from ..base.filesystem import require_room
from ..base.units import counted
from ..data.dataset import find_dataset, load_dataset_spec, read_by_blocks
from ..judge.figures.in_flight import asked_reads_in_flight
from ..load.choose import is_sequential, use_direct, with_map
from ..load.libraries import LOADERS
from ..load.order import Indices
from ..record.manifest import Manifest
from ..settings.dataset import share_of_columns
from ..settings.workload import LocalCacheSpec, Subject, Workload
from ..storage import open_storage
from ..storage.base import Storage, innermost, local_root
from ..storage.local_cache import LocalCache
from .engine_trial import EngineTrial
from .messages import Tried

_FEW_SHARDS = 8
"""Up to this number, objects are looked up one by one; more are looked up in one listing.

Over a network, each look-up is a request.
"""

_CHECKED_SHARDS = 20_000
"""Limit for the shards whose presence and size are checked before a run.

Of more shards only a seeded sample is checked, because checking all would take too long.
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run with all decisions made."""

    workload: Workload
    manifest: Manifest
    storage: Storage  # as the readers will use it: direct or not
    home: Storage  # location of the manifest; the data of a scanned dataset is elsewhere
    direct: bool
    sequential: bool
    accelerators: int
    repetitions: int
    seed: int
    data: str = ""  # location of the manifest, as the user wrote it
    origin: str | None = None  # location of the data of a scanned dataset, if the user named it
    engine_choice: str = ""  # what was found by the trial of reader.engine=auto
    tried: Sequence[Tried] = ()  # what each rank found out about a loader of the user's own
    cache: LocalCache | None = None  # in front of the storage, while the run holds it

    @property
    def front(self) -> Storage:
        """What the readers of a repetition read from: the storage, or the cache in front of it."""
        return self.storage if self.cache is None else self.cache

    @property
    def held_out(self) -> Indices | None:
        """The shards that are evaluated and not trained on; None if all are trained on."""
        spec, count = self.workload.evaluation, self.manifest.shard_count
        if spec is None:
            return None
        return np.arange(count - max(1, round(spec.share * count)), count)

    @property
    def subject(self) -> Subject:
        """The loader under test."""
        return self.workload.loader.subject

    @property
    def keys(self) -> list[str]:
        return self.manifest.keys()

    @property
    def uncached(self) -> bool:
        """Whether reads never come from this host's page cache.

        Then reading a byte twice measures the storage twice.
        """
        return self.direct or self.storage.traits.uncached

    @property
    def sample_bytes(self) -> float:
        """Mean stored bytes of a sample, of which only some columns may be read."""
        share = share_of_columns(self.manifest.spec, self.workload.reader.columns)
        return self.manifest.mean_stored_bytes * share

    @property
    def reads_in_flight(self) -> int:
        """The most reads that the readers of all ranks keep in flight."""
        manifest = self.manifest
        return asked_reads_in_flight(
            self.workload,
            ranks=self.accelerators,
            sample_bytes=self.sample_bytes,
            samples_per_shard=manifest.sample_count / manifest.shard_count,
            blocks=read_by_blocks(manifest.spec),
        )

    @property
    def passes(self) -> int | None:
        """Epochs of a phase that lasts until a limit; None: as many as it takes.

        Reads that the page cache may serve are taken once only: a second pass would measure it.
        """
        return None if self.uncached else 1


def make_plan(
    workload: Workload,
    data: str,
    *,
    accelerators: int,
    repetitions: int,
    seed: int,
    origin: str | None = None,
    here: range | None = None,
) -> Plan:
    """Check that data and workload fit, and resolve ``auto`` settings.

    ``origin``: location of the data of a scanned dataset. ``here``: the ranks of this host, if
    other hosts have the rest of them; a loader of the user's own is tried by these. Raises
    DatasetError for a dataset that is missing, foreign, half generated, incomplete, or not the
    workload's; UsageError for numbers that are not possible, and for a loader of the user's own
    that does not work.
    """
    check_asked(workload, accelerators=accelerators, repetitions=repetitions)
    if here is not None and len(here) < accelerators:
        check_many_hosts(workload)
    options = workload.storage_options()
    manifest, place = find_dataset(data, options, origin=origin)
    probe = open_storage(place, options=options)
    if workload.local_cache is not None:
        check_local_cache(workload.local_cache, manifest.header.stored_bytes)
    check_match(workload, manifest, data)
    check_reading(workload, manifest)
    check_shards(manifest, probe)
    reading = with_map(workload.reader, probe)
    if not workload.loader.in_order:
        reading = reading.model_copy(update={"read_ahead": False})
    workload = workload.model_copy(update={"reader": reading})
    if workload.cache == "warm" and reading.direct is True:
        raise UsageError(
            "a warm run can't use direct IO, which bypasses the cache",
            remedy="use --set reader.direct=false, or --set cache=cold",
        )
    direct = (
        use_direct(reading, probe, manifest)
        if workload.cache == "cold" or reading.direct is True
        else False
    )
    if workload.loader.subject.reads_itself:
        from ..load.third_party import check_library  # imports torch

        check_library(manifest, probe, reading, workload.loader, world=accelerators)
        direct = False  # libraries read through the page cache
    check_numbers(workload, manifest, accelerators=accelerators)
    tried: Sequence[Tried] = ()
    if workload.loader.subject.users:
        from .user_loader import adopt, try_loader

        tried = try_loader(
            workload, manifest, probe, world=accelerators, ranks=here or range(accelerators)
        )
        workload = adopt(workload, tried)
    plan = Plan(
        workload=workload,
        manifest=manifest,
        storage=open_storage(place, direct=direct, options=options),
        home=innermost(open_storage(data, options=options)),
        direct=direct,
        sequential=is_sequential(reading, manifest),
        accelerators=accelerators,
        repetitions=repetitions,
        seed=seed,
        data=data,
        origin=origin,
        tried=tried,
    )
    if reading.engine == "auto" and workload.local_cache is None:  # which is read by threads
        engine, why = EngineTrial(
            workload=workload,
            manifest=manifest,
            storage=plan.storage,
            sequential=plan.sequential,
            uncached=plan.uncached,
            seed=seed,
        ).choose()
        changed = workload.reader.model_copy(update={"engine": engine})
        return replace(
            plan,
            workload=workload.model_copy(update={"reader": changed}),
            engine_choice=f"auto took {engine}: {why}",
        )
    return plan


def check_asked(workload: Workload, *, accelerators: int, repetitions: int) -> None:
    """Check what can be checked without any data. Raises UsageError, UnknownNameError."""
    for what, number in (("accelerators", accelerators), ("repetitions", repetitions)):
        if number < 1:
            raise UsageError(f"the number of {what} must be at least 1, but is {number}")
    ACCELERATORS.load(workload.accelerator.kind)
    if workload.loader.subject.reads_itself:  # which is always there, and imports torch
        LOADERS.load(workload.loader.kind)


def check_many_hosts(workload: Workload) -> None:
    """Check that the workload can have ranks on several hosts. Raises UsageError."""
    if workload.accelerator.model_parallel > 1:
        raise UsageError(
            "accelerator.model_parallel works on one host only",
            remedy="leave it out: the ranks that do not read need no host of their own",
        )
    if workload.local_cache is not None:
        raise UsageError(
            "local_cache works on one host only",
            remedy="leave --cache-dir out, or run on each host alone",
        )
    if workload.log.to is not None:
        raise UsageError(
            "a log is written beside the ranks of one host only",
            remedy="leave out --log and log.to, or run on each host alone",
        )


def check_numbers(workload: Workload, manifest: Manifest, *, accelerators: int) -> None:
    """Check that there are enough shards and samples. Raises UsageError."""
    if workload.evaluation is not None and manifest.shard_count < 2:
        raise UsageError(
            "the dataset has one shard, so none can be held out for evaluation",
            remedy="generate it with fewer samples in a shard, or leave evaluation out",
        )
    if manifest.sample_count < accelerators:
        raise UsageError(
            f"the dataset has {counted(manifest.sample_count, 'sample')}, too few for "
            f"{counted(accelerators, 'accelerator')}",
            remedy="generate a larger dataset, or use fewer accelerators",
        )
    if (
        workload.reader.tail == "drop"
        and manifest.sample_count // accelerators < workload.batch_size
    ):
        raise UsageError(
            f"the dataset has {counted(manifest.sample_count, 'sample')}, too few for one batch of "
            f"{workload.batch_size} for each of {counted(accelerators, 'accelerator')}",
            remedy="use reader.tail=keep, a smaller batch_size, or a larger dataset",
        )


def check_match(workload: Workload, manifest: Manifest, data: str) -> None:
    """Check that the workload is about this dataset.

    Format, codec, content and size may differ: they are what users vary. Scanned data has a name of
    its own, and may be read by any workload. Raises DatasetError.
    """
    # The name may be that of a clone, which no built-in dataset has.
    if manifest.spec.name == workload.dataset:
        return
    expected = load_dataset_spec(workload.dataset).name
    if manifest.spec.name != expected and not manifest.header.origin:
        raise DatasetError(
            f"{data} holds the dataset '{manifest.spec.name}', but the workload '{workload.name}' "
            f"trains on '{expected}'",
            remedy=f"generate that one: iobench generate {workload.dataset} --to DIR; to read this "
            f"one, add --set dataset={manifest.spec.name}",
        )


def check_reading(workload: Workload, manifest: Manifest) -> None:
    """Check that the dataset has what ``reader.check`` needs, which a scan may lack.

    Raises UsageError if it has not.
    """
    check = workload.reader.check
    if manifest.header.origin and (
        check == "format" or (check == "content" and not manifest.header.checksums)
    ):
        raise UsageError(
            f"reader.check={check} needs a dataset that iobench has generated, or has scanned with "
            "--checksums",
            remedy="use --set reader.check=none",
        )


def check_shards(manifest: Manifest, storage: Storage) -> None:
    """Check that every shard exists with the manifest's size (of very many: a seeded sample).

    Raises DatasetError, and what ``storage.size`` and ``storage.list`` raise.
    """
    count, sizes = manifest.shard_count, manifest.shards["size"]
    size_of: Callable[[str], int | None] = storage.size
    shards: Iterable[int] = range(count)
    if local_root(innermost(storage)) is None and count > _FEW_SHARDS:
        size_of = {entry.key: entry.size for entry in storage.list(manifest.folder())}.get
    elif count > _CHECKED_SHARDS:
        chance = np.random.default_rng(0)
        shards = chance.choice(count, _CHECKED_SHARDS, replace=False).tolist()
    for shard in shards:
        key, wanted = manifest.key(shard), int(sizes[shard])
        if (actual := size_of(key)) != wanted:
            what = f"shard {key} has {actual} bytes, the manifest says {wanted}"
            if actual is None:
                what = f"shard {key} is missing in {storage.url}"
            raise DatasetError(what, remedy="find all damage with: iobench verify")


def check_local_cache(spec: LocalCacheSpec, stored_bytes: int) -> None:
    """Raises UsageError if its directory is not there, or has no room for what it may hold."""
    if not Path(spec.directory).is_dir():
        raise UsageError(
            f"local_cache.directory {spec.directory} is not a directory of this host",
            remedy="make it, or name another one with --cache-dir",
        )
    check_room(
        spec.directory,
        min(spec.size, stored_bytes),
        "the local cache takes up to",
        "use a smaller --cache-size, or another --cache-dir",
    )


def check_room(url: str, needed: float, what: str, remedy: str) -> None:
    """Check that a local place has room for what a window writes. Raises NoRoomError.

    ``needed``: bytes. ``what``: with its verb, for the message.
    """
    root = local_root(innermost(open_storage(url)))
    if root is not None:
        require_room(root, needed, what, remedy)


def steps_per_repetition(workload: Workload, *, samples: int, accelerators: int) -> int:
    """Steps of each accelerator in a repetition, over all its epochs."""
    if workload.evaluation is not None:
        samples = round(samples * (1 - workload.evaluation.share))
    if workload.reader.tail == "drop":
        batches = samples // accelerators // workload.batch_size
    else:
        batches = -(-samples // accelerators // workload.batch_size)
    steps = max(1, batches) * workload.epochs
    return steps if workload.max_steps is None else min(steps, workload.max_steps)
