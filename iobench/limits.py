"""How much memory data may ask for: every limit on what is read from files that others wrote.

Files state lengths, and a few bytes of them can state terabytes. Two rules hold everywhere:

1. A length is a claim. It is compared with what is really there (the size of the file, of the
   buffer, of the sample in the manifest) before memory is taken for it.
2. What is compressed may grow, so its claim is compared with ``plausible``: no more than
   MAX_EXPANSION times the stored bytes, and never less than ALWAYS_FITS.

docs/formats.md says for each format what bounds its memory.
"""

from __future__ import annotations

MAX_EXPANSION = 1100
"""Bytes that one stored byte may become.

No deflate stream holds more than 1032 times its length (zlib, "Technical Details"), so for gzip,
zip and HDF5 this is a law and not an opinion. zstd, brotli and dictionaries can repeat without a
bound: there it is a policy. Data at such a ratio trains nothing.
"""

ALWAYS_FITS = 64 << 20
"""Bytes that are granted whatever the ratio: a column of equal labels is a legitimate one, and any
host has this much for each of its workers."""

MAX_JPEG_EXPANSION = 1600
"""Decoded bytes of one byte of a JPEG.

Each block of 8 x 8 takes one Huffman-coded bit at least (ITU-T T.81, F.1.2), and becomes 192 bytes
of RGB.
"""

DECODING_MARGIN = 2.0
"""A scan looks into some samples, and says that others expand by no more than this many times
what the worst of these did."""

MAX_DECODED_EXPANSION = MAX_JPEG_EXPANSION * DECODING_MARGIN
"""What a manifest may say of decoded bytes over stored ones."""

MAX_NPY_HEADER = 64 << 10
"""Bytes of the header of one array in an npz. NumPy's own limit of what it evaluates is 10,000."""

MAX_PAX_HEADER = 256 << 10
"""Bytes of a header in a tar that is no member's data: pax records, GNU long names."""

HEADER_OF_EACH_TENSOR = 1 << 10
HEADER_AT_LEAST = 1 << 20
"""Bytes that the header of a file of tensors may have: for each tensor (beside its name), and
together at least. Parsed JSON takes about ten times its length."""


def plausible(stored: int) -> int:
    """The most bytes that ``stored`` compressed bytes may claim to become."""
    return max(ALWAYS_FITS, MAX_EXPANSION * stored)


def check_plausible(claimed: int, stored: int, what: str) -> None:
    """Raises ValueError that names ``what``, the claim and the limit."""
    if claimed > plausible(stored):
        raise ValueError(
            f"{what} claims {claimed} bytes in {stored} stored ones; the limit is "
            f"{MAX_EXPANSION} times as many, or {ALWAYS_FITS}"
        )


def header_limit(names: list[str]) -> int:
    """Bytes that the header of a file with tensors of these ``names`` may have."""
    each = sum(HEADER_OF_EACH_TENSOR + 6 * len(name.encode()) for name in names)
    return max(HEADER_AT_LEAST, each)
