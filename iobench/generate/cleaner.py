"""Take a dataset away again: exactly the files that generate made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DatasetError, TargetRefusedError
from ..safety import check_target, remove_exactly
from ..spec.base import build
from ..spec.dataset import DatasetSpec
from ..spec.manifest import DATA, MANIFEST, MARKER, SAMPLES, SHARDS, Keys
from .journal import JOURNAL
from .plan import plan_shards

_JOURNAL_ENTRY = re.compile(rf"{re.escape(JOURNAL)}/\d{{8}}\.json")
_PART = ".part"  # what a storage calls a file that is not complete yet


class CleanReport(NamedTuple):
    """What was removed (or, in a dry run, would be), and what was left because iobench did not make it."""

    root: Path
    files: int
    bytes: int
    foreign: list[str]
    root_removed: bool
    dry_run: bool


def clean(root: str | Path, *, dry_run: bool = False) -> CleanReport:
    """Remove the dataset at ``root``, complete or half generated, and nothing else.

    Raises TargetRefusedError for a directory without iobench's marker, DatasetError for a marker that cannot be read.
    """
    path = check_target(root)
    if not path.is_dir():
        raise DatasetError(f"nothing to clean at {root}: no such directory")
    marker = read_marker(path)
    if marker is None:
        raise TargetRefusedError(f"{root} was not made by iobench (no {MARKER}), so nothing in it is removed")
    spec = build(DatasetSpec, marker["spec"], where=str(path / MARKER))
    keys = Keys(spec)
    owned = {keys(shard) for shard in range(plan_shards(spec).shard_count)} | {MANIFEST, SAMPLES, SHARDS, MARKER}

    def is_owned(name: str) -> bool:
        name = name.removesuffix(_PART)
        return name in owned or _JOURNAL_ENTRY.fullmatch(name) is not None

    folders = {key.rpartition("/")[0] for key in owned} | {DATA, JOURNAL}
    if not marker.get("made_root"):
        folders.discard("")
    removal = remove_exactly(path, is_owned, last=MARKER, folders=folders.__contains__, dry_run=dry_run)
    return CleanReport(path, removal.files, removal.bytes, removal.foreign, removal.root_removed, dry_run)


def read_marker(root: Path) -> dict[str, Any] | None:
    """The marker's contents; None where there is none. Raises DatasetError for one that is damaged."""
    marker = root / MARKER
    if marker.is_symlink() or not marker.is_file():
        return None
    return parse_marker(marker.read_bytes(), where=str(marker))


def parse_marker(text: bytes, *, where: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
        if isinstance(data, dict) and isinstance(data["id"], str) and isinstance(data["spec"], dict):
            return data
    except (ValueError, KeyError):
        pass
    raise DatasetError(f"{where} is damaged", remedy="remove the directory by hand, or generate elsewhere")
