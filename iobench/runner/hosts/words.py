"""Messages between the first host of a job and each of the others.

The first host calls deeds: methods that the other host has for this verb (``serving``), by their
names. Arguments, results and reports are text in JSON, which is checked against the types that the
method declares. Every deed is answered, unless it is only told.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from ...base.errors import IobenchError
from ...record.typed import ErrorText, of_text, to_text

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal["beat", "call", "tell", "answer", "refused", "report", "interrupted", "bye"]

Error = Annotated[IobenchError, ErrorText()]

HEAD = struct.Struct("!4sII")
"""Before each message: a mark, and the bytes of its kind and of its body."""

MAX_BODY_BYTES, _MAX_KIND_BYTES = 1 << 27, 1 << 10
"""The events of a rank take some 20 MB; nothing larger is sent or received."""

_MARK = b"iob1"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of one of these kinds.

    ``call`` and ``tell`` are for the deed ``what``, with its arguments as ``body``. ``answer`` has
    its result, and ``refused`` an error. ``code`` is the number of the call that they belong to, so
    that nobody takes the answer of a call that he has given up for another one. It is 0 in what is
    said unasked: the error of a rank, which has ended.
    ``report``: what a host says unasked, by the name ``what``. ``bye``: the run is over, with the
    exit code ``code``, and what went wrong. ``interrupted``: Ctrl-C or SIGTERM has reached this
    host. ``beat``: a sign of life, which only the wire sees.
    """

    kind: Kind
    what: str = ""
    code: int = 0
    body: bytes = b""


_Said = tuple[Kind, str, int]


def encoded(message: Message) -> bytes:
    said = to_text((message.kind, message.what, message.code), _Said)
    head = HEAD.pack(_MARK, len(said), len(message.body))
    sizes(head)
    return head + said + message.body


def sizes(head: bytes) -> tuple[int, int]:
    """The bytes of the kind and of the body that follow. Raises ValueError."""
    mark, said, body = HEAD.unpack(head)
    if mark != _MARK:
        raise ValueError("it does not begin as one")
    if said > _MAX_KIND_BYTES or body > MAX_BODY_BYTES:
        raise ValueError(f"it has {(said + body) >> 20} MiB")
    return said, body


def decoded(said: bytes, body: bytes) -> Message:
    """Raises ValueError in one line for bytes that are no message."""
    kind, what, code = of_text(said, _Said)
    return Message(kind, what, code, body)


# Deeds


def deed(function: F) -> F:
    """Mark a method as one that the first host may call here."""
    function.is_deed = True  # type: ignore[attr-defined]
    return function


@cache
def arguments_of(function: Callable[..., object]) -> Any:
    """The type of a deed's arguments, as a tuple."""
    hints = get_type_hints(function, include_extras=True)
    return tuple[tuple(hint for name, hint in hints.items() if name != "return")]  # type: ignore[misc]


@cache
def result_of(function: Callable[..., object]) -> Any:
    """The type of what a deed returns."""
    return get_type_hints(function, include_extras=True)["return"]


def refused(error: IobenchError, call: int = 0) -> Message:
    return Message("refused", code=call, body=to_text(error, Error))


def bye(code: int, why: str = "") -> Message:
    return Message("bye", code=code, body=to_text(why, str))
