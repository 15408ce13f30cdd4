"""A recorded run that was changed as little as its report needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
