"""``--history``: earlier runs, which tell how much equal runs differ from one another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..schema.record import RunRecord


def add_history(parser: argparse._ActionsContainer, which: str) -> None:
    """Add ``--history``. ``which``: the runs beside which others are looked for without it."""
    parser.add_argument(
        "--history",
        action="append",
        type=Path,
        metavar="DIR",
        help="directory of earlier runs, which tell the drift between runs (default: the runs "
        f"beside {which}); repeatable",
    )


def earlier_runs(args: argparse.Namespace) -> list[RunRecord]:
    """The valid runs in the directories of ``--history``, or in and beside ``args.results``."""
    from ..analyse.compare.runs import DEPTH, beside, collect, usable

    if args.history:
        places = [(path, DEPTH) for path in args.history]
    else:
        places = [beside(path) for path in args.results]
    runs: dict[Path, RunRecord] = {}
    for path, depth in dict.fromkeys(places):
        for directory, doc in collect(path, depth).runs.items():
            if not usable(doc, str(directory)):
                runs[directory.resolve()] = doc
    return list({doc.run_id: doc for doc in runs.values()}.values())
