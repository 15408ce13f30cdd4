"""What the ranks of a training that was watched leave behind, and the record that is made of it.

The page cache, the counters and the storage are looked at once for each host, around the
iterations.

Ranks that one launcher (torchrun, srun, mpirun) has started have the same parent process. Its
number, the time of its start and how often this script has watched before give all of them the
same name, so they need not talk to each other. Whoever leaves makes the record of all ranks that
have left so far, so that a rank that dies takes none of the others' figures with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import psutil

from ..base import pagecache
from ..base.documents import json_text, walk, write_whole
from ..base.errors import DatasetError, IobenchError
from ..data.dataset import Dataset
from ..host import nfs, resources
from ..host.samples import Sampler, read_samples, write_samples
from ..host.timeline import Columns, read_events, write_events
from ..judge.rebuild import conclude
from ..judge.user_loader import user_findings
from ..judge.watched import NOT_IN_RATE, UNTESTED, watch_findings
from ..record.host import Host, NfsTraffic, Resources, StorageFacts
from ..record.job import DatasetFacts, LoaderFacts, LoaderSettings, UserFacts, WorkloadFacts
from ..record.run import EVENTS_FILE, SAMPLES_FILE, TrainingRecord
from ..record.training import WATCHED, Ceiling, Epoch, Repetition, TrainingRun, WatchedRank
from ..settings.base import fitting, read_json
from ..settings.workload import USER_LOADER, AcceleratorSpec, subject_of
from ..storage import is_local, open_storage
from ..storage.base import Storage, innermost, local_root
from ..subject.watched import EpochHooks
from .agent import CacheState, HostAgent, Used
from .results import (
    dataset_facts,
    make_directory,
    new_record,
    storage_facts,
    with_figures,
    write_document,
)

MAX_KEYS = 10_000
"""Files of the dataset whose pages are counted; of more, these are spread over it."""

MAX_WALK_S = 2.0
"""Seconds for which a directory without a manifest is searched for files."""

MAX_LOOK_S = 1.0
"""If one look at the page cache takes longer, there is none before later epochs."""

NO_DATA = "not measured: watch(data=...) did not say where the dataset is"


@dataclass(frozen=True, kw_only=True)
class Data:
    """The dataset of a training, as far as it is known."""

    storage: Storage | None = None
    root: str = ""  # its directory on this host; empty if it has none
    keys: Sequence[str] = ()
    of: str = ""  # what the keys are, if they are not all files
    facts: DatasetFacts = field(default_factory=DatasetFacts)
    about: StorageFacts = field(default_factory=StorageFacts)
    stored_bytes: float = 0.0  # of a sample, on average; 0: not known


def look_at(data: str | Path | None) -> Data:
    """Open the dataset: one that iobench has written or scanned, or any directory.

    Raises IobenchError if there is none.
    """
    if data is None:
        return Data()
    url = str(data)
    try:
        dataset = Dataset.open(url)
    except DatasetError:
        if not is_local(url) or not Path(url).is_dir():
            raise
        return _directory(Path(url).resolve())
    manifest, storage = dataset.manifest, open_storage(dataset.place)
    keys = manifest.keys()
    return Data(
        storage=storage,
        root=str(local_root(innermost(storage)) or ""),
        keys=_some(keys),
        of="" if len(keys) <= MAX_KEYS else f"of {MAX_KEYS:,} of its {len(keys):,} files",
        facts=dataset_facts(manifest, location=str(Path(url).resolve()) if is_local(url) else url),
        about=storage_facts(storage),
        stored_bytes=manifest.mean_stored_bytes,
    )


def _directory(root: Path) -> Data:
    """Any directory: how large a sample is in it is not known."""
    found: list[str] = []
    until = time.monotonic() + MAX_WALK_S
    whole = True
    for folder, names in walk(root):
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
        if len(found) > MAX_KEYS or time.monotonic() > until:
            whole = False
            break
    storage = open_storage(str(root))
    return Data(
        storage=storage,
        root=str(root),
        keys=found[:MAX_KEYS],
        of="" if whole else f"of the first {min(len(found), MAX_KEYS):,} files",
        facts=DatasetFacts(
            location=str(root),
            files=len(found) if whole else None,
        ),
        about=storage_facts(storage),
    )


class HostWatch(EpochHooks):
    """The page cache before each iteration, and the host's counters over time."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.agent = HostAgent(data.storage) if data.storage is not None else None
        self._root = data.root or None
        self.sampler = Sampler(self._root)
        self._before = resources.Snapshot.take(self._root)
        self._slow = ""

    def prepare(self, epoch: int) -> tuple[float | None, str]:
        if self._slow:
            self.sampler.prepare()
            return None, self._slow
        began = time.monotonic()
        state = self.cache_state()
        took = time.monotonic() - began
        if took > MAX_LOOK_S:
            self._slow = f"not measured: a look at the page cache took {took:.1f} s"
        self.sampler.prepare()
        return state.ratio, state.how

    def cache_state(self) -> CacheState:
        """What the page cache holds of the dataset."""
        if self.agent is None:
            return CacheState(None, NO_DATA)
        if not self.data.keys:
            return CacheState(None, "not measured: the directory has no file")
        state = self.agent.cache_state(self.data.keys)
        return CacheState(state.ratio, ", ".join(filter(None, (state.how, self.data.of))))

    def begin(self, epoch: int, start_ns: int) -> None:
        self.sampler.begin(epoch, start_ns)

    def tick(self) -> None:
        self.sampler.tick()

    def end(self) -> None:
        self.sampler.end()

    def used(self) -> tuple[Resources, NfsTraffic | None]:
        """What the host and the client of its NFS mount did since this was made."""
        now = resources.Snapshot.take(self._root)
        return resources.diff(self._before, now), nfs.diff(self._before.nfs, now.nfs)


def opened_files(names: Sequence[str], of: int) -> tuple[float | None, str]:
    """(share in the page cache, how it was measured) of files that a loader opened."""
    there = [name for name in names if Path(name).is_file()]
    if not there:
        return None, "not measured: no file that the loader opened is known"
    try:
        found = pagecache.residency(there)
    except IobenchError as error:
        return None, f"not measured: {error}"
    return found.ratio, f"{found.how}, {len(there):,} of the {of:,} files that were opened"


def _some(keys: list[str]) -> list[str]:
    step = -(-len(keys) // MAX_KEYS)
    return keys[:: max(1, step)]


RANKS = "ranks"
"""The folder of a run directory in which each rank leaves its part."""

PHASE = "measure"

_LAUNCH = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID"),
)
"""Variables that tell one launch from another of the same parent."""


class WatchedPart(NamedTuple):
    """What one rank measured: its facts, its steps, and samples of the host if it took them."""

    rank: WatchedRank
    steps: Columns
    samples: Columns | None


def shared_directory(results: Path, name: str, rank: int, count: int) -> Path:
    """The directory of this launch; ``count``: how often this process has watched before.

    Raises IobenchError if it can't be made.
    """
    parent = os.getppid()
    began = _started(parent)
    words = [parent, began, name, count, *(os.environ.get(each, "") for each in _LAUNCH)]
    token = hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()[:8]
    stamp = datetime.fromtimestamp(began, UTC).strftime("%Y%m%d-%H%M%S")
    directory = results / f"{name}-{stamp}-{token}"
    if (directory / RANKS / f"rank-{rank}.json").exists():  # a second job of this parent
        return shared_directory(results, name, rank, count + 1)
    make_directory(directory / RANKS, fresh=False)
    return directory


def _started(pid: int) -> float:
    """When a process began, in seconds since 1970; when the host did, if it can't be seen."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return psutil.boot_time()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the ranks' folder, so that two ranks that leave together write one after the other."""
    handle = os.open(directory / RANKS, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def leave(directory: Path, part: WatchedPart) -> None:
    """Write what this rank measured; its document last, since that says that the part is whole."""
    number = part.rank.rank
    place = directory / RANKS
    write_events(place / f"rank-{number}.parquet", [(PHASE, 0, number, part.steps)])
    if part.samples is not None:
        write_samples(place / f"host-{number}.parquet", [(PHASE, 0, part.samples)])
    write_whole(place / f"rank-{number}.json", json_text(part.rank) + "\n")


def parts_in(directory: Path) -> list[WatchedPart]:
    """The parts of all ranks that have left, in their order. Raises IobenchError."""
    found = []
    for path in sorted((directory / RANKS).glob("rank-*.json")):
        rank = fitting(path, WatchedRank, read_json(path, version="1", what="a run directory"))
        samples = path.with_name(f"host-{rank.rank}.parquet")
        found.append(
            WatchedPart(
                rank,
                read_events(path.with_suffix(".parquet")),
                read_samples(samples) if samples.exists() else None,
            )
        )
    return sorted(found, key=lambda part: part.rank.rank)


Ended = Literal["ok", "failed", "interrupted"]

CEILINGS = ("storage_raw", "fetch", "prep", "loader")
"""Ceilings that take runs of their own, which a training that is watched does not make."""


def merged(directory: Path, parts: Sequence[WatchedPart]) -> TrainingRecord:
    """The record of these ranks, concluded. At least one rank is there."""
    first = parts[0].rank
    leader = next((part for part in parts if part.rank.host.recorded), parts[0]).rank
    epochs, steps = epochs_of(parts), steps_of(parts)
    user = UserFacts.together([part.rank.user for part in parts])
    sizes = [part.rank.batch_size for part in parts if part.rank.batch_size]
    cpu = [part.rank.cpu_s for part in parts]
    context = Repetition(
        seed=0,
        accelerators=len(parts),
        sync="none",
        epochs=epochs,
        cpu_s=sum(filter(None, cpu)) if all(each is not None for each in cpu) else None,
        not_measured={"sync_s": NOT_IN_RATE},
    )
    repetition = with_figures(
        context,
        _together(steps),
        used=Used(leader.resources, leader.nfs) if leader.resources is not None else None,
        subject=subject_of(USER_LOADER, watched=True),
        workers=user.workers,
    )
    if not any(len(columns["step"]) for columns in steps):
        repetition = repetition.model_copy(update={"complete": False})
    stopped = [part.rank for part in parts if part.rank.status != "ok"]
    facts = first.facts.model_copy(
        update={
            "ranks": [part.rank.rank for part in parts],
            "between_s": float(np.mean([part.rank.facts.between_s or 0.0 for part in parts])),
            "lost": next((part.rank.facts.lost for part in parts if part.rank.facts.lost), ""),
            "resident_after": leader.facts.resident_after,
            "resident_how": leader.facts.resident_how,
        }
    )
    doc = new_record(
        TrainingRecord,
        directory.name,
        ["iobench.watch"],
        created=min(part.rank.created for part in parts),
        hosts=[leader.host if leader.host.recorded else Host()],
        storage=leader.storage,
        job=TrainingRun(
            accelerators=len(parts),
            workload=WorkloadFacts(
                name=first.name,
                accelerator=AcceleratorSpec(kind=WATCHED, name="your training", sync="none"),
                batch_size=max(sizes, key=sizes.count) if sizes else None,
                epochs=max(1, len(epochs)),
                cache="any",
                loader=LoaderSettings(
                    kind=USER_LOADER,
                    workers=user.workers,
                    prefetch_factor=first.prefetch_factor,
                ),
            ),
            dataset=leader.dataset,
            loader=LoaderFacts(kind=USER_LOADER, workers=user.workers, user=user),
            ceilings={name: Ceiling(not_measured=UNTESTED) for name in CEILINGS}
            | {"accelerator": _demand(steps)},
            repetitions=[repetition],
            no_ablations=UNTESTED,
            watched=facts,
        ),
    )
    doc.status = _status([rank.status for rank in stopped])
    doc.error = stopped[0].error if stopped else ""
    doc.timings = {"watched": max(part.rank.wall_s for part in parts)}
    doc.findings += user_findings(doc) + watch_findings(doc)
    return conclude(doc)


def epochs_of(parts: Sequence[WatchedPart]) -> list[Epoch]:
    """The epochs of all ranks.

    Starting workers is not left out of the times, as it is in a run of iobench: a training waits
    for it like for any other part of its loader.
    """
    found: dict[int, Epoch] = {}
    for part in parts:
        for own in part.rank.epochs:
            epoch = found.setdefault(own.epoch, Epoch(epoch=own.epoch))
            if own.residency_before is not None or not epoch.residency_how:
                epoch.residency_before = own.residency_before
                epoch.residency_how = own.residency_how
    return [found[number] for number in sorted(found)]


def steps_of(parts: Sequence[WatchedPart]) -> list[Columns]:
    """The steps of each rank; in a record, the ranks of a host are numbered from 0."""
    return [
        {**part.steps, "rank": np.full(len(part.steps["step"]), place)}
        for place, part in enumerate(parts)
    ]


def _together(steps: Sequence[Columns]) -> Columns:
    """The steps of all ranks in one table."""
    names = set.intersection(*(set(columns) for columns in steps)) - {"phase", "repetition"}
    return {name: np.concatenate([columns[name] for columns in steps]) for name in sorted(names)}


def _demand(steps: Sequence[Columns]) -> Ceiling:
    """The samples/s that the training would take if it never waited."""
    rates = []
    for columns in steps:
        busy = float(columns["busy_ns"].astype(np.int64).sum()) / 1e9
        samples = float(columns["samples"].astype(np.int64).sum())
        rates += [samples / busy] if busy > 0 else []
    if not rates or len(rates) < len(steps):
        return Ceiling(not_measured="no step was recorded")
    return Ceiling(
        by="computed",
        samples_per_s=sum(rates),
        how="samples over the time in which the training did not wait for batches",
    )


def _status(found: Sequence[Ended]) -> Ended:
    return "failed" if "failed" in found else found[0] if found else "ok"


def write(directory: Path, parts: Sequence[WatchedPart]) -> TrainingRecord:
    """Write the record of these ranks, and return it.

    What fewer ranks of this run have written there is replaced. Raises IobenchError.
    """
    doc = merged(directory, parts)
    token = secrets.token_hex(4)
    events = directory / f".events-{token}.parquet"
    keep = [
        (PHASE, 0, place, {name: columns[name] for name in columns if name not in _CONSTANT})
        for place, columns in enumerate(steps_of(parts))
    ]
    doc.files = {EVENTS_FILE: write_events(events, keep)}
    events.replace(directory / EVENTS_FILE)
    samples = next((part.samples for part in parts if part.samples is not None), None)
    if samples is not None:
        path = directory / f".samples-{token}.parquet"
        doc.files[SAMPLES_FILE] = write_samples(path, [(PHASE, 0, samples)])
        path.replace(directory / SAMPLES_FILE)
    write_document(directory, doc)
    return doc


_CONSTANT = ("phase", "repetition", "rank")
