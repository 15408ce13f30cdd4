"""The samples of one shard that a scan has found, in columns: a few arrays for a million."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import DatasetError

Int64 = npt.NDArray[np.int64]


class FoundSample(NamedTuple):
    """One sample's bytes within its shard, and the suffix of its largest part's name ('.jpg')."""

    offset: int
    size: int
    suffix: str = ""


@dataclass(frozen=True, kw_only=True)
class ShardSamples:
    """The samples of one shard.

    ``offset`` and ``stored`` as in a manifest: the sample's stored bytes, or those of its block.
    """

    offset: Int64
    stored: Int64
    size: Int64  # bytes of the content, decompressed
    suffixes: frozenset[str] = frozenset({""})

    deflated: npt.NDArray[np.bool_] | None = None
    """Which samples are a zlib stream; None: none of them."""

    nbytes: int = 0
    """Bytes that have to be read to get all samples."""

    blocks: tuple[int, ...] = ()
    """Content bytes of each block, for formats that are read by blocks."""

    codecs: Counter[str] = field(default_factory=Counter)
    """Stored bytes by the codec of their pages."""

    notes: Counter[str] = field(default_factory=Counter)
    """Remarks for the reader of the report, and how many things each is about."""

    def __len__(self) -> int:
        return len(self.offset)


def listed(samples: Iterable[FoundSample], nbytes: int) -> ShardSamples:
    """Collect samples that are stored uncompressed, in a shard of ``nbytes``."""
    offsets, sizes = array("q"), array("q")  # compact, since a sample may have only 16 bytes
    suffixes: set[str] = set()
    for offset, size, suffix in samples:
        offsets.append(offset)
        sizes.append(size)
        suffixes.add(suffix)
    stored = np.array(sizes, np.int64)
    return ShardSamples(
        offset=np.array(offsets, np.int64),
        stored=stored,
        size=stored,
        suffixes=frozenset(suffixes),
        nbytes=nbytes,
    )


def suffix_of(name: str) -> str:
    """The last suffix of a name, in lower case: '.jpeg' of 'a/b.c/d.JPEG'; '' if there is none."""
    base = name.rpartition("/")[2]
    return "." + base.rpartition(".")[2].lower() if "." in base else ""


LEAVE_IT_OUT = "remove it, or scan only the directory with the undamaged files"


def damaged(key: str, why: str) -> DatasetError:
    return DatasetError(f"{key} cannot be read: {why}", remedy=LEAVE_IT_OUT)
