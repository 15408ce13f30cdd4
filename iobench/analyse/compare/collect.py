"""Find recorded runs below a folder. Each run is read, or listed with the reason why it is not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import IobenchError, UsageError
from ...schema.record import RUN_FILE, RunRecord, load_run

DEPTH = 4
"""Levels of folders to search: results of several machines, sweeps, runs."""


@dataclass(slots=True)
class Collected:
    # run directory -> document, sorted by directory
    runs: dict[Path, RunRecord] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # one line each


def collect(place: Path, depth: int = DEPTH) -> Collected:
    """The run in ``place`` (a run directory or its ``run.json``), or all runs below it.

    ``depth``: levels of folders to search.

    A run that cannot be read (half written, another schema version) is left out and named in
    ``left_out``, and so is a folder that cannot be opened. So is a copy of another run, because a
    run that counts twice makes differences look more significant than they are. Raises UsageError
    if there is no run.
    """
    found = Collected()
    if _is(place, Path.is_file, found.left_out):
        place = place.parent
    if not _is(place, Path.is_dir, found.left_out):
        raise UsageError(
            found.left_out[0] if found.left_out else f"no such file or directory: {place}",
            remedy="name a run directory, or a directory of runs, e.g. results/<run>",
        )
    first: dict[bytes, Path] = {}
    for directory in sorted(_run_directories(place, depth, found.left_out)):
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
        except OSError as error:  # it was removed or closed after it was loaded
            found.left_out.append(_cannot_read(directory / RUN_FILE, error))
    if not found.runs:
        why = f": {found.left_out[0]}" if found.left_out else ""
        raise UsageError(
            f"{place} holds no run that can be read{why}",
            remedy="name a run directory, or a directory of runs",
        )
    return found


def beside(place: Path) -> tuple[Path, int]:
    """Where runs like those in ``place`` may be, and the levels of folders to search there.

    They are the runs of a folder itself, and the neighbours of a run.
    """
    if place.is_file():
        place = place.parent
    return (place.resolve().parent, 1) if (place / RUN_FILE).is_file() else (place, DEPTH)


def _run_directories(place: Path, depth: int, left_out: list[str]) -> Iterator[Path]:
    try:
        is_run = (place / RUN_FILE).is_file()
        inside = [] if is_run or depth == 0 else sorted(place.iterdir())
    except OSError as error:
        left_out.append(_cannot_read(place, error))
        return
    if is_run:
        yield place
    for path in inside:
        folder = not path.name.startswith(".") and _is(path, Path.is_dir, left_out)
        if folder and not path.is_symlink():
            yield from _run_directories(path, depth - 1, left_out)


def _is(path: Path, kind: Callable[[Path], bool], left_out: list[str]) -> bool:
    """``kind(path)``; False, and a line in ``left_out``, if the path may not be looked at."""
    try:
        return kind(path)
    except OSError as error:
        left_out.append(_cannot_read(path, error))
        return False


def _cannot_read(path: Path, error: OSError) -> str:
    return f"cannot read {path}: {error.strerror or error}"
