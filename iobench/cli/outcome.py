"""The end of ``run``, ``checkpoint`` and ``report``.

The document is printed on stdout, and conditions of ``--fail-on`` that hold on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..analyse.verdict.thresholds import violations
from ..report.export import to_csv, to_markdown
from ..report.text import render
from ..schema.record import RunRecord
from .terminal import columns, say, show, show_data, show_json, use_color, warn

MIN_WIDTH = 40
"""Smallest width of a report in columns; narrower terminals break its lines."""


def finish(doc: RunRecord, directory: Path, *, kind: str, fail_on: Sequence[str]) -> int:
    """Print ``doc`` as text, json, csv or markdown, and return the exit code.

    0: ok, 3: the run is invalid, 4: a condition of ``fail_on`` holds.
    """
    if kind == "text":
        show(render(doc, width=max(MIN_WIDTH, min(100, columns())), color=use_color()))
        say()
        say(f"results: {directory}")
        say(f"again:   iobench report {directory}")
    elif kind == "json":
        show_json(doc)
    else:
        show_data({"csv": to_csv, "markdown": to_markdown}[kind](doc))
    failed = violations(doc, fail_on)
    for line in failed:
        warn(f"--fail-on {line}")
    if doc.validity == "invalid":
        return 3
    return 4 if failed else 0
