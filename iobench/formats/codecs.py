"""Codecs over buffers. Decompression is bounded by the output buffer: a stored stream that holds more is an error, not memory.

Outputs are deterministic for one version of the underlying library: no time stamps, no thread-dependent framing.
"""

from __future__ import annotations

import threading
import zlib
from typing import ClassVar

from .base import Buffer

_PIECE = 64 << 10
"""Compressed bytes handed over at a time: the decompressed piece is still in cache when it is copied to its place."""

_GROWN = 4 << 20
"""Decompressed bytes of LZ4 that are taken over at a time: its largest block."""

_EITHER = 47
"""zlib's name for: a gzip or a zlib header, whichever is there."""

_local = threading.local()


class Identity:
    """Stored as is."""

    name: ClassVar[str] = "none"
    suffix: ClassVar[str] = ""

    @classmethod
    def check_level(cls, level: int | None) -> None:
        if level is not None:
            raise ValueError(f"codec 'none' has no levels (got {level})")

    @classmethod
    def compress(cls, content: Buffer, level: int | None) -> bytes | Buffer:
        return content

    @classmethod
    def decompress(cls, stored: Buffer, out: Buffer) -> int:
        if len(stored) > len(out):
            raise _too_long(cls.name, out)
        out[: len(stored)] = stored
        return len(stored)


class Gzip:
    """gzip members (RFC 1952) without name or time; level 6 unless given, as gzip(1). It reads zlib's framing (RFC 1950), HDF5's, too."""

    name: ClassVar[str] = "gzip"
    suffix: ClassVar[str] = ".gz"

    @classmethod
    def check_level(cls, level: int | None) -> None:
        _check_level(cls.name, level, 1, 9)

    @classmethod
    def compress(cls, content: Buffer, level: int | None) -> bytes | Buffer:
        stream = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)
        return stream.compress(content) + stream.flush()

    @classmethod
    def decompress(cls, stored: Buffer, out: Buffer) -> int:
        done = 0
        stream = zlib.decompressobj(_EITHER)
        try:
            for start in range(0, len(stored), _PIECE):
                piece: bytes | Buffer = stored[start : start + _PIECE]
                while len(piece):
                    if stream.eof:  # another member follows, as gzip(1) allows
                        stream = zlib.decompressobj(_EITHER)
                    # One byte more than there is room for, so that an overflow shows.
                    data = stream.decompress(piece, len(out) - done + 1)
                    done = _append(cls.name, out, done, data)
                    piece = stream.unused_data if stream.eof else stream.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"not a valid gzip stream: {error}") from None
        if not stream.eof:
            raise ValueError("gzip stream is truncated")
        return done


class Zstd:
    """Zstandard frames (RFC 8878) that carry their content size; level 1 unless given (on tensors, 3 is slower and no smaller)."""

    name: ClassVar[str] = "zstd"
    suffix: ClassVar[str] = ".zst"

    @classmethod
    def check_level(cls, level: int | None) -> None:
        _check_level(cls.name, level, 1, 22)

    @classmethod
    def compress(cls, content: Buffer, level: int | None) -> bytes | Buffer:
        import zstandard

        return zstandard.ZstdCompressor(level=1 if level is None else level).compress(content)

    @classmethod
    def decompress(cls, stored: Buffer, out: Buffer) -> int:
        import zstandard

        context = getattr(_local, "zstd", None)
        if context is None:
            context = _local.zstd = zstandard.ZstdDecompressor()
        try:
            expected = zstandard.frame_content_size(stored)
            if expected > len(out):
                raise _too_long(cls.name, out)
            # A frame of known size that fits is decompressed straight into the output, without a window buffer.
            with context.stream_reader(stored, read_across_frames=True) as reader:
                done = int(reader.readinto(out)) if len(out) else 0
                if done == len(out) and reader.read(1):
                    raise _too_long(cls.name, out)
        except zstandard.ZstdError as error:
            raise ValueError(f"not a valid zstd stream: {error}") from None
        # The reader ends silently where its input does, so a short result is the sign of a cut.
        if done < (expected if expected >= 0 else len(out)):
            raise ValueError(
                f"zstd stream is truncated: {done} bytes of {expected if expected >= 0 else len(out)}"
            )
        return done


class Lz4:
    """LZ4 frames; level 0 (fast) unless given."""

    name: ClassVar[str] = "lz4"
    suffix: ClassVar[str] = ".lz4"

    @classmethod
    def check_level(cls, level: int | None) -> None:
        _check_level(cls.name, level, 0, 16)

    @classmethod
    def compress(cls, content: Buffer, level: int | None) -> bytes | Buffer:
        import lz4.frame

        compressed: bytes = lz4.frame.compress(
            content, compression_level=level or 0, content_checksum=True
        )
        return compressed

    @classmethod
    def decompress(cls, stored: Buffer, out: Buffer) -> int:
        import lz4.frame

        stream = lz4.frame.LZ4FrameDecompressor()
        done = 0
        try:
            for start in range(0, len(stored), _PIECE):
                piece: bytes | Buffer = stored[start : start + _PIECE]
                while True:
                    if stream.eof:
                        raise ValueError("not a valid lz4 stream: bytes after the end of the frame")
                    # The library takes as much memory as it may return.
                    data = stream.decompress(piece, max_length=min(_GROWN, len(out) - done + 1))
                    done = _append(cls.name, out, done, data)
                    if stream.eof and stream.unused_data:
                        raise ValueError("not a valid lz4 stream: bytes after the end of the frame")
                    if stream.eof or stream.needs_input:
                        break
                    piece = b""
        except RuntimeError as error:
            raise ValueError(f"not a valid lz4 stream: {' '.join(str(error).split())}") from None
        if not stream.eof:
            raise ValueError("lz4 stream is truncated")
        return done


def _append(name: str, out: Buffer, done: int, data: bytes) -> int:
    if done + len(data) > len(out):
        raise _too_long(name, out)
    out[done : done + len(data)] = data
    return done + len(data)


def _too_long(name: str, out: Buffer) -> ValueError:
    return ValueError(
        f"codec '{name}': the stored stream holds more than the {len(out)} bytes expected"
    )


def _check_level(name: str, level: int | None, lowest: int, highest: int) -> None:
    if level is not None and not lowest <= level <= highest:
        raise ValueError(f"codec '{name}' has levels {lowest} to {highest} (got {level})")
