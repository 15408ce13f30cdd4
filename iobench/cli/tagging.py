"""``--tag``: labels for the runs that a verb records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext


def tagged(texts: Sequence[str]) -> AbstractContextManager[None]:
    """Give every run that is recorded inside the context these labels. Raises UsageError."""
    if not texts:
        return nullcontext()
    from ..record import tags

    return tags.tagged(tags.parse_tags(texts))
