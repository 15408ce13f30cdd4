"""Storages: one small protocol (base.py), and one module or folder for each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from ..base.errors import UnknownNameError, UsageError, nearest
from ..plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Storage, Wraps


STORAGE: Registry[Storage] = Registry(
    "storage",
    "iobench.storage",
    __name__,
    {
        "file": PlugIn(
            ".local.storage:LocalStorage", "a directory on a local disk or a mounted file system"
        ),
        "nfs": PlugIn(
            ".nfs.storage:NfsStorage",
            "nfs://server/export/path: an NFS export without a mount (needs libnfs)",
        ),
        "s3": PlugIn(
            ".s3.storage:S3Storage",
            "s3://bucket/prefix?endpoint=..&client=..: objects of an S3 server",
            "s3",
        ),
        "fsspec": PlugIn(
            ".fsspec.url:FsspecStorage",
            "any other fsspec URL (gs://, az://, hf:// ...): compatible, not fast",
        ),
        "throttled": PlugIn(
            ".simulated.throttled:ThrottledStorage",
            "throttled+URL?bandwidth=..&latency=..: storage of known speed",
        ),
        "faulty": PlugIn(
            ".simulated.faulty:FaultyStorage",
            "faulty+URL?fail_every=N: errors, short reads, stalls",
        ),
    },
)

_SECRET = re.compile(r"secret|token|passw|credential|access_?key|session_?key", re.IGNORECASE)

_BYTES = "surrogateescape"
"""Python's error handler that keeps bytes that are not UTF-8, as in command lines and paths."""


def open_storage(
    url: str, *, direct: bool = False, options: Mapping[str, str] | None = None
) -> Storage:
    """The storage for a path or a URL. Nothing is contacted yet.

    - A plain path or ``file://`` is a local directory.
    - ``SCHEME://...?key=value`` is a storage of its own, with options. A scheme that only fsspec
      knows (``gs://``, ``hf://`` ...) goes through its adapter.
    - ``WRAPPER+URL?key=value`` wraps another storage (``throttled+/data?latency=10ms``) and passes
      on the options that are not its own.

    ``options`` are for the innermost storage, and override the URL's. ``direct`` asks for O_DIRECT.

    A plug-in's class has ``OPTIONS``, the names of its options, and either
    ``open(url, *, direct, options)`` or, for a wrapper, ``wrap(inner, options)``. Raises UsageError
    for a malformed URL, one with credentials, or an option that the storage does not have, and
    UnknownNameError for an unknown scheme.
    """
    refuse_secrets(url)
    if not url:
        raise UsageError("a directory or URL is empty", remedy="write . for this directory")
    if name := wrapper_of(url):
        wrapper, inner, own = _split(url)
        around = open_storage(inner, direct=direct, options=options)
        return _opened(name, lambda: wrapper.wrap(around, own))
    if "://" not in url:
        scheme, place, given = "file", url, {}
    else:
        written = url.partition("://")[0]
        if (small := written.lower()) != written:
            raise UsageError(
                f"{written}:// is written in small letters", remedy=f"write {small}://..."
            )
        scheme = urlsplit(url).scheme
        place, _, query = url.partition("?")
        given = _parse(query)
    given = {**given, **(options or {})}
    kind = _kind(scheme)
    from .base import Opens

    if not isinstance(kind, Opens):
        raise UsageError(
            f"storage '{scheme}' wraps another storage and cannot be used alone",
            remedy=f"add the storage to wrap: {scheme}+/data",
        )
    for key in sorted(given):
        if _SECRET.search(key):
            remedy = (
                "S3 takes them from the environment, the shared credentials file or the "
                "instance's role"
            )
            raise UsageError(
                "a storage URL must not contain credentials: an option of it is named like one",
                remedy=remedy,
            )
        if key not in kind.OPTIONS:
            _refuse(scheme, key, given, kind.OPTIONS)
    return _opened(scheme, lambda: kind.open(place, direct=direct, options=given))


def _opened(scheme: str, make: Callable[[], Storage]) -> Storage:
    """What a plug-in has opened.

    Raises UsageError where it refuses a value, and if it lacks what this version needs.
    """
    try:
        storage = make()
    except ValueError as error:
        raise UsageError(
            f"storage '{scheme}' can't be opened: {str(error) or 'a value is wrong'}",
            remedy="look at the options of its URL",
        ) from error
    has = {*dir(type(storage)), *vars(storage)}  # looked up, not evaluated: that may take long
    lacking = [name for name in ("traits", "facts") if name not in has]
    if lacking:
        raise UsageError(
            f"storage '{scheme}' is not a plug-in for this version of iobench: it has no "
            f"{lacking[0]}",
            remedy="install a version of the plug-in that fits",
        )
    return storage


def unwrapped(url: str) -> str:
    """The URL without its wrappers, with the options of the storage itself.

    Raises UsageError, UnknownNameError.
    """
    while wrapper_of(url):
        url = _split(url)[1]
    return url


def rewrapped(url: str, place: str) -> str:
    """``place`` inside the wrappers of ``url``, each with its own options.

    Raises UsageError, UnknownNameError.
    """
    name = wrapper_of(url)
    if not name:
        return place
    _, inner, own = _split(url)
    within = rewrapped(inner, place)
    mark = "&" if "?" in within else "?"
    return f"{name}+{within}" + (f"{mark}{_query(own)}" if own else "")


def below(url: str, name: str) -> str:
    """The path or URL of the folder ``name`` below ``url``, with the same options."""
    has_options = "://" in url or wrapper_of(url)
    place, mark, query = url.partition("?") if has_options else (url, "", "")
    return f"{place.rstrip('/')}/{name}{mark}{query}"


def is_local(url: str) -> bool:
    """Whether a URL, without its wrappers, is a directory of this host."""
    while name := wrapper_of(url):
        url = url[len(name) + 1 :]
    return "://" not in url or url.startswith("file://")


def _split(url: str) -> tuple[Wraps, str, dict[str, str]]:
    """The wrapper's class, the URL that it wraps, and the wrapper's own options."""
    wrapper = wrapper_of(url)
    if wrapper not in STORAGE.entries():
        remedy = f"for a directory with that name write ./{url}"
        raise UnknownNameError(
            "storage", wrapper, STORAGE.entries(), remedy=remedy if "://" not in url else ""
        )
    kind: object = STORAGE.load(wrapper)
    from .base import Wraps

    if not isinstance(kind, Wraps):
        raise UsageError(
            f"storage '{wrapper}' cannot wrap another storage",
            remedy="use throttled+URL or faulty+URL",
        )
    inner, _, query = url[len(wrapper) + 1 :].partition("?")
    given = _parse(query)
    own = {key: value for key, value in given.items() if key in kind.OPTIONS}
    rest = {key: value for key, value in given.items() if key not in kind.OPTIONS}
    if rest and "://" not in inner and not wrapper_of(inner):
        _refuse(wrapper, min(rest), given, kind.OPTIONS)
    return kind, inner + (f"?{_query(rest)}" if rest else ""), own


def _kind(scheme: str) -> object:
    """The plug-in's class for a scheme: iobench's own, or else fsspec's adapter.

    Raises UnknownNameError, which suggests similar names of both.
    """
    ours = STORAGE.entries()
    if scheme in ours and scheme != "fsspec":
        return STORAGE.load(scheme)
    from .fsspec.url import known, schemes

    if known(scheme):
        return STORAGE.load("fsspec")
    theirs = schemes()
    known_names = {*ours, *theirs} if nearest(scheme, theirs) else {*ours}
    raise UnknownNameError("storage", scheme, known_names - {"fsspec"})  # whose URLs have others


def wrapper_of(url: str) -> str:
    """The name before ``+`` if a URL wraps another, or ''."""
    name, plus, _ = url.partition("+")
    return name if plus and name.isalpha() else ""


def _parse(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True, errors=_BYTES))


def _query(options: Mapping[str, str]) -> str:
    return urlencode(options, safe="/:", errors=_BYTES)


def _refuse(scheme: str, key: str, given: Mapping[str, str], known: Any) -> None:
    near = nearest(key.lower().replace("-", "_"), known)
    if not re.fullmatch(r"[A-Za-z][\w-]{0,40}", key, re.ASCII) or "@" in f"{given}":
        # This may be the end of a password with a question mark, before a host's name.
        key = "..."
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"known: {', '.join(sorted(known)) or 'none'}"
    )
    raise UsageError(f"{scheme} storage has no option '{key}'", remedy=hint)


# URLs are recorded and shown, so none may have credentials.

_CONTAINER_FIRST = frozenset({"abfs", "abfss"})
"""Azure's own form is ``abfs://container@account/path``: what is before the @ is no user name."""

_SIGNED = r"sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+"
_GIVEN = r"[a-z_-]*(?:token|secret|passw|credential|access_?key|session_?key|accessid)[a-z_-]*"
_PARAMETER = re.compile(rf"(?:[;?&#/](?:{_SIGNED})|[;?&#](?:{_GIVEN}))\s*=", re.IGNORECASE)
"""A parameter whose name means a signature or a secret: signed URLs (AWS, Google) and Azure's
shared access signatures (SAS), in the query or, as some services write them, after a semicolon."""


def refuse_secrets(url: str) -> None:
    """Raises UsageError for a URL with credentials; the message shows only its scheme."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return
    try:
        authority = urlsplit(url).netloc
    except ValueError:  # an unclosed bracket
        raise UsageError(
            f"a {scheme}:// URL could not be parsed", remedy="check its brackets"
        ) from None
    user, at, host = authority.rpartition("@")
    port = host.rpartition("]")[2].partition(":")[2]
    named = scheme.rpartition("+")[2] in _CONTAINER_FIRST and ":" not in user
    if (at and not named) or _PARAMETER.search(unquote(rest)):
        raise UsageError(
            f"the {scheme}:// URL contains a user name, a password, a token or a signature",
            remedy="remove it from the URL: credentials come from the environment, from the "
            "configuration file of the storage's client, or from the instance's role",
        )
    if port and not port.isdigit():
        raise UsageError(
            f"what follows the colon in the {scheme}:// URL is no port, and may be the start of a "
            "password that contains a slash",
            remedy="write the port as a number; credentials are never in a URL",
        )
