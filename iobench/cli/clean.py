"""``iobench clean``: remove exactly the files that iobench made."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.errors import StorageError
from ..base.units import counted, format_bytes, format_count
from ..checkpoint.place import CHECKPOINTS
from ..checkpoint.place import clean as clean_checkpoints
from ..data.generator.cleaner import CleanReport, clean
from ..serve.kv.store import KV_CHUNKS
from ..serve.logs import LOGS
from ..serve.weights import WEIGHTS
from ..storage import open_storage
from ..storage.base import exists
from .terminal import show_lines
from .verbs import CleanRequest

_SHOWN = 10


def run(request: CleanRequest) -> int:
    report = _marked(request) or clean(
        request.dir, dry_run=request.dry_run, break_lock=request.break_lock
    )
    show_lines(report, _lines(report), json=request.json)
    return 0


def _lines(report: CleanReport) -> Iterator[str]:
    verb = "would remove" if report.dry_run else "removed"
    what = f"{counted(report.files, 'file')}, {format_bytes(report.bytes)}"
    if report.unfinished:
        what += f", and {format_count(report.unfinished)} unfinished uploads"
    yield f"{verb} {what}: {report.root}"
    if report.foreign:
        more = len(report.foreign) - _SHOWN
        shown = ", ".join(report.foreign[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield f"left in place, not made by iobench or on another mount: {shown}"


def _marked(request: CleanRequest) -> CleanReport | None:
    """Clean a directory or URL with checkpoints, weights, logs or chunks; None for any other."""
    storage = open_storage(request.dir)
    for kind, clean_kind in (
        (CHECKPOINTS, clean_checkpoints),
        (WEIGHTS, WEIGHTS.clean),
        (LOGS, LOGS.clean),
        (KV_CHUNKS, KV_CHUNKS.clean),
    ):
        try:
            if not exists(storage, kind.marker):
                continue
        except StorageError:
            return None  # the search for a dataset will report the problem
        removal = kind.clean_alone(
            storage, clean_kind, dry_run=request.dry_run, break_lock=request.break_lock
        )
        return CleanReport(request.dir, *removal, request.dry_run)
    return None
