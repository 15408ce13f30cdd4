"""The formats in which a report can be printed: one table for flags and errors.

A format of ``sections`` shows the report of any verb. A format of ``record`` is made from the
record of a run itself, for other programs, and shows only some kinds of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "training", "checkpoint", "model-load", "serving", "kv-cache", "ab", "sweep", "submission"
]
"""A kind of record that ``iobench report`` reads: a run by its job, or several runs together."""

KINDS: dict[Kind, str] = {
    "training": "runs that loaded data",
    "checkpoint": "checkpoint studies",
    "model-load": "loads of models",
    "serving": "runs that served requests",
    "kv-cache": "runs of a KV cache",
    "ab": "comparisons in turns",
    "sweep": "sweeps",
    "submission": "results of MLPerf Storage",
}
"""How errors name records of each kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Medium:
    """One format. ``tables``: it shows nothing but tables. ``kinds``: the records that it shows.

    ``several``: it can hold several records.
    """

    name: str
    of: Literal["sections", "record"] = "sections"
    tables: bool = False
    several: bool = True
    kinds: tuple[Kind, ...] = tuple(KINDS)


_RUNS: tuple[Kind, ...] = ("training", "checkpoint", "model-load", "serving", "kv-cache")

MEDIA: dict[str, Medium] = {
    medium.name: medium
    for medium in (
        Medium(name="text"),
        Medium(name="json"),
        Medium(name="csv", tables=True),
        Medium(name="markdown"),
        Medium(name="html"),
        Medium(name="github"),
        Medium(name="openmetrics", of="record", kinds=_RUNS),
        Medium(name="mlperf", of="record", several=False, kinds=("training", "checkpoint")),
        Medium(name="trace", of="record", several=False, kinds=("training",)),
    )
}

RECORDS = tuple(MEDIA)
"""The formats of a verb that prints records of runs."""

DOCUMENTS = tuple(name for name, medium in MEDIA.items() if medium.of == "sections")
"""The formats of a verb that prints a report with tables."""

PAGES = tuple(name for name in DOCUMENTS if not MEDIA[name].tables)
"""The formats of a verb that prints a report without tables."""


def is_export(name: str) -> bool:
    """Whether the format is made from the record itself, and not from the sections of a report."""
    return MEDIA[name].of == "record"


def refusal(name: str, kind: Kind) -> str:
    """Why the format ``name`` can't show a record of this kind; empty if it can."""
    medium = MEDIA[name]
    if kind in medium.kinds:
        return ""
    *more, last = (KINDS[each] for each in medium.kinds)
    shown = " and ".join(filter(None, (", ".join(more), last)))
    return f"--format {name} shows {shown}, not {KINDS[kind]}"
