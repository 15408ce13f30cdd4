"""The shape of scanned data: a spec from which ``generate`` makes a similar dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.errors import UsageError
from ...base.text import printable
from ...base.units import counted
from ...settings.base import build
from ...settings.dataset import DatasetSpec
from ..codecs import CODECS
from ..contents import CONTENTS
from ..formats import FORMATS
from ..formats.base import Assembled
from .samples import ShardSamples

_QUANTILES = 33

_NEAREST = "lz4"
"""The codec most similar to Parquet codecs that iobench does not have (mostly snappy)."""

_LARGEST_BLOCK = 1 << 30  # limit of a DatasetSpec


def shape(
    name: str,
    form: str,
    content: str,
    codec: str,
    table: dict[str, Any],
    shards: Sequence[ShardSamples],
    count: int,
    url: str,
    notes: list[str],
) -> DatasetSpec:
    """Make a spec with the number of samples, sizes, format, content and codec of ``count`` shards.

    Adds to ``notes`` which properties of the data a clone can't have.
    """
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
        "description": f"the shape of {counted(len(sizes), 'sample')} in {counted(count, 'shard')}",
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
    packing = FORMATS.open(form)
    most = packing.max_shard_bytes if isinstance(packing, Assembled) else 0
    if most and (fit := int(most // max(1, sizes.mean()))) < data["samples_per_shard"]:
        notes.append(
            f"a clone has smaller shards: format '{form}' builds them in memory, of "
            f"{most >> 30} GiB at most"
        )
        data["samples_per_shard"] = max(1, fit)
    if data["codec"] != "none" and content != "jpeg":
        stored = sum(found.nbytes for found in shards)
        data["compress_ratio"] = round(min(1000.0, max(1.0, float(sizes.sum()) / stored)), 3)
    if content == "arrays":
        notes.append("a clone's files hold one stored array each, so that decoding them costs less")
    return build(DatasetSpec, data, where="the scan")


def _page_codec(shards: Sequence[ShardSamples], notes: list[str]) -> str:
    """The codec of most bytes, or the most similar one that iobench can write."""
    codecs: Counter[str] = sum((found.codecs for found in shards), Counter())
    if not codecs:
        return "none"
    ((codec, _),) = codecs.most_common(1)
    for name in CODECS.entries():
        try:
            if codec in CODECS.load(name).parquet_names:
                return name
        except UsageError:
            continue  # a third-party codec that can't be loaded can't write a clone's pages
    notes.append(f"a clone has pages behind {_NEAREST}: format 'parquet' can't write {codec}")
    return _NEAREST


def _block_size(shards: Sequence[ShardSamples]) -> int:
    """Median bytes of samples in a full block; the last block of each shard may not be full."""
    full = [size for found in shards for size in (found.blocks[:-1] or found.blocks)]
    return min(_LARGEST_BLOCK, max(1, int(np.median(full))))
