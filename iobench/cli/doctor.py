"""``iobench doctor``: facts of this machine and storage, and what could look like slow storage."""

from __future__ import annotations

import os

from ..base.errors import UsageError
from ..host.doctor import examine, findings, lines
from .terminal import say, show_json
from .verbs import DoctorRequest


def run(request: DoctorRequest) -> int:
    if "://" in request.path:
        raise UsageError(
            f"'{request.path}' is a URL, but doctor examines directories",
            remedy="to measure reads from a URL: iobench probe URL",
        )
    if not os.path.exists(request.path):
        raise UsageError(
            f"no such directory: {request.path}",
            remedy="name an existing directory on the storage to examine",
        )
    facts = examine(request.path)
    found = findings(facts)
    if request.json:
        show_json({**facts, "findings": found})
        return 0
    rows = lines(facts)
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        say(f"{label:<{width}}  {text}")
    say()
    for finding in found:
        say(f"{finding.level}: {finding.evidence} [{finding.rule}]")
        say(f"  -> {finding.remedy}")
    if not found:
        say("no problem was found")
    return 0
