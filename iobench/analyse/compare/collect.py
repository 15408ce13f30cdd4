"""Find recorded runs below a folder. Each run is read, or listed with the reason why it is not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import IobenchError, UsageError
from ...schema.record import RunRecord, load_run

RUN_FILE = "run.json"
DEPTH = 4
"""Levels of folders to search: results of several machines, sweeps, runs."""


@dataclass(slots=True)
class Collected:
    # run directory -> document, sorted by directory
    runs: dict[Path, RunRecord] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # one line each


def collect(place: Path) -> Collected:
    """The run in ``place`` (a run directory or its ``run.json``), or all runs below it.

    A run that cannot be read (half written, another schema version) is left out and named in
    ``left_out``. So is a copy of another run, because a run that counts twice makes differences
    look more significant than they are. Raises UsageError if there is no run.
    """
    if place.is_file():
        place = place.parent
    if not place.is_dir():
        raise UsageError(
            f"no such file or directory: {place}",
            remedy="name a run directory, or a directory of runs, e.g. results/<run>",
        )
    found = Collected()
    first: dict[bytes, Path] = {}
    for directory in sorted(_run_directories(place, DEPTH)):
        try:
            doc = load_run(directory)
            original = first.setdefault(
                hashlib.sha256((directory / RUN_FILE).read_bytes()).digest(), directory
            )
            if original is not directory:
                found.left_out.append(f"{directory} is a copy of {original}")
                continue
            found.runs[directory] = doc
        except IobenchError as error:
            found.left_out.append(str(error))
    if not found.runs:
        why = f": {found.left_out[0]}" if found.left_out else ""
        raise UsageError(
            f"{place} holds no run that can be read{why}",
            remedy="name a run directory, or a directory of runs",
        )
    return found


def _run_directories(place: Path, depth: int) -> Iterator[Path]:
    if (place / RUN_FILE).is_file():
        yield place
        return
    if depth == 0:
        return
    folders: Iterable[Path] = (
        path
        for path in place.iterdir()
        if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")
    )
    for folder in folders:
        yield from _run_directories(folder, depth - 1)
