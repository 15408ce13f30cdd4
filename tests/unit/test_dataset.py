"""A dataset that is resolved once: its plug-ins, its keys, and what they know about one another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import DatasetError
from iobench.data.dataset import ResolvedSpec, cheaper_codecs, load_manifest
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec


def spec(**keys: Any) -> DatasetSpec:
    made = {"name": "x", "samples": 9, "sample_size": {"mean": 5000}, **keys}
    return build(DatasetSpec, made, where="test")


@pytest.mark.parametrize(
    ("keys", "key", "suffix", "blocks"),
    [
        ({}, "data/001234/001234567.bin", ".bin", False),
        ({"format": "npz", "codec": "zstd:3"}, "data/001234/001234567.npz.zst", ".npz.zst", False),
        ({"format": "tar", "content": "jpeg"}, "data/x-1234567.tar", ".jpg", False),
        ({"format": "parquet", "codec": "gzip"}, "data/x-1234567.parquet", ".bin.gz", True),
    ],
)
def test_plug_ins_decide_where_shards_lie(
    keys: dict[str, Any], key: str, suffix: str, blocks: bool
) -> None:
    found = ResolvedSpec.of(spec(**keys))
    assert found.keys(1234567) == key
    assert (found.suffix, found.blocks) == (suffix, blocks)
    assert found.packing.plain is (found.codec.name == "none")


@pytest.mark.parametrize(
    ("keys", "cheaper"),
    [
        ({"codec": "gzip:9"}, ["zstd", "lz4", "none"]),
        ({"codec": "zstd"}, ["lz4", "none"]),
        ({"codec": "none"}, []),
        ({"codec": "gzip", "format": "hdf5", "samples_per_shard": 3}, ["none"]),
    ],
)
def test_cheaper_codecs_are_those_that_the_format_takes(
    keys: dict[str, Any], cheaper: list[str]
) -> None:
    assert cheaper_codecs(ResolvedSpec.of(spec(**keys))) == cheaper


class TestOpened:
    def test_a_manifest_with_a_level_that_is_none(self, make_dataset: Any) -> None:
        _, path = make_dataset(format="tar", codec="zstd")
        file = Path(path) / "manifest.json"
        header = json.loads(file.read_text())
        header["spec"]["codec"] = "zstd:99"
        file.write_text(json.dumps(header))
        with pytest.raises(DatasetError, match=r"manifest\.json"):
            load_manifest(path)
