"""The JSON document of ``iobench cost``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ..analyse.compare.cost import Figures, Part
from ..analyse.compare.ranking import Against, Ranking
from ..schema.instances import Instance
from ..schema.verdict import Estimate

_FIGURES = tuple(field.name for field in fields(Figures))


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRecord:
    """The hosts of one type in an option."""

    hosts: int
    instance: Instance
    measured: bool  # the runs had this type of host
    run_ids: tuple[str, ...]
    samples_per_s: Estimate  # of one host; n: runs
    interval_basis: str
    accelerator_utilization_sustained: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionRecord:
    """One way to pay, and what is told of it compared with the first one."""

    machine: str
    hosts: int
    parts: tuple[PartRecord, ...]
    figures: Figures
    against: Against | None  # None: it is the first one
    differs: tuple[str, ...]  # in its runs, from those of the first one


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEvenRecord:
    machine: str
    kind: str
    other: str
    other_kind: str
    efficiency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingRecord:
    """The options for one workload, best first."""

    workload: str
    options: tuple[OptionRecord, ...]
    break_evens: tuple[BreakEvenRecord, ...]
    without_price: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostDocument:
    """The JSON document of ``iobench cost``."""

    rankings: tuple[RankingRecord, ...]
    left_out: tuple[str, ...]


def document(found: Sequence[Ranking], left_out: Sequence[str]) -> CostDocument:
    """The rankings, and the runs that were left out."""
    return CostDocument(
        rankings=tuple(
            RankingRecord(
                workload=one.workload,
                options=tuple(
                    OptionRecord(
                        machine=option.machine,
                        hosts=option.hosts,
                        parts=tuple(_part(part) for part in option.parts),
                        figures=Figures(**{key: getattr(option, key) for key in _FIGURES}),
                        against=against,
                        differs=differs,
                    )
                    for option, against, differs in zip(
                        one.options, one.against, one.differs, strict=True
                    )
                ),
                break_evens=tuple(
                    BreakEvenRecord(
                        machine=each.option.machine,
                        kind=each.option.kind,
                        other=each.other.machine,
                        other_kind=each.other.kind,
                        efficiency=each.efficiency,
                    )
                    for each in one.break_evens
                ),
                without_price=one.without_price,
            )
            for one in found
        ),
        left_out=tuple(left_out),
    )


def _part(part: Part) -> PartRecord:
    pace = part.pace
    return PartRecord(
        hosts=part.hosts,
        instance=part.instance,
        measured=part.measured,
        run_ids=tuple(doc.run_id for doc in pace.runs),
        samples_per_s=Estimate(value=pace.middle, low=pace.low, high=pace.high, n=len(pace.values)),
        interval_basis=pace.basis,
        accelerator_utilization_sustained=pace.utilization,
    )
