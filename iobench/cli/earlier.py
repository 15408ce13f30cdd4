"""``--history``: earlier runs, which tell how much equal runs differ from one another."""

from __future__ import annotations

from pathlib import Path

from ..ask.compare.runs import DEPTH, beside, collect, usable
from ..record.run import RunRecord
from .requests.understand import CompareRequest, CostRequest


def earlier_runs(request: CompareRequest | CostRequest) -> list[RunRecord]:
    """The valid runs in the directories of ``--history``, or in and beside ``request.results``."""
    if request.history:
        places = [(path, DEPTH) for path in request.history]
    else:
        places = [beside(path) for path in request.results]
    runs: dict[Path, RunRecord] = {}
    for path, depth in dict.fromkeys(places):
        for directory, doc in collect(path, depth).runs.items():
            if not usable(doc, str(directory)):
                runs[directory.resolve()] = doc
    return list({doc.run_id: doc for doc in runs.values()}.values())
