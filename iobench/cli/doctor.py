"""``iobench doctor``: facts of this machine and storage, and what could look like slow storage."""

from __future__ import annotations

import os
from pathlib import Path

from ..base.documents import require_place
from ..base.errors import UsageError
from ..host.doctor import examine, findings, lines
from .terminal import show_lines
from .verbs import DoctorRequest


def run(request: DoctorRequest) -> int:
    wrapped = "+" in request.path.partition("/")[0]  # such as throttled+/mnt/fast
    if "://" in request.path or (wrapped and not os.path.exists(request.path)):
        raise UsageError(
            f"'{request.path}' is a URL, but doctor examines directories",
            remedy="to measure reads from a URL: iobench probe URL",
        )
    place = Path(request.path)
    require_place(place, "name one on the storage to examine", directory=False)
    facts = examine(request.path)
    found = findings(facts)
    rows = lines(facts)
    width = max(len(label) for label, _ in rows)
    told = [f"{label:<{width}}  {text}" for label, text in rows]
    for each in found:
        told += [f"{each.level}: {each.evidence} [{each.rule}]", f"  -> {each.remedy}"]
    told.insert(len(rows), "")
    problems = [] if found else ["no problem was found"]
    show_lines({**facts, "findings": found}, [*told, *problems], json=request.json)
    return 0
