"""How long a model's weights take from storage into memory: what was asked, and what was measured.

A *replica* is one copy of the model that is to be served. It has ``tensor_parallel`` ranks, each a
process of its own. All ranks of all replicas begin at one instant, and a replica is *ready* when
the slowest of its ranks has its tensors. Times are in seconds from that instant.

A *trial* is one such start of all processes. ``left_out`` names the stage that it is made without:
without ``storage`` the same bytes come from memory, and without ``assembly`` the bytes are read and
no tensor is made of them.

Where there are several hosts, so many replicas start on each of them, all at the same instant.
"""

from __future__ import annotations

from typing import Literal

from ..settings.any_workload import LoadSpec
from ..settings.base import Count, Duration, Figure, Ranks, Record, Share
from .host import JobHost
from .verdict import Estimate

LoadStage = Literal["storage", "assembly", "device"]

Retained = Literal["nothing local", "local and cold", "page cache warm"]
"""What of the files a host has before a load: nothing, since another machine serves them; all on a
disk of its own, and nothing in its page cache; or all in its page cache."""


class TensorClass(Record):
    """The tensors of about one size."""

    name: str
    tensors: Count
    bytes: Count


class HostLoad(Record):
    """What one of several hosts did in a trial; its place in the list is that in ``job.hosts``."""

    ready_s: Figure  # of its slowest replica
    late_s: Figure = 0.0
    read_bytes: Count | None = None
    fetched_bytes: Count | None = None
    residency_before: Share | None = None
    residency_after: Share | None = None


class LoadTrial(Record):
    """One start of all replicas, by one loader.

    ``copy_s``: the files were read from a copy on local disk, which had taken so long to make.
    """

    round: Count
    loader: str  # empty: bytes are read, and no loader makes tensors of them
    replicas: Ranks  # of each host
    alone: bool = False  # on the first host, while the others did nothing
    left_out: LoadStage | None = None
    one_read: bool = False  # the replicas read a part each, and exchange it
    copy_s: Figure | None = None
    buffered: bool = False  # it reads through this host's page cache, as all replicas do
    ready_s: Figure  # of the slowest replica
    first_ready_s: Figure  # of the fastest rank
    late_s: Figure = 0.0  # how late the last rank began, after the common instant
    read_bytes: Count | None = None  # that all ranks asked for; None: the loader does not count
    fetched_bytes: Count | None = None  # that the storage delivered, by the kernel's counters
    fetched_how: str = ""
    cpu_s: Figure = 0.0  # of all ranks
    retries: Count = 0  # requests that the storage sent again
    throttled: Count = 0  # of these, after the server asked to slow down
    peak_memory_bytes: Count | None = None  # of the rank that took most, beside what it had before
    residency_before: Share | None = None  # share of the files in the page cache of the host
    residency_after: Share | None = None
    residency_how: str = ""
    class_s: dict[str, Figure] = {}  # assembly of all tensors of a class, slowest rank
    hosts: list[HostLoad] = []  # where there are several

    @property
    def each_host(self) -> list[HostLoad] | list[LoadTrial]:
        """What each host did; the trial itself where there is one host."""
        return self.hosts or [self]


class PlainReads(Record):
    """What the storage delivers to plain reads of the files, of which nothing is made."""

    round: Count
    replicas: Ranks  # whose reads in flight were made
    more: bool = False  # several times as many as these have
    in_flight: Count
    bytes_per_s: Figure


class LoadFigures(Record):
    """One loader with one number of replicas on each host.

    ``low`` and ``high`` are the fastest and the slowest round.
    """

    loader: str
    replicas: Ranks
    one_read: bool = False
    ready_s: Figure
    low_s: Figure
    high_s: Figure
    n: Count
    bytes_per_s: Figure  # of one model, over ``ready_s``
    read_amplification: Figure | None = None  # bytes read for a replica over bytes of the model
    gains: dict[LoadStage, Estimate] = {}  # ``ready_s`` over the time without the stage
    bottleneck: list[LoadStage] = []  # several: they can't be told apart; none: inconclusive
    # What plain reads take for the same bytes, of a loader that can't load without the storage;
    # then a bottleneck is inferred and not tested.
    plain_s: Figure | None = None
    alone_s: Figure | None = None  # of so many replicas on the first host alone
    promised_s: Estimate | None = None  # by the trials with fewer replicas, or of one host
    kept: bool | None = None  # what was found lies in the promised interval


class LocalCopy(Record):
    """Whether it pays to copy the files to local disk first."""

    to: str
    copy_s: Figure | None = None  # the median of the rounds
    ready_s: Figure | None = None  # from the copy, likewise
    starts: Estimate | None = None  # after so many starts the copy has paid
    never: bool = False  # a start from the copy is not faster


class ModelLoadRun(Record):
    """Loads of one model as the job of a run."""

    kind: Literal["model-load"] = "model-load"
    model: str
    # Of the files, with its wrappers; absolute for a local path.
    location: str | None = None
    bytes: Count
    tensors: Count
    shards: Count
    classes: list[TensorClass] = []
    spec: LoadSpec = LoadSpec()
    budget_s: Duration | None = None
    hosts: list[JobHost] = []  # on each of which the replicas are; empty: there was one
    started_by: str = ""  # what started iobench on many hosts
    trials: list[LoadTrial] = []
    plain: list[PlainReads] = []
    plain_how: str = ""  # with what they were made, and the bytes of a read
    left_out: dict[str, str] = {}  # what was not measured, and why
    failed: dict[str, str] = {}  # variants whose storage or process failed in a round
    copied: LocalCopy | None = None
    changed: list[str] | None = []  # files that changed while the run read them
    changed_unknown: str | None = None  # why ``changed`` is not known
    # These follow from the trials, and from the storage.
    retained: Retained | None = None  # None: what was asked for was not shown
    figures: list[LoadFigures] = []
    best: str = ""  # the loader that is fastest with the fewest replicas
    gain: Estimate | None = None  # of the best one over the next
    significant: bool = False  # whether that gain is more than noise
