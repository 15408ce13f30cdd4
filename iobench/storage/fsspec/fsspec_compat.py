"""The methods of fsspec's file systems that are not public. Checked with fsspec 2026.9.0.

fsspec documents both for authors of file systems, and every file system has them.
"""

from __future__ import annotations

from typing import Any


def parent(fs: Any, path: str) -> str:
    """Return the folder of a path."""
    return str(fs._parent(path))


def path_of(fs: Any, url: str) -> str:
    """Return the file system's own name of a URL: the URL without its protocol."""
    return str(fs._strip_protocol(url))
