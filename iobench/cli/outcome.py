"""How ``run``, ``checkpoint`` and ``report`` end: the document on stdout, broken conditions on stderr, the exit code."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..analyse.thresholds import violations
from ..report.checkpoint import render_study
from ..report.export import to_csv, to_json, to_markdown
from ..report.text import render_run
from ..spec.result import RunDocument


def finish(doc: RunDocument, directory: Path, *, kind: str, fail_on: Sequence[str]) -> int:
    """Print ``doc`` as text, json, csv or markdown. 0 ok, 3 where the run is invalid, 4 where a condition holds."""
    if kind == "text":
        terminal = sys.stdout.isatty()
        width = min(100, shutil.get_terminal_size((100, 24)).columns) if terminal else 100
        render = render_run if doc.checkpoint is None or doc.dataset else render_study
        sys.stdout.write(render(doc, width=max(60, width), color=terminal))
        print(f"\nresults: {directory}\nagain:   iobench report {directory}")
    else:
        sys.stdout.write({"json": to_json, "csv": to_csv, "markdown": to_markdown}[kind](doc))
    failed = violations(doc, fail_on)
    for line in failed:
        print(f"iobench: --fail-on {line}", file=sys.stderr)
    if doc.validity == "invalid":
        return 3
    return 4 if failed else 0
