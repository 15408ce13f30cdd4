"""How long the sentences are that every reader gets to see: answers, findings and advice."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WORDS = 25


def long_sentences(texts: Iterable[str]) -> list[str]:
    """The sentences of more than MAX_WORDS words; a command line does not count as words."""
    spoken = (re.sub(r"iobench [a-z]+ .*", "iobench", text) for text in texts)
    found = (each for text in spoken for each in re.split(r"(?<=[.!?])\s+", text))
    return [each for each in found if len(each.split()) > MAX_WORDS]
