"""A storage's URL holds no credentials: it is recorded and shown, and they come from elsewhere."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from ..errors import UsageError

_CONTAINER_FIRST = frozenset({"abfs", "abfss"})
"""Azure's own form is ``abfs://container@account/path``, so what is before the @ is no user."""

_SIGNED = r"sig|signature|x-amz-[a-z-]+|x-goog-[a-z-]+"
_GIVEN = r"[a-z_-]*(?:token|secret|passw|credential|access_?key|session_?key|accessid)[a-z_-]*"
_PARAMETER = re.compile(rf"(?:[;?&#/](?:{_SIGNED})|[;?&#](?:{_GIVEN}))\s*=", re.IGNORECASE)
"""A parameter that is a signature or a secret by its name: of signed URLs (AWS, Google), of Azure's
shared access signatures (SAS), in the query or, as some services write them, behind a semicolon."""


def refuse_secrets(url: str) -> None:
    """Raises UsageError for a URL with credentials; nothing of it is shown but the scheme."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return
    try:
        authority = urlsplit(url).netloc
    except ValueError:  # a bracket that is not closed
        raise UsageError(
            f"a {scheme}:// URL was given that can't be read", remedy="check its brackets"
        ) from None
    user, at, host = authority.rpartition("@")
    port = host.rpartition("]")[2].partition(":")[2]
    named = scheme.rpartition("+")[2] in _CONTAINER_FIRST and ":" not in user
    # What looks like a port and is none is a password that was cut off by a slash in it.
    if (at and not named) or (port and not port.isdigit()) or _PARAMETER.search(unquote(rest)):
        raise UsageError(
            f"the {scheme}:// URL holds a user name, a password, a token or a signature",
            remedy="leave it out of the URL: credentials come from the environment, from the "
            "configuration file of the storage's client, or from the instance's role",
        )
