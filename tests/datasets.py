"""Small datasets, made where a test wants them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from iobench.data.generator.engine import generate
from iobench.record.manifest import Manifest
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from iobench.storage.base import Storage
from iobench.storage.local.storage import LocalStorage


def spec_of(**keys: Any) -> DatasetSpec:
    """A specification with these keys; a few samples of a few kilobytes where they say nothing."""
    usual = {"name": "demo", "samples": 6, "sample_size": {"mean": 3000}}
    return build(DatasetSpec, usual | keys, where="test")


def generated(place: Path | Storage, **keys: Any) -> Manifest:
    """Such a dataset, generated in this process."""
    storage = LocalStorage(place) if isinstance(place, Path) else place
    return generate(spec_of(**keys), storage, workers=0).manifest


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Kind and mode, time of change, and digest of everything in and below a folder."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        whole = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest = hashlib.sha256(whole).hexdigest()
        found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, digest)
    return found
