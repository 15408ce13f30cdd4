"""A recorded run in each medium, as the verbs print it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iobench.record.run import RunRecord
from iobench.report.record import sections
from iobench.report.render_csv import render_csv
from iobench.report.render_text import render_text


def run_text(doc: RunRecord, width: int = 100, color: bool = False) -> str:
    return render_text(sections(doc), width=width, color=color)


def of_changes(run: Path) -> dict[str, Any]:
    """The record of a study in this directory, as if its saves had a twentieth of the state."""
    doc: dict[str, Any] = json.loads((run / "run.json").read_text())
    job = doc["job"]
    times = ("blocked_s", "accepted_s", "durable_s", "committed_s", "bytes")
    base = {**job["saves"][0], "step": 0}
    job["base"] = base | {name: 20 * base[name] for name in times}
    job["state_bytes"] = 20 * job["bytes"]
    job["full_bytes"] //= 20
    job["spec"]["changed"] = "5%"
    return doc


def run_csv(doc: RunRecord) -> str:
    return render_csv(sections(doc))
