"""How much memory data may ask for: all limits on what is read from files of others.

Files state lengths, and a few bytes can state terabytes. Two rules hold everywhere:

1. A stated length is compared with what really exists (the size of the file, of the buffer, of the
   sample in the manifest) before memory is allocated for it.
2. Compressed data may grow, so its stated length is compared with ``plausible``: at most
   MAX_EXPANSION times the stored bytes, and never less than ALWAYS_FITS.

docs/formats.md says for each format what limits its memory.
"""

from __future__ import annotations

MAX_EXPANSION = 1100
"""Bytes that one stored byte may expand to.

No deflate stream expands by more than 1032 (zlib, "Technical Details"), so for gzip, zip and HDF5
this excludes no valid data. zstd, brotli and dictionaries can expand without a limit; for them it
is a policy: data that repeats so much is of no use for training.
"""

ALWAYS_FITS = 64 << 20
"""Bytes that are allowed at any expansion: a column of equal labels is valid data, and any host
has this much memory for each of its workers."""

MAX_JPEG_EXPANSION = 1600
"""Decoded bytes per byte of a JPEG.

Each block of 8 x 8 pixels takes at least one Huffman-coded bit (ITU-T T.81, F.1.2), and becomes
192 bytes of RGB.
"""

DECODING_MARGIN = 2.0
"""A scan examines some samples, and states that the others expand by at most this many times the
largest expansion among them."""

MAX_DECODED_EXPANSION = MAX_JPEG_EXPANSION * DECODING_MARGIN
"""Limit of decoded bytes per stored byte in a manifest."""

MAX_NPY_HEADER = 64 << 10
"""Bytes of the header of one array in an npz. NumPy itself evaluates at most 10,000."""

MAX_PAX_HEADER = 256 << 10
"""Bytes of a header in a tar that holds no member's data: pax records, GNU long names."""

MAX_LABEL_BYTES = 1 << 20
"""Bytes of a member of a tar that holds a label, or JSON with one."""

HEADER_PER_TENSOR = 1 << 10
MIN_HEADER_LIMIT = 1 << 20
"""Bytes that the header of a file of tensors may have: for each tensor, in addition to its name,
and at least in total. Parsed JSON takes about ten times its length."""

SANDBOX_BYTES = 2 << 30
"""Memory that the child which parses metadata may take, beyond what it starts with, and beyond
twice the bytes that it asks for at once."""

SANDBOX_S = 60.0
SANDBOX_BYTES_PER_S = 10_000_000
"""The time that this child may take for a file: so many seconds, and more for large files, whose
rows may have to be decoded."""


def plausible(stored: int) -> int:
    """The largest plausible size in bytes of ``stored`` compressed bytes after decompression."""
    return max(ALWAYS_FITS, MAX_EXPANSION * stored)


def check_plausible(claimed: int, stored: int, what: str) -> None:
    """Raises ValueError that names ``what``, the stated size and the limit."""
    if claimed > plausible(stored):
        raise ValueError(
            f"{what} claims {claimed} bytes in {stored} stored bytes; the limit is "
            f"{MAX_EXPANSION} times the stored bytes, or {ALWAYS_FITS}"
        )


def header_limit(names: list[str]) -> int:
    """The limit in bytes for the header of a file with tensors of these ``names``."""
    each = sum(HEADER_PER_TENSOR + 6 * len(name.encode()) for name in names)
    return max(MIN_HEADER_LIMIT, each)
