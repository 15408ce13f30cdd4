"""The specification of a workload: accelerator, batch size, reader, loader and cache state.

The loader under test: what its kind says, in one table that runs, records and reports ask.

A loader is iobench's own, one of a library, or the user's own; a loader of the user's own may also
be watched in a training that iobench does not run. What else a plug-in of a library says of itself
stands in its class (``load/libraries/base.py``).

What a workload names as code: a loader's factory with its arguments, and a model of the user's.

Whoever gives a workload on the command line, in Python or in a file of their own means that code. A
record may come from somebody else, so what it names is not imported before the user names it again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..base.errors import SpecError, UsageError
from ..base.text import printable
from ..base.units import MIN_SHARE
from .accelerator import read_recording
from .base import Bytes, Seconds, Strict, apply_overrides, build, read_spec
from .yamlfile import parse_yaml

OWN_LOADER = "iobench"
"""iobench's own reader in torch's DataLoader, and the default: the other kinds of loader are
libraries."""

USER_LOADER = "user"
"""A loader that the user's own function makes, named by ``loader.factory``."""

USER_READS = (
    "what your loader read of each file is not known; its processes' bytes are in job.loader.user"
)
"""Why reads of a loader of the user's own are not counted."""

_OURS = ("loader.", "reader.")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kind of loader under test.

    ``reads_itself``: it opens the files, so that iobench's reader has no part in a run: no direct
    IO, no reads ahead, no count of its reads, and no setting of the reader moves it.
    ``users``: the user's own code makes it, and decides what an epoch is and how many workers there
    are. ``anew``: of these, its workers start in each epoch again. ``watched``: iobench does not
    run it, so it runs once, as it is.
    """

    kind: str
    reads_itself: bool = True
    users: bool = False
    anew: bool = False
    watched: bool = False

    @property
    def library(self) -> bool:
        """Whether it is one of a library, which can't run without reading and preparing."""
        return self.reads_itself and not self.users

    @property
    def uncounted(self) -> str:
        """Why its reads from storage are not counted; empty if they are."""
        if self.library:
            return f"the reads of loader '{self.kind}' from storage are not counted"
        return USER_READS if self.users else ""

    def moved_by(self, setting: str) -> bool:
        """Whether a key of a workload, such as ``reader.concurrency``, changes what it does.

        The user's code is told the number of workers, and follows it or not.
        """
        return not self.users or setting == "loader.workers" or not setting.startswith(_OURS)


OWN = Subject(kind=OWN_LOADER, reads_itself=False)
"""iobench's own loader."""


def subject_of(kind: str | None, *, watched: bool = False, anew: bool = False) -> Subject:
    """The loader of this kind; None: iobench's own. One that is watched is the user's."""
    kind = USER_LOADER if watched else kind or OWN_LOADER
    if kind == OWN_LOADER:
        return OWN
    users = kind == USER_LOADER
    return Subject(kind=kind, users=users, anew=users and anew, watched=watched)


MAX_CONCURRENCY = 256
"""Largest ``reader.concurrency``. A read in flight is a thread of the worker, or a request."""


Engine = Literal["auto", "threads", "io_uring", "event_loop"]
"""How a worker keeps several reads in flight."""

Sync = Literal["step", "epoch", "none"]
"""When the ranks of a job wait for each other."""

Precision = Literal["float32", "bfloat16", "float16"]

MemoryFormat = Literal["contiguous", "channels_last"]

Allocator = Literal["system", "tcmalloc", "jemalloc"]


def _null_is_a_name(value: object) -> object:
    """Turn YAML's null into the text "null", the name of an accelerator and of a transport."""
    return "null" if value is None else value


_OF_A_RECORDING = frozenset({"steps", "accept_cpu"})

_OF_A_MODEL = frozenset(
    {"model", "precision", "memory_format", "compile", "optimizer", "learning_rate", "threads"}
    | {"bind", "gradient_sync", "peak_flops", "warm_up"}
)


class AcceleratorSpec(Strict):
    """One accelerator.

    ``kind``: ``emulated`` waits for ``step_time``, ``null`` takes batches as fast as they come,
    ``recorded`` and ``model`` are below (``iobench list accelerators``). ``name``: what reports
    call it. ``step_time`` is its busy time for one batch of the workload's ``batch_size``. Each
    batch is copied to ``device`` (``cuda``, ``cuda:N``, ``cpu``) before its step. With ``cuda``,
    the ranks take the host's devices in turn. ``sync``: ``step`` makes all ranks wait for each
    other after each step, as the all-reduce of data-parallel training does; ``epoch`` only at the
    end of an epoch; ``none`` never: each rank is a job of its own. ``model_parallel``: accelerators
    of a group that shares one batch, as tensor and pipeline parallel ones do: only one of them has
    a loader and counts as an accelerator, and the others are ranks that wait for it at the barrier
    of each step. ``staged``: batches that are accepted before the accelerator is free, with 1 as by
    a training loop that copies the next batch on a stream of its own; MLPerf Storage accepts none.

    For kind ``recorded``: ``steps`` is the file of step times that ``iobench train --record`` has
    written, and ``accept_cpu`` replays one of a CPU, too. For kind ``model``: ``model`` is trained
    on the batches, on ``device`` (the CPU if None), with ``optimizer`` and ``learning_rate``.
    ``precision``: bfloat16 and float16 by autocast. ``memory_format``: the order of the pixels and
    channels of images in memory. ``compile``: by ``torch.compile``. ``threads``: threads of torch
    in each rank; None: the cores of this process divided among the ranks. ``bind``: each rank and
    its workers keep to the cores of one NUMA node, or to a share of the cores of their own.
    ``allocator``: the library that gives memory to all processes. ``gradient_sync``: ``ddp``
    averages the gradients of all ranks in each step, as data-parallel training does; with ``none``
    each rank trains a model of its own. ``peak_flops``: FLOP/s that the device of one rank can
    reach at this precision, where iobench does not know it. ``warm_up``: a warm-up whose steps do
    not settle ends after this time, and at least three steps.
    """

    # For each kind the keys that it has no use for. Plug-ins may use any, or all but ``of_others``.
    of_others: ClassVar[frozenset[str]] = frozenset()
    unused: ClassVar[Mapping[str, frozenset[str]]] = {
        "emulated": _OF_A_RECORDING | _OF_A_MODEL,
        "null": _OF_A_RECORDING | _OF_A_MODEL | {"step_time"},
        "recorded": _OF_A_MODEL | {"step_time"},
        "model": _OF_A_RECORDING | {"step_time"},
    }

    kind: Annotated[str, BeforeValidator(_null_is_a_name)] = "emulated"
    name: str = "emulated"
    step_time: Seconds | None = Field(default=None, gt=0)
    device: str | None = Field(default=None, pattern=r"^(cpu|cuda(:\d+)?)$")
    sync: Sync = "step"
    model_parallel: int = Field(default=1, ge=1, le=1024)
    staged: int = Field(default=0, ge=0, le=1)
    steps: str | None = Field(default=None, min_length=1)
    accept_cpu: bool = False
    model: str | None = Field(default=None, min_length=1)
    precision: Precision = "float32"
    memory_format: MemoryFormat = "contiguous"
    compile: bool = False
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = Field(default=1e-3, gt=0, le=10)
    threads: int | None = Field(default=None, ge=1, le=4096)
    bind: Literal["none", "node", "cores"] = "none"
    allocator: Allocator = "system"
    gradient_sync: Literal["none", "ddp"] = "none"
    peak_flops: float | None = Field(default=None, gt=0, le=1e21)
    warm_up: Seconds = Field(default=20.0, ge=0, le=3600)

    @property
    def without_effect(self) -> frozenset[str]:
        """The keys that its kind has no use for."""
        return self.unused.get(self.kind, self.of_others)

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> AcceleratorSpec:
        if self.kind == "emulated" and self.step_time is None:
            raise ValueError("an emulated accelerator needs 'step_time', its busy time per batch")
        if self.kind == "recorded" and self.steps is None:
            raise ValueError(
                "a recorded accelerator needs 'steps', the file that 'iobench train --record' has "
                "written"
            )
        if self.kind == "model" and self.model is None:
            raise ValueError(
                "accelerator.kind model needs 'model', the name of one (iobench list networks) or "
                "module:class"
            )
        return self

    @model_validator(mode="after")
    def _groups_wait_at_a_barrier(self) -> AcceleratorSpec:
        if self.model_parallel > 1 and (self.sync != "step" or self.kind == "model"):
            raise ValueError(
                "the ranks of a model_parallel group wait at the barrier of each step: it needs "
                "sync=step, and an accelerator of kind 'emulated', 'recorded' or 'null'"
            )
        return self

    @model_validator(mode="after")
    def _exchanges_gradients_in_step(self) -> AcceleratorSpec:
        if self.gradient_sync == "ddp" and self.kind != "model":
            raise ValueError(
                f"gradient_sync=ddp needs kind 'model': an accelerator of kind '{self.kind}' has "
                "no gradients"
            )
        if self.gradient_sync == "ddp" and self.sync != "step":
            raise ValueError(
                "gradient_sync=ddp makes the ranks wait for each other at each step: it needs "
                "sync=step"
            )
        return self


class ReaderSpec(Strict):
    """How samples are read from storage.

    ``access``: ``random`` reads single samples, ``sequential`` reads whole shards in shuffled
    order, ``auto`` is sequential for datasets with many samples in a shard. ``shuffle``: a new
    random order in each epoch. ``block_size``: bytes of one sequential read at most. ``direct``:
    use O_DIRECT; ``auto`` means if the storage supports it. ``concurrency``: reads in flight within
    one worker. ``engine``: ``threads`` issues each from a thread of its own, ``io_uring`` all of
    them from one thread, with one system call for many (local files only; where the kernel refuses
    io_uring, threads are used), and ``event_loop`` all of them from one thread over connections of
    its own (S3 with the client obstore only; with another client or an HTTP proxy, threads are
    used). ``auto``: a run takes the one that reads faster here, by a trial before it; elsewhere it
    means ``threads``. ``decode``: decode the content (JPEG to pixels, npz to the array);
    decompression always happens. ``crop``: bytes of each sample that are passed on, after the whole
    sample was read and decoded (MLPerf's "resize"). ``check``: ``none``, ``format`` (the format's
    own checksums), or ``content`` (xxh3 of every sample against the manifest). ``mmap``: read local
    files through a memory map, as trainings on token files do; it uses the page cache, so it
    excludes ``direct``; ``auto`` maps what can be mapped, and reads other storage. ``columns``: for
    formats that store columns (Parquet), read only the first ``columns`` columns of each sample;
    None reads all. ``read_ahead``: while a worker waits for a batch or prepares it, it issues the
    requests of its next batches; ``auto`` does so where a batch has fewer requests than
    ``concurrency``, ``false`` never. Formats that are read by blocks never read ahead. ``tail``:
    ``keep`` delivers every sample once in an epoch (ranks differ by at most one batch), ``drop``
    leaves incomplete batches out. ``prep_time``: seconds by which a worker's preparation of a
    sample takes longer, the mean; it is slept, so it takes no CPU. ``prep_cv``: its coefficient of
    variation over the samples, lognormal, the same for a sample in each run; 0: all alike.
    """

    access: Literal["auto", "random", "sequential"] = "auto"
    shuffle: bool = True
    direct: Literal["auto"] | bool = "auto"
    concurrency: int = Field(default=4, ge=1, le=MAX_CONCURRENCY)
    engine: Engine = "threads"
    read_ahead: Literal["auto"] | bool = "auto"
    block_size: Bytes = Field(default=4 << 20, ge=4096, le=1 << 30)
    decode: bool = True
    crop: Bytes | None = Field(default=None, ge=1)
    check: Literal["none", "format", "content"] = "none"
    tail: Literal["keep", "drop"] = "keep"
    mmap: Literal["auto"] | bool = False
    columns: int | None = Field(default=None, ge=1)
    prep_time: Seconds = Field(default=0.0, ge=0, le=3600)
    prep_cv: float = Field(default=0.0, ge=0, le=10)

    @model_validator(mode="after")
    def _a_map_is_not_direct(self) -> ReaderSpec:
        if self.mmap is True and self.direct is True:
            raise ValueError(
                "reader.mmap reads through the page cache, reader.direct past it: "
                "set one of them to false"
            )
        return self

    @model_validator(mode="after")
    def _a_map_has_no_requests(self) -> ReaderSpec:
        if self.mmap is True and self.engine in ("io_uring", "event_loop"):
            raise ValueError("reader.mmap issues no reads of its own: use engine=threads with it")
        return self


_OF_THE_OWN_LOADER = frozenset({"transport", "pin_memory", "slot_size", "in_order"})


class LoaderSpec(Strict):
    """The loader of each rank, and how batches get from workers to the training process.

    ``kind``: ``iobench`` is iobench's own reader in torch's DataLoader; the other kinds are the
    libraries that ``iobench list loaders`` names. For these, ``workers`` and ``prefetch_factor``
    have the meaning that the library gives them, and ``transport``, ``pin_memory``, ``slot_size``
    and ``in_order`` are refused. ``transport``: ``ring`` (slots in shared memory; workers send
    only a slot number), ``tensor`` (torch's default collate), ``thread`` (no worker processes),
    ``null`` (byte counts only). ``slot_size``: bytes of one slot; None: the size of the largest
    batch. ``persistent_workers``: workers stay from one epoch to the next. ``start_method``: how
    their processes are started. ``pin_memory``: with ``transport=tensor`` and CUDA, batches are
    copied to page-locked memory. ``in_order``: batches arrive in the order of the epoch, so that
    one that takes long holds up all that are ready; with false each arrives when it is ready, as
    with torch's argument of that name, and no batch is read ahead (``reader.read_ahead``), since
    nobody knows whose it will be.

    ``factory`` is the user's function ``module:function`` for the kind ``user``, which is called
    with ``args`` in each rank and returns its loader. ``samples_per_batch``: samples in each of its
    batches; None: the leading dimension of its first tensor or array. ``replay``: ``samples`` puts
    the samples of one batch in place of its dataset, ``batches`` repeats ten of its batches.
    """

    of_others: ClassVar[frozenset[str]] = _OF_THE_OWN_LOADER | {"samples_per_batch"}
    unused: ClassVar[Mapping[str, frozenset[str]]] = {
        OWN_LOADER: frozenset({"samples_per_batch"}),
        USER_LOADER: _OF_THE_OWN_LOADER,
    }

    kind: str = OWN_LOADER
    workers: int = Field(default=2, ge=0, le=1024)
    prefetch_factor: int = Field(default=2, ge=1, le=1024)
    transport: Annotated[
        Literal["ring", "tensor", "thread", "null"], BeforeValidator(_null_is_a_name)
    ] = "ring"
    persistent_workers: bool = True
    pin_memory: bool = False
    start_method: Literal["fork", "spawn", "forkserver"] = "fork"
    slot_size: Bytes | None = Field(default=None, ge=4096)
    in_order: bool = True
    factory: str | None = None
    args: dict[str, str | int | float | bool] = Field(default_factory=dict)
    samples_per_batch: int | None = Field(default=None, ge=1, le=10**7)
    replay: Literal["none", "samples", "batches"] = "none"

    @model_validator(mode="after")
    def _a_user_loader_has_a_factory(self) -> LoaderSpec:
        if (self.kind == USER_LOADER) != (self.factory is not None):
            raise ValueError(
                f"kind '{USER_LOADER}' and 'factory' (module:function) belong together, and one of "
                "them is missing"
            )
        if self.kind != USER_LOADER and (self.args or self.replay != "none"):
            raise ValueError(f"'args' and 'replay' are of kind '{USER_LOADER}' only")
        return self

    @property
    def subject(self) -> Subject:
        """The loader that these settings name."""
        return subject_of(self.kind, anew=self.workers > 0 and not self.persistent_workers)

    def own(self) -> LoaderSpec:
        """These settings for iobench's own loader, without those of another one."""
        nothing: dict[str, object] = {"factory": None, "args": {}, "replay": "none"}
        return self.model_copy(update={"kind": OWN_LOADER, **nothing})

    @model_validator(mode="after")
    def _ring_needs_workers(self) -> LoaderSpec:
        if self.workers == 0 and self.transport == "thread":
            raise ValueError("transport 'thread' needs workers >= 1 (they are threads)")
        return self


class LocalCacheSpec(Strict):
    """A cache on a local disk in front of the data's storage, filled by the first read.

    ``directory`` must exist. ``size``: the most bytes of copies. ``eviction``: ``lru`` removes the
    object whose last read is longest ago, ``none`` keeps what came first. ``keep``: leave the
    copies there when the run ends; no other run reads them.
    """

    directory: str = Field(min_length=1)
    size: Bytes = Field(ge=1)
    eviction: Literal["lru", "none"] = "lru"
    keep: bool = False


class EvaluationSpec(Strict):
    """A pass over data that is not trained on, after an epoch.

    ``share``: of the shards, the last ones, which no epoch of the training reads. ``step_time``:
    of a batch without a backward pass; None: that of training. ``epochs_between``: epochs before
    each pass. ``batch_size``: None: that of training. Ranks do not wait for each other within it.
    """

    share: float = Field(gt=0, le=0.5)
    step_time: Seconds | None = Field(default=None, gt=0)
    epochs_between: int = Field(default=1, ge=1)
    batch_size: int | None = Field(default=None, ge=1, le=10**7)


class LogSpec(Strict):
    """What is written down of each request, and when it is committed.

    A record has ``record`` bytes, with ``inputs`` those of the sample, too. ``commit``: each
    ``record`` for itself; in a ``group``, of at most ``group_records`` or ``group_delay`` after its
    first; or at the ``rotation`` of a file alone, which is after ``rotate_bytes`` or
    ``rotate_delay``. On a storage whose objects can't grow, each commit is an object. ``wait``: an
    answer waits for the commit of its record, and offline the next batch does; ``auto``: if each
    record is committed for itself. ``writers``: each has a file, or an object, of its own. ``to``:
    a new or empty directory or URL for the log, of which nothing stays; None: none is written.
    """

    to: str | None = Field(default=None, min_length=1)
    record: Bytes = Field(default=1000, ge=1, le=64 << 20)
    inputs: bool = False
    commit: Literal["record", "group", "rotation"] = "record"
    group_records: int = Field(default=100, ge=1, le=10**6)
    group_delay: Seconds = Field(default=0.01, gt=0, le=3600)
    rotate_bytes: Bytes = Field(default=64 << 20, ge=1, le=1 << 40)
    rotate_delay: Seconds = Field(default=300.0, gt=0, le=86_400)
    wait: Literal["auto"] | bool = "auto"
    writers: int = Field(default=1, ge=1, le=256)

    @model_validator(mode="after")
    def _an_answer_can_wait(self) -> LogSpec:
        if self.waits and self.commit == "rotation":
            raise ValueError(
                "no answer can wait for the rotation of a file: set 'commit' to 'record' or "
                "'group', or 'wait' to false"
            )
        return self

    @property
    def waits(self) -> bool:
        """Whether an answer waits for the commit of its record."""
        return self.commit == "record" if self.wait == "auto" else self.wait


class Workload(Strict):
    """A training job: dataset, accelerator, batch size, reader, loader, and what it requires.

    ``dataset``: the name of the one that it is meant for. ``batch_size``: samples of one step of
    one accelerator. ``epochs``: passes over the data in a repetition. ``max_steps``: the most steps
    of each accelerator in a repetition; None: all. ``cache``: ``cold`` empties the page cache
    before each epoch, ``warm`` fills it before the first one, and ``any`` leaves it alone.
    ``required_accelerator_utilization``: the share of the time for which the accelerators must be
    busy, or else they starve. ``accelerator``, ``reader``, ``loader``, ``local_cache`` and
    ``evaluation`` have keys of their own.

    ``log``: of the log that inference offline writes, a record of each sample; none without
    ``log.to``. ``storage`` has options of the data's storage (``client``, ``endpoint`` and others),
    which override those in its URL.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    source: str = ""
    dataset: str
    accelerator: AcceleratorSpec
    batch_size: int = Field(ge=1, le=10**7)
    epochs: int = Field(default=1, ge=1, le=10**6)
    max_steps: int | None = Field(default=None, ge=1)
    cache: Literal["cold", "warm", "any"] = "cold"
    required_accelerator_utilization: float = Field(default=0.9, ge=MIN_SHARE, le=1)
    reader: ReaderSpec = ReaderSpec()
    loader: LoaderSpec = LoaderSpec()
    log: LogSpec = LogSpec()
    storage: dict[str, str | int | float | bool] = Field(default_factory=dict)
    local_cache: LocalCacheSpec | None = None
    evaluation: EvaluationSpec | None = None

    @model_validator(mode="after")
    def _evaluates_what_it_emulates(self) -> Workload:
        if self.evaluation is None:
            return self
        if self.loader.subject.reads_itself:
            raise ValueError(f"evaluation can't keep the loader '{self.loader.kind}' from a share")
        if self.accelerator.kind not in ("emulated", "null"):
            raise ValueError(
                "evaluation has a step time of its own: it needs accelerator.kind 'emulated' or "
                f"'null', and not '{self.accelerator.kind}'"
            )
        if self.accelerator.device is not None:
            raise ValueError("evaluation copies nothing to accelerator.device: leave that out")
        if self.local_cache is not None:
            raise ValueError("evaluation and local_cache can't be measured together")
        return self

    @model_validator(mode="after")
    def _sleeps_in_its_own_loader(self) -> Workload:
        if self.reader.prep_time and self.loader.subject.reads_itself:
            raise ValueError(
                "reader.prep_time is the time of iobench's own loader, and the loader "
                f"'{self.loader.kind}' would not take it: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _reads_ahead_in_order(self) -> Workload:
        if not self.loader.in_order and self.reader.read_ahead is True:
            raise ValueError(
                "reader.read_ahead announces batches to the workers that will make them, which "
                "nobody knows with loader.in_order=false: set one of them otherwise"
            )
        return self

    @model_validator(mode="after")
    def _only_its_own_reader_has_a_cache(self) -> Workload:
        if self.local_cache is not None and self.loader.subject.reads_itself:
            raise ValueError(
                f"local_cache is in front of iobench's own reader, and the loader "
                f"'{self.loader.kind}' opens files by itself"
            )
        if self.local_cache is not None and self.reader.mmap is True:
            raise ValueError("reader.mmap maps the files of the storage, not those of local_cache")
        if self.local_cache is not None and self.reader.engine in ("io_uring", "event_loop"):
            raise ValueError(
                f"local_cache is read by threads: it can't be used with reader.engine="
                f"{self.reader.engine}"
            )
        if self.local_cache is not None and self.cache == "warm":
            raise ValueError("cache=warm fills the page cache, which leaves nothing to local_cache")
        return self

    def storage_options(self) -> dict[str, str]:
        """Return the options of the storage as they are written in a URL."""
        return option_texts(self.storage)

    @property
    def samples_per_s_per_accelerator(self) -> float | None:
        """Samples per second that one accelerator consumes if it never waits.

        None without a step time.
        """
        return self.batch_size / self.accelerator.step_time if self.accelerator.step_time else None


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options of a storage as they are written in a URL: ``True`` becomes ``true``."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def load_workload(
    name: str, overrides: Sequence[str] = (), *, kinds: Iterable[str] = ()
) -> Workload:
    """Load a workload by name or path, with ``a.b=c`` overrides.

    ``kinds``: of accelerators and loaders that are measured in turns with this one, for which an
    override may be meant. Raises SpecError, UnknownNameError.
    """
    written, where = read_spec("workload", name)
    workload = build(Workload, apply_overrides(written, overrides), where=where)
    check_used(workload, written, where=where, also=None)
    check_used(workload, apply_overrides({}, overrides), where=where, also=kinds)
    return with_recording(workload)


def check_used(
    workload: Workload,
    given: Mapping[str, object],
    *,
    where: str,
    also: Iterable[str] | None = (),
) -> None:
    """Raise SpecError, which begins with ``where``, for a key of ``given`` that has no effect.

    ``given`` is what the user wrote of the workload. ``also``: other kinds for which it may be
    meant; None: those that are written there, which an override may have replaced.
    """
    for group in ("accelerator", "loader"):
        if group in given:
            spec = getattr(workload, group)
            check_group(spec, given[group], where=f"{where}: {group}", also=also)


def check_group(
    spec: AcceleratorSpec | LoaderSpec,
    given: object,
    *,
    where: str,
    also: Iterable[str] | None = (),
) -> None:
    """As ``check_used`` for one group of keys. A key with its default value asks for nothing."""
    if not isinstance(given, Mapping):
        return  # an override has replaced it
    fields = type(spec).model_fields
    if also is None:
        also = [str(_null_is_a_name(given.get("kind", fields["kind"].default)))]
    kinds = {spec.kind, *also}
    for key in given:
        if not all(key in spec.unused.get(kind, spec.of_others) for kind in kinds):
            continue
        if getattr(spec, key) != fields[key].default:
            users = " or ".join(
                f"'{kind}'" for kind, keys in spec.unused.items() if key not in keys
            )
            raise SpecError(
                f"{where}.{key} has no effect with kind '{spec.kind}'",
                remedy=f"leave it out, or set kind to {users}",
            )


def with_recording(workload: Workload) -> Workload:
    """Give a workload with a recorded accelerator the mean of the recording as its step time.

    Other workloads are returned as they are. Raises UsageError, IobenchError for a file that is no
    recording, and UsageError if it is of another batch size, or of a CPU, whose steps a sleep can't
    stand for.
    """
    spec = workload.accelerator
    if spec.kind != "recorded" or spec.steps is None:
        return workload
    recording = read_recording(spec.steps)
    if recording.batch_size != workload.batch_size:
        raise UsageError(
            f"{spec.steps} was recorded with batches of {recording.batch_size}, but the workload "
            f"has batches of {workload.batch_size}",
            remedy=f"use --set batch_size={recording.batch_size}, or record again",
        )
    if recording.device_kind == "cpu" and not spec.accept_cpu:
        raise UsageError(
            f"{spec.steps} was recorded on a CPU: a training there shares the cores with the "
            "loader, and a replay does not",
            remedy="train for real with iobench train, or use --set accelerator.accept_cpu=true",
        )
    named = f"{recording.model} on {recording.where.device or recording.device_kind}"
    known = spec.model_copy(update={"step_time": recording.mean_s, "name": named})
    return workload.model_copy(update={"accelerator": known})


Named = Mapping[str, object]
"""What is named as code: the keys as of ``--set``, with their values."""

MODEL, FACTORY, ARGS = "accelerator.model", "loader.factory", "loader.args"

_MAX_SHOWN = 300


def code_of(settings: Mapping[str, object]) -> dict[str, object]:
    """What the settings of a workload name as code; they may be wrong, or a part of a workload."""
    found: dict[str, object] = {}
    loader, accelerator = settings.get("loader"), settings.get("accelerator")
    if isinstance(loader, Mapping):
        if loader.get("factory") is not None:
            found[FACTORY] = loader["factory"]
        args = loader.get("args")
        if isinstance(args, Mapping):
            found |= {f"{ARGS}.{key}": value for key, value in args.items()}
    model = accelerator.get("model") if isinstance(accelerator, Mapping) else None
    # A name without a colon is one of iobench's own models, or of a plug-in that is installed.
    if model is not None and not (isinstance(model, str) and ":" not in model):
        found[MODEL] = model
    return found


def code_in(overrides: Iterable[str]) -> dict[str, object]:
    """What overrides, as of ``--set``, name as code. Raises SpecError."""
    return code_of(apply_overrides({}, [*overrides]))


def check_named(found: Named, said: Named, *, where: str) -> None:
    """Raise UsageError if a record (``where``) names code that the user did not say as well."""
    unsaid = [key for key, value in found.items() if key not in said or said[key] != value]
    if not unsaid:
        return
    again = " ".join(f"--set {_given(key, found[key])}" for key in found if key in unsaid)
    raise UsageError(
        f"{where} names code, but iobench does not run code only because a file names it",
        remedy=f"if you know that code, add {printable(again, _MAX_SHOWN)}",
    )


def check_given_again(
    keys: Iterable[str],
    said: Mapping[str, Sequence[object]],
    named: Mapping[str, Sequence[object]],
    *,
    what: str,
    when: str,
    remedy: str,
) -> None:
    """Raise UsageError if the user gives a key beside a record that decides it.

    What can be given again are keys of ``storage``, and code, as the record has ``named`` it.
    ``said``: the code that the user gives. ``what``: the record, and ``when`` it is used.
    """
    for key in keys:
        again = key in said and all(value in named.get(key, ()) for value in said[key])
        if key.partition(".")[0] != "storage" and not again:
            raise UsageError(
                f"'{key}' can't be changed when {when}: only keys of 'storage', and what {what} "
                "names as code, can be given again",
                remedy=remedy,
            )


def _given(key: str, value: object) -> str:
    """The word of a shell that sets the key to the value."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    try:
        plain = parse_yaml(text) == value
    except ValueError:
        plain = False
    return shlex.quote(f"{key}={text if plain else json.dumps(text)}")
