"""What ranks of another host are to do, as the first host tells it: JSON, and nothing of a reader.

Each host has the dataset, the place of the checkpoints or the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...record.typed import OneOf
from ..phase import Phase, PhaseSettings
from ..tasks.model_load import LoadOrder


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseOrder:
    """A phase without what each host has itself.

    ``saves``: after how many steps the ranks save, and the number before that of the first save;
    their writers meet at ``rendezvous``. ``meeting``: the URL at which ranks meet that exchange
    gradients. ``in_step``: all hosts meet at each step.
    """

    phase: PhaseSettings
    saves: tuple[int, int] | None
    rendezvous: str
    meeting: str | None
    in_step: bool

    @classmethod
    def of(cls, phase: Phase, *, meeting: str | None, in_step: bool) -> PhaseOrder:
        saving = phase.saving
        return cls(
            phase=phase,
            saves=(saving.every, saving.first) if saving is not None else None,
            rendezvous=saving.rendezvous if saving is not None else "",
            meeting=meeting,
            in_step=in_step,
        )


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Ranks that only save. ``rendezvous``: where their writers meet."""

    rendezvous: str


Order = Annotated[PhaseOrder | SaveOrder | LoadOrder, OneOf(PhaseOrder, SaveOrder, LoadOrder)]
"""What ranks do: those of a phase, of a study, or of replicas of a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """Start your ranks: those from ``first`` on, ``count`` of the ``world``'s.

    ``offset_ns``: how far your clock is ahead of the first host's. ``number``: of these ranks in
    the run.
    """

    first: int
    count: int
    world: int
    offset_ns: int
    number: int
    order: Order
