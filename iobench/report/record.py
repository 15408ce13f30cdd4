"""The sections of a recorded run, of whatever kind it is."""

from __future__ import annotations

from ..schema.record import CheckpointRecord, RunRecord, TrainingRecord
from . import checkpoint, run
from .sections import Section


def sections(doc: RunRecord) -> list[Section]:
    """The report of a checkpoint study, or of a run that loaded data."""
    if isinstance(doc, CheckpointRecord):
        return checkpoint.sections(doc)
    assert isinstance(doc, TrainingRecord)
    return run.sections(doc)
