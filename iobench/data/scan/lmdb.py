"""Find the samples of a foreign LMDB file from its pages alone, without the library.

Each entry is one sample: its value as it is stored. Entries that describe the others, and labels,
are left out. Values are often pickled objects; nothing looks into them.
"""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from ...storage.window import Pages, ReadWindow
from ..formats.lmdb import Tree
from .hdf5 import EMPTY, LABELS
from .samples import ShardSamples, damaged, suffix_of

DESCRIBED = "entries are left out: their keys say that they describe the others"
LABELLED = "entries are left out: their keys say that they are labels"
DUPLICATES = "databases are left out: their keys have several values each"

_DESCRIBE = {
    "length",  # Open Catalyst
    "num-samples",  # text recognition
    "__len__",
    "__keys__",
    "metadata",  # ASE, as the next two
    "nextid",
    "deleted_ids",
}
"""Keys that hold facts about a file, unless it has no other entries."""


def lmdb(window: ReadWindow, key: str, size: int) -> ShardSamples:
    """Find the samples of a file.

    Raises DatasetError naming a file that is damaged or no LMDB, StorageError.
    """
    notes: Counter[str] = Counter()
    samples, described, labels = _Column(), _Column(), _Column()
    pages = Pages(window, size)
    try:
        tree = Tree(pages.between, size)
        for found in tree:
            if not found.size:
                notes[EMPTY] += 1
                continue
            name = found.key.decode("utf-8", "replace").lower()
            column = samples
            if name in _DESCRIBE:
                column = described
            elif name.partition("-")[0] in LABELS:
                column = labels
            column.add(found.offset, found.size, suffix_of(name))
    except (ValueError, OSError) as error:
        if pages.failure is not None:
            raise pages.failure from None
        raise damaged(key, str(error)) from None
    notes.update({DUPLICATES: tree.duplicates} if tree.duplicates else {})
    if samples.offset:
        notes.update({DESCRIBED: len(described.offset)} if described.offset else {})
        notes.update({LABELLED: len(labels.offset)} if labels.offset else {})
    else:
        samples = labels if labels.offset else described
    stored = np.array(samples.size, np.int64)
    return ShardSamples(
        offset=np.array(samples.offset, np.int64),
        stored=stored,
        size=stored,
        suffixes=frozenset(samples.suffixes or {""}),
        nbytes=int(stored.sum()),
        notes=notes,
    )


class _Column:
    """Places of values in a file: compact, because a file may hold millions."""

    def __init__(self) -> None:
        self.offset, self.size = array("q"), array("q")
        self.suffixes: set[str] = set()

    def add(self, offset: int, size: int, suffix: str) -> None:
        self.offset.append(offset)
        self.size.append(size)
        self.suffixes.add(suffix)
