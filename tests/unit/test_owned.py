"""Which names are a dataset's, worked out from the names: the same as a table of all of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.data.dataset import ResolvedSpec
from iobench.data.generator import plan
from iobench.data.generator.plan import ShardNumbers, plan_shards
from iobench.data.generator.target import Owned
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec

SIZES: list[dict[str, Any]] = [
    {"mean": 3000},
    {"mean": 70},
    {"distribution": "normal", "mean": 3000, "stdev": 2500},
    {"distribution": "lognormal", "mean": 900, "sigma": 2.0},
    {"distribution": "quantiles", "quantiles": [[0, 100], [0.9, 200], [1, 90_000]]},
]


def spec(**changes: Any) -> DatasetSpec:
    return build(
        DatasetSpec,
        {
            "name": "t-1",
            "samples": 10,
            "sample_size": SIZES[0],
            "content": "raw",
            "format": "tar",
            **changes,
        },
        where="test",
    )


@given(
    samples=st.integers(1, 700),
    size=st.sampled_from(SIZES),
    cut=st.sampled_from(
        [
            {"format": "files"},
            {"shard_size": 1},
            {"shard_size": 2999},
            {"shard_size": 50_000},
            {"samples_per_shard": 1},
            {"samples_per_shard": 7},
            {},
        ]
    ),
    seed=st.integers(0, 3),
    part=st.sampled_from([1, 7, 1 << 20]),
)
def test_shards_are_those_of_the_plan(
    samples: int, size: dict[str, Any], cut: dict[str, Any], seed: int, part: int
) -> None:
    wanted = spec(samples=samples, sample_size=size, seed=seed, **cut)
    count = plan_shards(wanted).shard_count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_PART_SAMPLES", part)
        for order in (range(samples + 3), reversed(range(samples + 3))):
            numbers = ShardNumbers(wanted)
            assert {number for number in order if number in numbers} == set(range(count))
    assert -1 not in ShardNumbers(wanted)


@given(
    shard=st.one_of(st.integers(0, 3000), st.integers(0, 10**15 - 1)),
    form=st.sampled_from(["files", "tar", "parquet"]),
    codec=st.sampled_from(["none", "zstd"]),
    each=st.sampled_from([None, 1, 7, 10**6]),
)
def test_a_key_tells_its_number(shard: int, form: str, codec: str, each: int | None) -> None:
    made: dict[str, Any] = {"format": form, "codec": codec if form != "parquet" else "none"}
    keys = ResolvedSpec.of(spec(**made, files_per_directory=each)).keys
    key = keys(shard)
    assert keys.number(key) == shard
    folder = key.rpartition("/")[0]
    assert keys.folder(folder) == (
        shard // (each or 1000) * (each or 1000) if form == "files" else None
    )
    for other in (f"x/{key}", f"{key}x", key[1:], key.replace("data/", "data//"), key.upper()):
        assert keys.number(other) is None


@pytest.mark.parametrize(
    "name",
    [
        *("data/t-1-00001.tar", "data/t-1-0000001.tar", "data/t-1--00001.tar", "data/t-1-.tar"),
        *("data/t-1-+00001.tar", "data/t-1-00000１.tar", "data/t-1-000001.tar.gz", "data", ""),
        *("data/t-2-000001.tar", "t-1-000001.tar", "data/t-1-" + "9" * 5000 + ".tar"),
    ],
)
def test_what_only_looks_like_a_shard(name: str) -> None:
    assert ResolvedSpec.of(spec()).keys.number(name) is None


@pytest.mark.parametrize(
    "name",
    ["data", "data/", "data/0", "data/00000a", "data/000000/x", "other/000000", "data/00000\u0661",
     "data/" + "9" * 16],
)  # fmt: skip
def test_what_only_looks_like_a_folder_of_shards(name: str) -> None:
    keys = ResolvedSpec.of(spec(format="files")).keys
    assert keys.folder("data/000012") == 12_000
    assert keys.folder(name) is None


@pytest.mark.parametrize("form", ["files", "tar"])
@pytest.mark.parametrize("size", [SIZES[0], SIZES[2]])
def test_a_marker_that_claims_very_many_samples_costs_nothing(
    form: str, size: dict[str, Any]
) -> None:
    wanted = spec(samples=10**10, sample_size=size, format=form)
    tracemalloc.start()
    owned = Owned(wanted, None)
    keys = ResolvedSpec.of(wanted).keys
    assert all(owned.file(keys(shard)) for shard in range(100))
    assert owned.file(f"{keys(5)}.part")
    assert not owned.file(keys(10**10))
    assert not owned.file("data/mine.tar")
    assert owned.folder("data/000000") == (form == "files")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20
