"""A run's directory, and the document in it, which is written atomically."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from ..documents import json_text, write_whole
from ..errors import IobenchError
from ..schema.base import fitting
from ..schema.host import StorageFacts
from ..schema.record import RUN_FILE, RunRecord
from ..storage.base import Storage


def new_directory(results: Path, name: str) -> Path:
    """Make a fresh run directory; an existing one is never reused."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory = results / f"{name}-{stamp}-{secrets.token_hex(2)}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise IobenchError(
            f"cannot make the run directory {directory}: {error.strerror}",
            remedy="choose another with --results",
        ) from error
    return directory


def storage_facts(storage: Storage) -> StorageFacts:
    """The storage's own description. Raises IobenchError if a plug-in's has a wrong type."""
    return fitting(f"the description of {storage.url}", StorageFacts, storage.facts())


def write_document(directory: Path, doc: RunRecord) -> None:
    """Write ``run.json`` atomically."""
    path = directory / RUN_FILE
    try:
        write_whole(path, json_text(doc) + "\n")
    except OSError as error:
        raise IobenchError(f"cannot write {path}: {error.strerror}") from error
