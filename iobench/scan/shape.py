"""The shape of scanned data: a spec from which ``generate`` makes another like it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UsageError
from ..formats.hdf5 import MAX_SHARD
from ..registry import CODECS, CONTENTS
from ..schema.base import build
from ..schema.dataset import DatasetSpec
from ..text import printable
from .found import Found

_QUANTILES = 33

_NEAREST = "lz4"
"""The codec that comes nearest to those of Parquet that iobench does not have: snappy, mostly."""

_LARGEST_BLOCK = 1 << 30  # of a DatasetSpec


def shape(
    name: str,
    form: str,
    content: str,
    codec: str,
    table: dict[str, Any],
    shards: Sequence[Found],
    count: int,
    url: str,
    notes: list[str],
) -> DatasetSpec:
    """Counts, the distribution of sizes, format, content and codec, of ``count`` shards. ``notes`` takes what a clone can't have."""
    sizes = table["size"]
    least = CONTENTS.open(content).min_bytes
    if sizes.min() == sizes.max():
        distribution: dict[str, Any] = {
            "distribution": "constant",
            "mean": max(least, int(sizes[0])),
        }
    else:
        points = np.linspace(0, 1, _QUANTILES)
        values = np.maximum(least, np.quantile(sizes, points, method="inverted_cdf")).astype(
            np.int64
        )
        distribution = {
            "distribution": "quantiles",
            "quantiles": [[float(p), int(v)] for p, v in zip(points, values, strict=True)],
        }
        distribution |= {"min": int(values[0]), "max": int(values[-1])}
    data: dict[str, Any] = {
        "name": name,
        "description": f"the shape of {len(sizes)} samples in {count} shards",
        "source": f"scanned at {printable(url.partition('?')[0])}",
        "samples": len(sizes),
        "sample_size": distribution,
        "format": form,
        "content": content,
        "codec": codec,
    }
    if form != "files":
        data["samples_per_shard"] = max(1, round(len(sizes) / count))
    if form == "parquet":
        data |= {"codec": _page_codec(shards, notes), "block_size": _block_size(shards)}
    if (
        form == "hdf5"
        and (fit := int(MAX_SHARD // max(1, sizes.mean()))) < data["samples_per_shard"]
    ):
        notes.append(
            f"a clone has smaller shards: format 'hdf5' builds them in memory, of {MAX_SHARD >> 30} GiB at most"
        )
        data["samples_per_shard"] = max(1, fit)
    if data["codec"] != "none" and content != "jpeg":
        stored = sum(found.nbytes for found in shards)
        data["compress_ratio"] = round(min(1000.0, max(1.0, float(sizes.sum()) / stored)), 3)
    if content == "arrays":
        notes.append("a clone's files hold one stored array each, so that decoding them costs less")
    return build(DatasetSpec, data, where="the scan")


def _page_codec(shards: Sequence[Found], notes: list[str]) -> str:
    """The codec that most bytes are behind, or what comes nearest to it."""
    codecs: Counter[str] = sum((found.codecs for found in shards), Counter())
    if not codecs:
        return "none"
    ((codec, _),) = codecs.most_common(1)
    for name in CODECS.entries():
        try:
            if codec in CODECS.load(name).parquet_names:
                return name
        except UsageError:
            continue  # a third party's plug-in that can't be had writes no pages
    notes.append(f"a clone has pages behind {_NEAREST}: format 'parquet' can't write {codec}")
    return _NEAREST


def _block_size(shards: Sequence[Found]) -> int:
    """Bytes of samples in a full block: the last one of each shard holds what is left."""
    full = [size for found in shards for size in (found.blocks[:-1] or found.blocks)]
    return min(_LARGEST_BLOCK, max(1, int(np.median(full))))
