"""Refuse storage URLs with credentials: URLs are recorded and shown."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from ..base.errors import UsageError

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
    # A port that is not a number is the start of a password that contains a slash.
    if (at and not named) or (port and not port.isdigit()) or _PARAMETER.search(unquote(rest)):
        raise UsageError(
            f"the {scheme}:// URL contains a user name, a password, a token or a signature",
            remedy="remove it from the URL: credentials come from the environment, from the "
            "configuration file of the storage's client, or from the instance's role",
        )
