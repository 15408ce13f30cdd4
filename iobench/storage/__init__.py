"""Where data lies: one small Protocol (base.py), one module for each kind of place."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from ..errors import UsageError
from ..registry import STORAGE
from .base import Storage


def open_storage(url: str, *, direct: bool = False) -> Storage:
    """The storage behind a path or a URL.

    A plain path or ``file://`` is a local directory; ``WRAPPER+URL?key=value`` wraps another storage (``throttled+/data?latency=10ms``).
    ``direct`` asks for O_DIRECT. Raises UsageError for a malformed URL, UnknownNameError for an unknown scheme.
    """
    wrapper, plus, inner = url.partition("+")
    if plus and wrapper.isalpha() and "/" not in wrapper:
        inner, _, query = inner.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=False))
        wrap = getattr(STORAGE.load(wrapper), "wrap", None)
        if wrap is None:
            raise UsageError(f"storage '{wrapper}' does not wrap another", remedy="wrap with throttled+ or faulty+")
        return wrap(open_storage(inner, direct=direct), options)  # type: ignore[no-any-return]
    parts = urlsplit(url)
    if "://" not in url:
        return STORAGE.load("file")(url, direct=direct)  # type: ignore[no-any-return]
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise UsageError(f"'{url}' names a host, and file:// is local", remedy="write it like file:///mnt/data or /mnt/data")
        return STORAGE.load("file")(parts.path, direct=direct)  # type: ignore[no-any-return]
    return STORAGE.load(parts.scheme)(url, direct=direct)  # type: ignore[no-any-return]
