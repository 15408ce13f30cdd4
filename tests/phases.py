"""Small phases of a run, over data that may fail under them."""

from __future__ import annotations

from typing import Any

from iobench.load.reader import BatchReader
from iobench.record.manifest import Manifest
from iobench.runner.phase import Phase
from iobench.settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from iobench.storage.base import Storage


def phase(manifest: Manifest, storage: Storage, **more: Any) -> Phase:
    """Two ranks with a worker each, which take batches of 8 in no time. ``more``: of a Phase."""
    reading = ReaderSpec(direct=False, concurrency=2)
    usual: dict[str, Any] = {
        "name": "measure",
        "reader": BatchReader(manifest, storage, reading),
        "reading": reading,
        "loading": LoaderSpec(workers=1),
        "accelerator": AcceleratorSpec(kind="null"),
        "accelerators": 2,
        "batch_size": 8,
        "seed": 1,
    }
    return Phase(**usual | more)
