"""What a run records that ``iobench.watch`` measured in a training of the user's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..settings.base import OpenRecord
from ..settings.numbers import Few, Figure, Share
from .host import Host, StorageFacts
from .job import DatasetFacts, UserFacts
from .resources import NfsTraffic, Resources

WATCHED = "watched"
"""The ``accelerator.kind`` of a training that iobench did not run."""


class WatchFacts(OpenRecord):
    """A training that was watched: what is known of it that no other run has.

    ``ranks``: the numbers of the ranks in the record, of ``world`` ranks. ``samples_by``: what the
    number of samples in a batch is. ``synchronized``: the CUDA device was awaited before each
    request for a batch, so that busy time has all of its work. ``between_s``: time of the context
    outside of its epochs, mean over the ranks: no part of any rate. ``resident_after``: share of
    the files in the page cache at the end, of those that ``resident_how`` names. ``lost``: why the
    batches of a rank were no longer counted.
    """

    ranks: list[Few] = Field(default_factory=list)
    world: Few = 1
    samples_by: str = ""
    synchronized: bool = False
    between_s: Figure | None = None
    resident_after: Share | None = None
    resident_how: str = ""
    lost: str = ""


class WatchedEpoch(OpenRecord):
    """One iteration over the loader by one rank."""

    epoch: Few
    residency_before: Share | None = None
    residency_how: str = ""


class WatchedRank(OpenRecord):
    """What one rank found out; its steps are in a file of events next to it."""

    schema_version: Literal["1"] = "1"
    name: str
    rank: Few = 0
    world: Few = 1
    created: str = ""
    status: Literal["ok", "failed", "interrupted"] = "ok"
    error: str = ""
    user: UserFacts = UserFacts()
    prefetch_factor: Few = 2
    batch_size: Annotated[int, Field(ge=1)] | None = None  # of most batches
    epochs: list[WatchedEpoch] = Field(default_factory=list)
    facts: WatchFacts = WatchFacts()
    wall_s: Figure = 0.0  # of the whole context
    cpu_s: Figure | None = None  # of this process and its workers
    resources: Resources | None = None
    nfs: NfsTraffic | None = None
    host: Host = Host()
    storage: StorageFacts = StorageFacts()
    dataset: DatasetFacts = DatasetFacts()
