"""Payload bytes: unique, incompressible, a pure function of seed, index and length."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from iobench.base import payload


def made(size: int, *, seed: int = 1, index: int = 0, ratio: float = 1.0, shift: int = 0) -> bytes:
    """A payload; ``shift`` moves the buffer off its natural alignment."""
    whole = memoryview(bytearray(size + shift))
    payload.fill(whole[shift:], seed=seed, index=index, compress_ratio=ratio)
    return bytes(whole[shift:])


def unique_blocks(data: bytes, size: int = 4096) -> float:
    blocks = [data[i : i + size] for i in range(0, len(data) - size + 1, size)]
    return len(set(blocks)) / len(blocks)


@given(
    size=st.integers(0, 70_000),
    seed=st.integers(0, 2**63 - 1),
    index=st.integers(0, 10**10),
    shift=st.integers(0, 9),
)
def test_same_arguments_same_bytes_at_any_address(
    size: int, seed: int, index: int, shift: int
) -> None:
    assert made(size, seed=seed, index=index) == made(size, seed=seed, index=index, shift=shift)


def test_bytes_are_those_of_the_first_release() -> None:
    """A dataset must come out the same in years: these digests may never change without a new
    LAYOUT_VERSION.
    """
    import xxhash

    assert xxhash.xxh3_64_hexdigest(made(100_000, seed=7, index=3)) == "bb1a90fbca1020e6"
    assert xxhash.xxh3_64_hexdigest(made(100_000, seed=7, index=3, ratio=2)) == "6fdb0cdc490d8786"


def test_unaligned_shards_hold_no_block_twice_and_zstd_finds_nothing() -> None:
    """Samples of odd sizes one after the other, as in a shard, whose 4 KiB blocks then straddle
    samples.

    The field's reference benchmark wrote zeros where it should have written data, which any storage
    that dedupes makes vanish.
    """
    rng = np.random.default_rng(5)
    sizes = [9 << 20, 5 << 20, *rng.integers(1000, 200_000, 500).tolist()]
    shard = b"".join(made(size, index=i) for i, size in enumerate(sizes))
    assert len(shard) > 60_000_000
    assert unique_blocks(shard) == 1
    assert unique_blocks(shard, 512) == 1
    parameters = zstandard.ZstdCompressionParameters.from_level(3, enable_ldm=True, window_log=27)
    assert (
        len(zstandard.ZstdCompressor(compression_params=parameters).compress(shard)) / len(shard)
        >= 0.999
    )


@pytest.mark.parametrize("ratio", [1.5, 2.0, 4.0, 8.0])
def test_compress_ratio_is_met(ratio: float) -> None:
    """The field's reference benchmark has a compression setting that changes nothing."""
    data = made(8 << 20, ratio=ratio)
    assert len(data) / len(zstandard.compress(data, 1)) == pytest.approx(ratio, rel=0.06)
    assert unique_blocks(data) == 1


@pytest.mark.parametrize("ratio", [1.0, 3.0, 1000.0])
@pytest.mark.parametrize("size", [24, 100, 4095, 4096, 4097, 50_001])
def test_identify(size: int, ratio: float) -> None:
    assert payload.identify(
        memoryview(made(size, seed=2**62, index=9_999_999_999, ratio=ratio))
    ) == (2**62, 9_999_999_999)


def test_identify_refuses_what_is_not_ours() -> None:
    assert payload.identify(memoryview(made(23))) is None
    assert payload.identify(memoryview(bytes(100))) is None
