"""A codec, a content and a format."""

from __future__ import annotations

import bz2
import struct

from iobench.base import payload
from iobench.data.codecs.base import Codec
from iobench.data.contents.base import Content, at_least
from iobench.data.formats.base import Frame, Framed


class Bz2(Codec):
    """bzip2, at levels 1 to 9: it compresses well and decompresses slowly."""

    name = "bz2"
    suffix = ".bz2"
    levels = range(1, 10)
    default_level = 9

    def compress(self, content):
        return bz2.compress(content, self.used_level)

    def decompress(self, stored, out):
        decompressor, done, more = bz2.BZ2Decompressor(), 0, stored
        try:
            while not decompressor.eof:
                piece = decompressor.decompress(more, max_length=len(out) - done + 1)
                if not piece and decompressor.needs_input:
                    raise ValueError("codec 'bz2': the stored stream is truncated")
                done, more = self.append(out, done, piece), b""
        except OSError as error:
            raise ValueError(f"codec 'bz2': {error}") from None
        if decompressor.unused_data:
            raise ValueError("codec 'bz2': there are bytes after the end of the stored stream")
        return done


class Stamped(Content):
    """Random bytes behind a stamp that says which sample they are."""

    name = "stamped"
    suffix = ".stamped"
    stamp = struct.Struct("<8sQQQ")  # magic, seed, index, bytes of the sample
    magic = b"STAMPED\0"
    min_bytes = stamp.size + 1

    def build(self, out, *, seed, index, compress_ratio):
        at_least(self.name, self.min_bytes, out)
        out[: self.stamp.size] = self.stamp.pack(self.magic, seed, index, len(out))
        payload.fill(out[self.stamp.size :], seed=seed, index=index, compress_ratio=compress_ratio)

    def identify(self, content):
        if len(content) < self.min_bytes:
            return None
        magic, seed, index, size = self.stamp.unpack_from(content)
        return (seed, index) if (magic, size) == (self.magic, len(content)) else None

    def decoded_bytes(self, content):
        if self.identify(content) is None:
            raise ValueError("content 'stamped': the sample has no stamp, or not all of its bytes")
        return len(content) - self.stamp.size

    def decode(self, content, out):
        size = self.decoded_bytes(content)
        out[:size] = content[self.stamp.size :]
        return size


class Lengths(Framed):
    """Shards in which each sample stands behind its length."""

    name = "lengths"
    suffix = ".lengths"
    framing_bytes = 8

    def frame(self, index, suffix, stored):
        return Frame(struct.pack("<Q", len(stored)), b"")

    def margins(self, index, suffix, stored):
        return 8, 0
