"""The parts of s3fs that are not public. Checked with s3fs 2026.9.0."""

from __future__ import annotations

from typing import Any


def turn_off_retries(files: Any) -> None:
    """One attempt for each request of this S3FileSystem: iobench counts its own retries."""
    files.retries = 1  # s3fs counts attempts


def close(files: Any) -> None:
    """Close the connections of an S3FileSystem."""
    if files._s3 is not None:
        files.close_session(files.loop, files._s3)
        files._s3 = files._s3creator = None
