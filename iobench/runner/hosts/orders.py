"""Phases that travel: what a phase is, without the readers and tables that each host has itself."""

from __future__ import annotations

from dataclasses import fields

from ...base.errors import HostLostError
from ...load import make_reader
from ...load.null import AnyReader, NullReader, ReadyReader
from ..calibration.bench import Bench
from ..phase import Phase, Saving
from .words import PhaseOrder, SavingOrder, Source

_SAME = sorted({each.name for each in fields(Phase)} & {each.name for each in fields(PhaseOrder)})


def order_of(phase: Phase, number: int, bench: Bench, meeting: str | None) -> PhaseOrder:
    """The order for another host to take part in this phase, the run's ``number``-th.

    ``meeting``: the URL at which the ranks meet, if they exchange gradients.
    """
    same = {name: getattr(phase, name) for name in _SAME}
    saves = None
    if (saving := phase.saving) is not None:
        saves = SavingOrder(every=saving.every, first=saving.first, rendezvous=saving.rendezvous)
    return PhaseOrder(
        number=number,
        source=_source(phase.reader, bench),
        copy_bytes=bench.copy_bytes,
        saves=saves,
        meeting=meeting,
        **same,
    )


def _source(reader: AnyReader | None, bench: Bench) -> Source:
    if reader is None:
        return "none"
    if isinstance(reader, NullReader):
        return "nothing"
    if isinstance(reader, ReadyReader):
        return "ready"
    if bench.is_copy(reader.storage):
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
    raise HostLostError(f"a phase was ordered that reads '{order.source}'")
