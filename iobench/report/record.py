"""The sections of a recorded run, of whatever kind it is."""

from __future__ import annotations

from ..analyse.figures.events import Events
from ..schema.record import CheckpointRecord, RunRecord, TrainingRecord
from . import checkpoint, run
from .sections import Section


def sections(
    doc: RunRecord, events: Events | None = None, samples: Events | None = None
) -> list[Section]:
    """The report of a checkpoint study, or of a run that loaded data.

    ``events`` of the run, and ``samples`` of what its host did, add charts that only pages show.
    """
    if isinstance(doc, CheckpointRecord):
        return checkpoint.sections(doc)
    assert isinstance(doc, TrainingRecord)
    return run.sections(doc, events, samples)
