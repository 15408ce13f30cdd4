"""The contract of every registered codec, their names with levels, and independent readers."""

from __future__ import annotations

import gzip
import io

import lz4.frame
import pytest
import zstandard

from iobench.base.errors import SpecError
from iobench.data.codecs import CODECS
from iobench.data.codecs.base import Codec
from iobench.testing.data import TEXT, CodecContract, decompressed

NAMES = sorted(CODECS.entries())


class TestCodecs(CodecContract):
    @pytest.fixture(params=NAMES)
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CODECS.open(request.param)

    def test_its_name_with_a_level(self, codec: Codec) -> None:
        assert CODECS.open(codec.name) == codec
        assert isinstance(codec, CODECS.load(codec.name))
        if codec.levels:
            assert CODECS.open(f"{codec.name}:3") == type(codec)(3)
        for level in ("-1", "1000", "high", "", "3.5"):
            with pytest.raises(SpecError, match="level"):
                CODECS.open(f"{codec.name}:{level}")


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
