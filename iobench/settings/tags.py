"""Labels that users give their runs: ``--tag box=nfs-b``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from ..base.errors import UsageError

MAX_TAGS, MAX_KEY, MAX_VALUE = 32, 64, 200

Key = Annotated[str, Field(strict=True, max_length=MAX_KEY, pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
"""Columns of tables and labels of metrics are named after it."""

Tags = Annotated[
    dict[Key, Annotated[str, Field(strict=True, min_length=1, max_length=MAX_VALUE)]],
    Field(max_length=MAX_TAGS),
]

_TAGS: TypeAdapter[dict[str, str]] = TypeAdapter(Tags)

TAGS: ContextVar[dict[str, str]] = ContextVar("tags")
"""The labels of the runs that are recorded in this context."""


def tags() -> dict[str, str]:
    """The labels for a new record."""
    return dict(TAGS.get({}))


@contextmanager
def tagged(labels: Mapping[str, str] | None) -> Iterator[None]:
    """Give every run that is recorded inside the context these labels.

    Without any, it has those that are given around it. Raises UsageError.
    """
    token = TAGS.set(checked_tags(labels)) if labels else None
    try:
        yield
    finally:
        if token is not None:
            TAGS.reset(token)


def parse_tags(texts: Sequence[str]) -> dict[str, str]:
    """The labels of ``KEY=VALUE``. Raises UsageError, also for a key that has two values."""
    labels: dict[str, str] = {}
    for key, value in map(_parted, texts):
        if labels.setdefault(key, value) != value:
            raise UsageError(
                f"--tag {key} has two values: {labels[key]!r} and {value!r}",
                remedy="give each label once",
            )
    return checked_tags(labels)


def _parted(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def checked_tags(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels, if each can be one. Raises UsageError."""
    for key, value in labels.items():
        try:
            _TAGS.validate_python({key: value})
            printed = value.isprintable()
        except ValidationError:
            printed = False
        if not printed:
            label = f"{key}={value}".rstrip("=")[:60]
            raise UsageError(
                f"{label!r} is no label: a key of letters, digits and _ (at most "
                f"{MAX_KEY}, a letter first), and a text of 1 to {MAX_VALUE} characters in a line",
                remedy="write it like --tag box=nfs-b, or tags={'box': 'nfs-b'} in Python",
            )
    if len(labels) > MAX_TAGS:
        raise UsageError(f"a run has at most {MAX_TAGS} labels, but {len(labels)} were given")
    return dict(labels)
