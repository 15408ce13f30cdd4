"""Phases that travel: what a phase is, without the readers and tables that each host has itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from ...base.errors import MissingObjectError
from ...checkpoint.catalog import CheckpointRoot
from ...load import make_reader
from ...load.null import AnyReader, NullReader, ReadyReader
from ...record.typed import OneOf
from ...storage import open_storage
from ...storage.catalog import read_object
from ..calibration.bench import Bench
from ..checkpoint_plan import StudyPlan
from ..messages import Link
from ..phase import Phase, PhaseSettings, Saving
from ..study import rank_maker
from ..tasks.checkpoint import CheckpointRank
from .hosts import Copies
from .meeting import Meeting
from .store import set_interface

Source = Literal["none", "stored", "bytes", "copy", "nothing", "ready"]
"""What the reader of a phase reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingOrder:
    """The checkpoints of a phase; see ``phase.Saving``."""

    every: int
    first: int
    rendezvous: str


@dataclass(frozen=True, kw_only=True)
class PhaseOrder(PhaseSettings):
    """A phase as the agent of another host can make it from its own plan; see ``phase.Phase``.

    ``source``: the reader; ``copy_bytes``: how much of the dataset it copies into memory, if it
    reads such a copy. ``number``: of the phase in the run. ``meeting``: the URL at which its ranks
    meet, if they exchange gradients.
    """

    number: int
    source: Source
    copy_bytes: int
    saves: SavingOrder | None
    meeting: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SavesOrder:
    """The ranks of a checkpoint study, or the saves alone of a run with checkpoints.

    ``rendezvous``: where the writers of the ranks meet.
    """

    accelerators: int
    rendezvous: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Start your ranks of this phase, or of this study: those from ``first`` on, ``count`` of them.

    ``offset_ns``: how far your clock is ahead of the controller's. ``barrier_port``: where
    all hosts meet after each step, at the controller; 0: nowhere.
    """

    order: Annotated[PhaseOrder | SavesOrder, OneOf(PhaseOrder, SavesOrder)]
    first: int
    count: int
    offset_ns: int
    barrier_port: int


_SAME = [each.name for each in fields(PhaseSettings)]


def order_of(phase: Phase, number: int, copies: Copies, meeting: str | None) -> PhaseOrder:
    """The order for another host to take part in this phase, the run's ``number``-th.

    ``meeting``: the URL at which the ranks meet, if they exchange gradients.
    """
    same = {name: getattr(phase, name) for name in _SAME}
    saves = None
    if (saving := phase.saving) is not None:
        saves = SavingOrder(every=saving.every, first=saving.first, rendezvous=saving.rendezvous)
    return PhaseOrder(
        number=number,
        source=_source(phase.reader, copies),
        copy_bytes=copies.copy_bytes,
        saves=saves,
        meeting=meeting,
        **same,
    )


def _source(reader: AnyReader | None, copies: Copies) -> Source:
    if reader is None:
        return "none"
    if isinstance(reader, NullReader):
        return "nothing"
    if isinstance(reader, ReadyReader):
        return "ready"
    if copies.is_copy(reader.storage):
        return "copy"
    return "bytes" if reader.bytes_only else "stored"


def phase_of(order: PhaseOrder, bench: Bench, saving: Saving | None) -> Phase:
    """The phase that is ordered, over the dataset as this host sees it."""
    same = {name: getattr(order, name) for name in _SAME}
    return Phase(reader=_reader(order, bench), saving=saving, **same)


def _reader(order: PhaseOrder, bench: Bench) -> AnyReader | None:
    plan, reading = bench.plan, order.reading
    match order.source:
        case "none":
            return None
        case "nothing":
            return NullReader(plan.manifest, bench.delivered)
        case "ready":
            fetching = make_reader(plan.manifest, plan.storage, reading, bytes_only=True)
            return ReadyReader(fetching, bench.delivered)
        case "copy":
            copy = bench.copy_of(order.copy_bytes)
            return make_reader(copy.manifest, copy.storage, reading)
        case "bytes":
            return make_reader(plan.manifest, plan.storage, reading, bytes_only=True)
        case "stored":
            return make_reader(plan.manifest, plan.storage, reading)


class SavesThere:
    """What the ranks of a host that is not the controller's save, and where."""

    def __init__(self, meeting: Meeting, plan: StudyPlan) -> None:
        self.meeting, self.plan = meeting, plan
        self.root = CheckpointRoot.open(plan.url)

    def maker(self, rendezvous: str) -> Callable[[Link], CheckpointRank]:
        """As ``rank_maker``; the ranks meet those of the other hosts."""
        set_interface(self.meeting.wires[0].connection)
        # The context only removes a directory in which these ranks do not meet.
        with rank_maker(self.plan, self.root, rendezvous) as make:
            return make


def text_at(url: str, key: str) -> str:
    """A short text at this place; empty if there is none. No handle of it stays open."""
    storage = open_storage(url)
    try:
        return read_object(storage, key, max_bytes=1000).decode(errors="replace")
    except MissingObjectError:
        return ""
    finally:
        storage.close()
