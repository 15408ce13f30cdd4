"""Unique, incompressible bytes at memory speed: keyed tiling.

A pool of 4 MiB is drawn once for each dataset seed (SFC64). Block ``b`` of sample ``i`` is the
pool's block ``b mod 1024`` XORed with one 64-bit key. Keys are a bijection of (i, b), so no two
blocks of a dataset are alike, and any range can be made alone, in any process. Where two blocks
share a pool block they differ in (nearly) every byte, so neither zstd --long nor deduplication
finds a match.

That holds for samples that are stored in one piece. A format that cuts samples into columns puts
the same few bytes of each of many samples beside one another, so there each word is drawn by itself
(``fill_for_columns``).
"""

from __future__ import annotations

import struct
import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..buffers import Buffer

BLOCK = 4096
_WORDS = BLOCK // 8
_POOL_BLOCKS = 1024
_CHUNK_BLOCKS = 64  # 256 KiB: stays in the core's own cache when it has to be copied once more

_MAGIC = b"iobench\x01"
_STAMP = struct.Struct("<8sqq")
STAMP_BYTES = _STAMP.size
"""Samples at least this long begin with magic, seed and index."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
"""By which splitmix64 counts."""

_RUN = 16
"""Samples. In narrow columns zeros come in runs: long enough for codecs, shorter than 4 KiB."""

_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, are spread evenly however many are taken."""

_INDEX_BITS = 34  # 1.7e10 samples (DatasetSpec allows 1e10)
_BLOCK_BITS = 64 - _INDEX_BITS  # of 4 KiB: samples of up to 4 TiB

_U64 = npt.NDArray[np.uint64]
_local = threading.local()


def mix64(x: _U64) -> _U64:
    """A bijection of 64-bit words whose outputs look random (the finaliser of splitmix64, Steele et al., OOPSLA 2014)."""
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fill(out: Buffer, *, seed: int, index: int, compress_ratio: float = 1.0) -> None:
    """Fill all of ``out`` with the payload of sample ``index``: a pure function of its length and the arguments.

    ``compress_ratio`` r > 1 zeroes the first 1 - 1/r of each 4 KiB block, so that every codec reaches about r.
    """
    total = len(out)
    words = pool(seed)
    zeros = zero_words(compress_ratio)
    address = np.frombuffer(out, dtype=np.uint8).ctypes.data if total else 0
    whole = total // BLOCK
    # numpy is several times slower on words that are not aligned: make those blocks in scratch, and copy.
    if whole and address % 8 == 0:
        _blocks(
            np.frombuffer(out[: whole * BLOCK], dtype=np.uint64).reshape(whole, _WORDS),
            words,
            seed,
            index,
            0,
            zeros,
        )
    elif whole:
        for first in range(0, whole, _CHUNK_BLOCKS):
            count = min(_CHUNK_BLOCKS, whole - first)
            scratch = _scratch()[:count]
            _blocks(scratch, words, seed, index, first, zeros)
            out[first * BLOCK : (first + count) * BLOCK] = scratch.data.cast("B")
    rest = total - whole * BLOCK
    if rest:
        scratch = _scratch()[:1]
        _blocks(scratch, words, seed, index, whole, 0)
        tail = scratch.view(np.uint8).reshape(-1)[:rest]
        tail[: min(rest - 1, rest * zeros // _WORDS)] = 0
        out[whole * BLOCK :] = tail.data
    if total >= STAMP_BYTES:
        _STAMP.pack_into(out, 0, _MAGIC, seed, index)


def fill_for_columns(out: Buffer, *, seed: int, index: int, compress_ratio: float = 1.0) -> None:
    """The same for samples that are cut into columns: any place of ``out`` differs in each sample.

    Word ``k`` of a sample is number ``k`` of the generator splitmix64 whose state is the sample's
    key. There is no stamp. ``compress_ratio`` r > 1 zeroes 1 - 1/r of each 4 KiB block (or of what
    there is of one), and begins at another place in each run of _RUN samples, so that each column
    has its share of the zeros.
    """
    total = len(out)
    zeros = zero_words(compress_ratio)
    key = keys(seed, index, 0, 1)[0]
    for start in range(0, total, _CHUNK_BLOCKS * BLOCK):
        part = out[start : start + _CHUNK_BLOCKS * BLOCK]
        count = -(-len(part) // 8)
        words = mix64(_sequence(count) + np.array([start // 8], np.uint64) * _STEP + key)
        for first in range(0, count, _WORDS) if zeros else ():
            block = words[first : first + _WORDS]
            gone = min(len(block) - 1, len(block) * zeros // _WORDS)
            begin = int(index // _RUN * _GOLDEN % 1 * len(block))
            block[begin : begin + gone] = 0
            block[: max(0, begin + gone - len(block))] = 0
        part[:] = words.view(np.uint8)[: len(part)].data


def identify(payload: Buffer) -> tuple[int, int] | None:
    """(seed, index) of the sample that a payload belongs to; None for bytes that ``fill`` did not make, or too few of them."""
    if len(payload) < STAMP_BYTES:
        return None
    magic, seed, index = _STAMP.unpack_from(payload)
    return (seed, index) if magic == _MAGIC else None


def keys(seed: int, index: int, first: int, count: int) -> _U64:
    """The keys of ``count`` blocks of a sample, from number ``first``."""
    base = np.uint64(index << _BLOCK_BITS)
    return mix64((base | np.arange(first, first + count, dtype=np.uint64)) ^ _salt(seed))


def _blocks(out: _U64, words: _U64, seed: int, index: int, first: int, zeros: int) -> None:
    """Fill ``out`` (blocks x 512 words) with the sample's blocks from number ``first``."""
    done = 0
    while done < len(out):
        start = (first + done) % _POOL_BLOCKS
        count = min(len(out) - done, _POOL_BLOCKS - start)
        part = out[done : done + count]
        key = keys(seed, index, first + done, count)[:, None]
        np.bitwise_xor(words[start : start + count, zeros:], key, out=part[:, zeros:])
        if zeros:
            part[:, :zeros] = 0
        done += count


def zero_words(compress_ratio: float) -> int:
    """Words to zero in each block; 16 random bytes stay, so that blocks remain unique at any ratio."""
    return min(round(_WORDS * (1 - 1 / compress_ratio)), _WORDS - 2)


@lru_cache(maxsize=4)
def pool(seed: int) -> _U64:
    """1024 blocks x 512 words, read-only."""
    # The raw words of a bit generator are stable over numpy versions; those of its distributions are not.
    words = np.random.SFC64(np.random.SeedSequence([seed, 0x696F62656E6368])).random_raw(
        _POOL_BLOCKS * _WORDS
    )
    blocks: _U64 = np.asarray(words, dtype=np.uint64).reshape(_POOL_BLOCKS, _WORDS)
    blocks.flags.writeable = False
    return blocks


@lru_cache(maxsize=4)
def _sequence(count: int) -> _U64:
    """Multiples of _STEP, read-only."""
    words: _U64 = np.arange(count, dtype=np.uint64) * _STEP
    words.flags.writeable = False
    return words


@lru_cache(maxsize=64)
def _salt(seed: int) -> np.uint64:
    return np.uint64(mix64(np.array([seed], dtype=np.uint64))[0])


def _scratch() -> _U64:
    """Aligned blocks of this thread."""
    scratch: _U64 | None = getattr(_local, "scratch", None)
    if scratch is None:
        scratch = _local.scratch = np.empty((_CHUNK_BLOCKS, _WORDS), dtype=np.uint64)
    return scratch
