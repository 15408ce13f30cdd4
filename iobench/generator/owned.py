"""Which names below a dataset's root belong to iobench: computed from each name, without a table.

A marker may claim any number of samples, so nothing here may grow with that number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ..dataset import ResolvedSpec
from ..load.libraries import LOADERS
from ..schema.dataset import DatasetSpec
from ..schema.manifest import (
    LAYOUTS,
    MANIFEST,
    MARKER,
    SAMPLES,
    SHARDS,
    layout_files,
    layout_lock,
    layout_names,
    unfinished_layout,
)
from ..schema.packing import DATA, Keys
from ..storage.locks.objects import READERS, is_lock_name
from .journal import JOURNAL, is_entry
from .plan import ShardNumbers

_PART = ".part"  # suffix that a storage gives a file which is not complete yet


class Owned:
    """The names of one dataset. ``root``: its directory, which may contain layouts, or None."""

    def __init__(self, spec: DatasetSpec, root: Path | None) -> None:
        """Raises SpecError and UnknownNameError for a spec that ``generate`` would have refused."""
        packing = ResolvedSpec.of(spec).packing
        self._keys = Keys(packing)
        self._shards = ShardNumbers(spec)
        index = packing.index_key
        self._files = {MANIFEST, SAMPLES, SHARDS, MARKER, *([index] if index else [])}
        self._folders = {DATA, JOURNAL, LAYOUTS, READERS, f"{LAYOUTS}/{READERS}"}
        self._unfinished: dict[str, Callable[[str], bool]] = {}
        if root is not None:
            self._add_layouts(root / LAYOUTS)

    def _add_layouts(self, folder: Path) -> None:
        for kind in LOADERS.entries():
            names = {f"{LAYOUTS}/{kind}/{name}" for name in layout_files(folder / kind)}
            self._files |= names | {f"{LAYOUTS}/{layout_lock(kind)}"}
            self._folders |= {f"{LAYOUTS}/{kind}", f"{LAYOUTS}/{kind}{_PART}"}
            for name in names:
                self._folders |= {str(above) for above in PurePosixPath(name).parents} - {"."}
            if patterns := unfinished_layout(folder / f"{kind}{_PART}"):
                self._unfinished[f"{LAYOUTS}/{kind}{_PART}/"] = layout_names(patterns)

    def file(self, name: str) -> bool:
        """Whether iobench made this file, complete or not."""
        if is_lock_name(name) or is_lock_name(name.removeprefix(f"{LAYOUTS}/")):
            return True
        whole = name.removesuffix(_PART)
        if whole in self._files or is_entry(name):
            return True
        shard = self._keys.number(whole)
        return (shard is not None and shard in self._shards) or self._in_unfinished(name)

    def _in_unfinished(self, name: str) -> bool:
        return any(
            name.startswith(folder) and is_ours(name.removeprefix(folder))
            for folder, is_ours in self._unfinished.items()
        )

    def folder(self, name: str) -> bool:
        """Whether iobench made this folder."""
        if name in self._folders:
            return True
        first = self._keys.folder(name)
        return first is not None and first in self._shards
