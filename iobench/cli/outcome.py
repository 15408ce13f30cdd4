"""The end of ``run``, ``checkpoint`` and ``report``.

The document is printed on stdout, and conditions of ``--fail-on`` that hold on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..analyse.verdict.thresholds import violations
from ..report.record import sections
from ..schema.record import RunRecord
from .printing import print_report
from .terminal import say, warn


def finish(doc: RunRecord, directory: Path, *, kind: str, fail_on: Sequence[str]) -> int:
    """Print ``doc`` as text, json, csv or markdown, and return the exit code.

    0: ok, 3: the run is invalid, 4: a condition of ``fail_on`` holds.
    """
    print_report(kind, doc, sections(doc))
    if kind == "text":
        say()
        say(f"results: {directory}")
        say(f"again:   iobench report {directory}")
    failed = violations(doc, fail_on)
    for line in failed:
        warn(f"--fail-on {line}")
    if doc.validity == "invalid":
        return 3
    return 4 if failed else 0
