"""Formats that are made from the record of a run itself, for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..base.errors import UsageError
from ..record.run import EVENTS_FILE, RunRecord, TrainingRecord
from ..report.media import MEDIA, Kind, refusal
from .terminal import show_data, show_json, show_pieces


def check_kind(form: str, kind: Kind, directory: Path, *, remedy: str = "") -> None:
    """Raise UsageError if the format ``form`` can't show a record of this kind."""
    why = refusal(form, kind)
    if why:
        other = "use another --format; --help has them all"
        raise UsageError(f"{why}: {directory}", remedy=remedy or other)


def export_all(form: str, docs: Sequence[RunRecord], directory: Path) -> None:
    """Print several records in the format ``form``, which can hold them."""
    if not MEDIA[form].several:
        remedy = "name one run directory"
        raise UsageError(f"--format {form} shows one run", remedy=remedy)
    for doc in docs:
        check_kind(form, doc.job.kind, directory)
    from ..report.export_openmetrics import openmetrics

    show_data(openmetrics(*docs))


def export(form: str, doc: RunRecord, directory: Path) -> None:
    """Print the record in the format ``form``. Raises IobenchError where events are missing."""
    check_kind(form, doc.job.kind, directory)
    if form == "openmetrics":
        from ..report.export_openmetrics import openmetrics

        show_data(openmetrics(doc))
    elif form == "mlperf":
        from ..report.export_mlperf import mlperf

        show_json(mlperf(doc))
    else:
        from ..host.timeline import read_events
        from ..report.export_trace import trace

        assert isinstance(doc, TrainingRecord)
        show_pieces(trace(doc, read_events(directory / EVENTS_FILE)))
