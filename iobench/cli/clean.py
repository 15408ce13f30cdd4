"""``iobench clean``: remove exactly the files that iobench made."""

from __future__ import annotations

from ..base.errors import StorageError
from ..base.safety import Removal
from ..base.units import counted, format_bytes, format_count
from ..checkpoint.place import MARKER, clean_exclusively
from ..data.generator import clean
from ..data.generator.cleaner import CleanReport
from ..record.manifest import MARKER as DATASET
from ..storage import open_storage
from ..storage.catalog import exists
from .terminal import say, show_json
from .verbs import CleanRequest

_SHOWN = 10
_WEIGHTS = ".safetensors"


def run(request: CleanRequest) -> int:
    report = (
        _checkpoints(request)
        or _weights(request)
        or clean(request.dir, dry_run=request.dry_run, break_lock=request.break_lock)
    )
    if request.json:
        show_json(report)
        return 0
    uploads = (
        f", and {format_count(report.unfinished)} unfinished uploads" if report.unfinished else ""
    )
    verb = "would remove" if report.dry_run else "removed"
    say(
        f"{verb} {counted(report.files, 'file')}, {format_bytes(report.bytes)}{uploads}: "
        f"{report.root}"
    )
    if report.foreign:
        more = len(report.foreign) - _SHOWN
        shown = ", ".join(report.foreign[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        say(f"left in place, not made by iobench or on another mount: {shown}")
    return 0


def _checkpoints(request: CleanRequest) -> CleanReport | None:
    """Clean a directory or URL with iobench's checkpoints; return None for any other."""
    storage = open_storage(request.dir)
    try:
        if not exists(storage, MARKER):
            return None
    except StorageError:
        return None  # the search for a dataset will report the problem
    removal = clean_exclusively(storage, dry_run=request.dry_run, break_lock=request.break_lock)
    return _report(request, removal)


def _weights(request: CleanRequest) -> CleanReport | None:
    """Clean a directory or URL with weights that iobench has made; return None for any other."""
    storage = open_storage(request.dir)
    try:
        if exists(storage, DATASET):
            return None
        if not any(entry.key.endswith(_WEIGHTS) for entry in storage.list()):
            return None
    except StorageError:
        return None
    from ..serve.generate import clean_weights

    removal = clean_weights(storage, dry_run=request.dry_run)
    return None if removal is None else _report(request, removal)


def _report(request: CleanRequest, removal: Removal) -> CleanReport:
    return CleanReport(
        request.dir,
        removal.files,
        removal.bytes,
        removal.foreign,
        removal.root_removed,
        request.dry_run,
    )
