"""Objects in memory, scanned, verified and read: what becomes of data of others."""

from __future__ import annotations

from typing import Any

import numpy as np

from iobench.base.errors import IobenchError
from iobench.data.scan.scanner import scan
from iobench.data.verify import verify
from iobench.load.choose import make_reader
from iobench.record.manifest import Manifest
from iobench.settings.workload import ReaderSpec
from iobench.storage.base import Storage
from iobench.storage.simulated.memory import MemoryStorage


def stored_as(objects: dict[str, bytes]) -> MemoryStorage:
    return MemoryStorage(objects={key: memoryview(data) for key, data in objects.items()})


def contents(storage: Storage, manifest: Manifest, **how: Any) -> list[bytes]:
    """Every sample, as the reader delivers it."""
    reader = make_reader(manifest, storage, ReaderSpec(direct=False, **how))
    try:
        out = memoryview(bytearray(int(reader.room().sum()) + 4096))
        done = reader.read(np.arange(manifest.sample_count), out)
    finally:
        reader.close()
    ends = done.offsets + done.lengths
    return [bytes(out[a:b]) for a, b in zip(done.offsets.tolist(), ends.tolist(), strict=True)]


def look(objects: dict[str, bytes]) -> int:
    """Scan, verify and read; the number of samples, 0 where there is one error.

    What verify calls damaged, since it can't be decoded, is an error for the reader, too.
    """
    storage = stored_as(objects)
    try:
        manifest = scan(storage, checksums=True, workers=0).manifest
        good = verify(storage, manifest, workers=0).ok
        right = contents(storage, manifest, decode=False, check="content")
        assert [len(sample) for sample in right] == manifest.samples["size"].tolist()
        contents(storage, manifest)
        assert good
    except IobenchError:
        return 0
    return len(right)
