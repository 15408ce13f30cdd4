"""A run's directory, and the document in it, which is written atomically."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from ..dataset import ResolvedSpec, cheaper_codecs
from ..documents import json_text, write_whole
from ..errors import IobenchError
from ..schema.base import fitting
from ..schema.host import StorageFacts
from ..schema.job import DatasetFacts, DatasetSpecFacts
from ..schema.manifest import Manifest
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


def dataset_facts(manifest: Manifest, *, location: str, origin: str | None = None) -> DatasetFacts:
    """What a record says of a dataset, whose manifest is at ``location``."""
    dataset = ResolvedSpec.of(manifest)
    return DatasetFacts(
        spec=DatasetSpecFacts.model_validate(manifest.spec.model_dump(mode="json")),
        location=location,
        origin=origin,
        id=manifest.header.id,
        samples=manifest.sample_count,
        shards=manifest.shard_count,
        stored_bytes=manifest.header.stored_bytes,
        sample_bytes_mean=manifest.mean_stored_bytes,
        blocks=dataset.blocks,
        cheaper_codecs=cheaper_codecs(dataset),
    )


def write_document(directory: Path, doc: RunRecord) -> None:
    """Write ``run.json`` atomically."""
    path = directory / RUN_FILE
    try:
        write_whole(path, json_text(doc) + "\n")
    except OSError as error:
        raise IobenchError(f"cannot write {path}: {error.strerror}") from error
