"""Unique, incompressible bytes at memory speed: keyed tiling.

A pool of 4 MiB is drawn once for each dataset seed (SFC64). Block ``b`` of sample ``i`` is the
pool's block ``b mod 1024`` XORed with one 64-bit key. Keys are a bijection of (i, b), so all blocks
of a dataset are different, and any range can be made separately, in any process. Two blocks made
from the same pool block differ in (nearly) every byte, so neither zstd --long nor deduplication
finds a match.

This holds for samples that are stored in one piece. A format that cuts samples into columns puts
the same few bytes of many samples next to one another; for such a format each word is drawn
separately (``fill_for_columns``).
"""

from __future__ import annotations

import struct
import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .buffers import Buffer

BLOCK = 4096
_WORDS = BLOCK // 8
_POOL_BLOCKS = 1024
_CHUNK_BLOCKS = 64  # 256 KiB: stays in the core's own cache when it has to be copied once more

_MAGIC = b"iobench\x01"
_STAMP = struct.Struct("<8sqq")
STAMP_BYTES = _STAMP.size
"""Samples of at least this length begin with a stamp: magic, seed and index."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
"""The increment of splitmix64."""

_RUN = 16
"""Samples. In narrow columns zeros come in runs: long enough for codecs, shorter than 4 KiB."""

_GOLDEN = 0.6180339887498949
"""The fractional parts of its multiples are evenly spread, however many are taken."""

_INDEX_BITS = 34  # 1.7e10 samples (DatasetSpec allows 1e10)
_BLOCK_BITS = 64 - _INDEX_BITS  # of 4 KiB: samples of up to 4 TiB

_U64 = npt.NDArray[np.uint64]
_local = threading.local()


def mix64(x: _U64) -> _U64:
    """A bijection of 64-bit words whose outputs look random.

    It is the finaliser of splitmix64 (Steele et al., OOPSLA 2014).
    """
    x = x + _STEP
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fill(out: Buffer, *, seed: int, index: int, compress_ratio: float = 1.0) -> None:
    """Fill ``out`` with the payload of sample ``index``: a pure function of length and arguments.

    ``compress_ratio`` r > 1 zeroes the first 1 - 1/r of each 4 KiB block, so that every codec
    reaches a ratio of about r.
    """
    total = len(out)
    words = pool(seed)
    zeros = zero_words(compress_ratio)
    address = np.frombuffer(out, dtype=np.uint8).ctypes.data if total else 0
    whole = total // BLOCK
    # numpy is several times slower on unaligned words, so such blocks are made in aligned scratch
    # memory and then copied.
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
    """Like ``fill``, for samples that are cut into columns: they differ at every place of ``out``.

    Word ``k`` of a sample is number ``k`` of the generator splitmix64 whose state is the sample's
    key. There is no stamp. ``compress_ratio`` r > 1 zeroes 1 - 1/r of each 4 KiB block (also of a
    last, shorter one). The zeros begin at a different place in each run of _RUN samples, so that
    every column has its share of zeros.
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
    """(seed, index) of the sample that a payload belongs to.

    None for bytes that ``fill`` did not make, or too few of them.
    """
    if len(payload) < STAMP_BYTES:
        return None
    magic, seed, index = _STAMP.unpack_from(payload)
    return (seed, index) if magic == _MAGIC else None


def keys(seed: int, index: int, first: int, count: int) -> _U64:
    """The keys of ``count`` blocks of a sample, starting at block number ``first``."""
    base = np.uint64(index << _BLOCK_BITS)
    return mix64((base | np.arange(first, first + count, dtype=np.uint64)) ^ _salt(seed))


def _blocks(out: _U64, words: _U64, seed: int, index: int, first: int, zeros: int) -> None:
    """Fill ``out`` (blocks x 512 words) with the sample's blocks from number ``first`` on."""
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
    """Words to zero in each block. 16 random bytes stay, so that blocks are unique at any ratio."""
    return min(round(_WORDS * (1 - 1 / compress_ratio)), _WORDS - 2)


@lru_cache(maxsize=4)
def pool(seed: int) -> _U64:
    """The pool of a dataset's seed: 1024 blocks x 512 words, read-only."""
    # numpy keeps the raw words of a bit generator the same over its versions, but not the numbers
    # of distributions.
    words = np.random.SFC64(np.random.SeedSequence([seed, 0x696F62656E6368])).random_raw(
        _POOL_BLOCKS * _WORDS
    )
    blocks: _U64 = np.asarray(words, dtype=np.uint64).reshape(_POOL_BLOCKS, _WORDS)
    blocks.flags.writeable = False
    return blocks


@lru_cache(maxsize=4)
def _sequence(count: int) -> _U64:
    """The first ``count`` multiples of _STEP, read-only."""
    words: _U64 = np.arange(count, dtype=np.uint64) * _STEP
    words.flags.writeable = False
    return words


@lru_cache(maxsize=64)
def _salt(seed: int) -> np.uint64:
    return np.uint64(mix64(np.array([seed], dtype=np.uint64))[0])


def _scratch() -> _U64:
    """This thread's scratch memory: _CHUNK_BLOCKS aligned blocks."""
    scratch: _U64 | None = getattr(_local, "scratch", None)
    if scratch is None:
        scratch = _local.scratch = np.empty((_CHUNK_BLOCKS, _WORDS), dtype=np.uint64)
    return scratch
