"""A recorded run in each medium, as the verbs print it."""

from __future__ import annotations

from iobench.record.run import RunRecord
from iobench.report.record import sections
from iobench.report.render_csv import render_csv
from iobench.report.render_text import render_text


def run_text(doc: RunRecord, width: int = 100, color: bool = False) -> str:
    return render_text(sections(doc), width=width, color=color)


def run_csv(doc: RunRecord) -> str:
    return render_csv(sections(doc))
