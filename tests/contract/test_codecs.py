"""The contract of every registered codec. A plug-in's author runs this file with the plug-in
installed.
"""

from __future__ import annotations

import gzip
import io
import pickle
import subprocess
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.errors import SpecError
from iobench.data.codecs import CODECS

NAMES = sorted(CODECS.entries())
COMPRESSING = [name for name in NAMES if name != "none"]


@pytest.fixture(params=NAMES)
def codec(request: pytest.FixtureRequest) -> Any:
    return CODECS.open(request.param)


@pytest.fixture(params=COMPRESSING)
def compressing(request: pytest.FixtureRequest) -> Any:
    return CODECS.open(request.param)


def decompressed(codec: Any, stored: bytes, size: int) -> bytes:
    out = bytearray(size)
    assert codec.decompress(memoryview(stored), memoryview(out)) == size
    return bytes(out)


TEXT = b"".join(b"line %d of something that compresses\n" % (i % 1000) for i in range(40_000))


def test_names_and_suffix(codec: Any) -> None:
    assert CODECS.open(codec.name) == codec
    assert isinstance(codec, CODECS.load(codec.name))
    assert codec.suffix == "" or codec.suffix.startswith(".")


@pytest.mark.parametrize("name", NAMES)
@given(
    content=st.one_of(
        st.binary(min_size=1, max_size=5000), st.integers(1, 300_000).map(lambda n: TEXT[:n])
    )
)
def test_round_trip(name: str, content: bytes) -> None:
    codec = CODECS.open(name)
    assert decompressed(codec, bytes(codec.compress(memoryview(content))), len(content)) == content


def test_deterministic_and_from_many_threads(codec: Any) -> None:
    with ThreadPoolExecutor(4) as threads:
        stored = list(threads.map(lambda _: bytes(codec.compress(memoryview(TEXT))), range(8)))
        assert len(set(stored)) == 1
        assert all(threads.map(lambda s: decompressed(codec, s, len(TEXT)) == TEXT, stored * 4))


def test_compresses(compressing: Any) -> None:
    assert len(compressing.compress(memoryview(TEXT))) < len(TEXT) / 2


def test_levels(compressing: Any) -> None:
    assert compressing.level is None
    at_3 = CODECS.open(f"{compressing.name}:3")
    assert (at_3.level, at_3.used_level) == (3, 3)
    for level in ("-1", "1000", "high", "", "3.5"):
        with pytest.raises(SpecError, match="level"):
            CODECS.open(f"{compressing.name}:{level}")
    with pytest.raises(ValueError, match="levels"):
        type(compressing)(1000)
    assert decompressed(at_3, bytes(at_3.compress(memoryview(TEXT))), len(TEXT)) == TEXT


def test_a_codec_is_the_same_in_another_process(compressing: Any) -> None:
    assert pickle.loads(pickle.dumps(type(compressing)(3))) == type(compressing)(3)
    assert type(compressing)(3) != type(compressing)()


def test_truncated_is_an_error(compressing: Any) -> None:
    stored = bytes(compressing.compress(memoryview(TEXT)))
    for cut in (0, 1, 5, len(stored) // 2, len(stored) - 1):
        with pytest.raises(ValueError):
            compressing.decompress(memoryview(stored[:cut]), memoryview(bytearray(len(TEXT))))


def test_garbage_is_an_error_of_one_line(compressing: Any) -> None:
    stored = bytes(compressing.compress(memoryview(TEXT)))
    for bad in (
        b"this is not compressed at all" * 10,
        stored + b"garbage after the end",
        bytes(100),
    ):
        with pytest.raises(ValueError) as caught:
            compressing.decompress(memoryview(bad), memoryview(bytearray(len(TEXT))))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", COMPRESSING)
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_a_flipped_bit_never_crashes_or_overflows(name: str, position: int, bit: int) -> None:
    codec = CODECS.open(name)
    content = TEXT[:50_000]
    stored = bytearray(codec.compress(memoryview(content)))
    stored[position % len(stored)] ^= 1 << bit
    out = bytearray(len(content) + 64)
    out[len(content) :] = b"\xaa" * 64
    try:
        codec.decompress(memoryview(stored), memoryview(out)[: len(content)])
    except ValueError:
        pass
    assert out[len(content) :] == b"\xaa" * 64


def test_more_than_expected_is_an_error_and_not_memory(codec: Any) -> None:
    bomb = bytes(codec.compress(memoryview(bytes(64 << 20))))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than"):
            codec.decompress(memoryview(bomb), memoryview(bytearray(1000)))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_independent_readers_accept_the_streams() -> None:
    view = memoryview(TEXT)
    assert gzip.decompress(CODECS.open("gzip").compress(view)) == TEXT
    assert zstandard.ZstdDecompressor().decompress(CODECS.open("zstd").compress(view)) == TEXT
    assert lz4.frame.decompress(CODECS.open("lz4").compress(view)) == TEXT
    listed = subprocess.run(
        ["gzip", "-t"],
        input=CODECS.open("gzip").compress(view),
        capture_output=True,
        check=False,
    )
    assert listed.returncode == 0


def test_foreign_streams_are_read() -> None:
    assert (
        decompressed(
            CODECS.open("gzip"), gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]), len(TEXT)
        )
        == TEXT
    )
    streamed = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(
        streamed, closefd=False
    ) as writer:  # states no content size
        writer.write(TEXT)
    assert decompressed(CODECS.open("zstd"), streamed.getvalue(), len(TEXT)) == TEXT
    assert (
        decompressed(CODECS.open("lz4"), lz4.frame.compress(TEXT, store_size=False), len(TEXT))
        == TEXT
    )
