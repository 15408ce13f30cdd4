"""Values as text in JSON, each part of which is checked against its type when it is read again.

Nothing of it is code, and nothing is believed: pydantic makes the dataclasses, named tuples and
models that a type names, and nothing else. Arrays are plain numbers, as text in base 64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Interval, MaxLen
from pydantic import GetCoreSchemaHandler, Strict, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from ..base import errors
from ..base.errors import IobenchError

MAX_ITEMS, MAX_PARTS = 1 << 21, 1 << 19
"""Of a text: items between commas, and objects and lists. Each takes some 100 bytes of memory, so a
value never takes much more than its text."""

Name = Annotated[str, MaxLen(255)]
"""A text that one can show."""

Port = Annotated[int, Strict(), Interval(ge=0, le=65_535)]

Count = Annotated[int, Strict(), Interval(ge=1, le=1 << 16)]
"""Of processes on one host."""

_MOST = 300


def to_text(value: object, kind: Any) -> bytes:
    """The value, which is of this type, as JSON. Raises ValueError for what JSON can't hold."""
    plain = _adapter(kind).dump_python(value, warnings=False)
    return json.dumps(plain, separators=(",", ":"), default=_number).encode("ascii")


def of_text(text: bytes, kind: Any) -> Any:
    """The value of this type. Raises ValueError in one line for what is none.

    What is read must be what would be written: no text for a number, and no field too many.
    """
    if text.count(b",") > MAX_ITEMS or text.count(b"[") + text.count(b"{") > MAX_PARTS:
        raise ValueError("it has too many parts")
    try:
        said = json.loads(text)
        value = _adapter(kind).validate_python(said)
        if not _alike(said, json.loads(to_text(value, kind))):
            raise ValueError("it has other fields than its type, or values of other types")
        return value
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(each) for each in problem["loc"])
        what = f"{where}: {problem['msg']}" if where else problem["msg"]
        raise ValueError(ascii(what)[1:-1][:_MOST]) from None
    except (RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"it is no text in JSON ({type(error).__name__})") from None


def _alike(said: object, written: object) -> bool:
    """Whether two values of JSON are the same; a whole number may be one with a fraction of 0."""
    if isinstance(said, dict) and isinstance(written, dict):
        return said.keys() == written.keys() and all(_alike(said[k], written[k]) for k in said)
    if isinstance(said, list) and isinstance(written, list):
        return len(said) == len(written) and all(map(_alike, said, written))
    if isinstance(said, bool) or isinstance(written, bool):
        return said is written
    return said == written or (said != said and written != written)  # NaN


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"a {type(value).__name__} can't be sent")


class _Written:
    """How values of a type are written, and read again: for ``Annotated``."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def write(self, value: Any) -> object:
        raise NotImplementedError

    def read(self, value: Any) -> Any:
        """Raises ValueError."""
        raise NotImplementedError


class ArrayText(_Written):
    """An array of plain numbers."""

    _KINDS = frozenset("|b1 |i1 |u1 <i2 <i4 <i8 <u2 <u4 <u8 <f2 <f4 <f8".split())  # noqa: SIM905

    def write(self, value: npt.NDArray[Any]) -> object:
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        if array.dtype.str not in self._KINDS:
            raise ValueError(f"an array of {array.dtype.str} can't be sent")
        text = base64.b64encode(array.tobytes()).decode("ascii")
        return [array.dtype.str, list(value.shape), text]

    def read(self, value: Any) -> npt.NDArray[Any]:
        if isinstance(value, np.ndarray):
            return value
        kind, shape, text = of_kind(value, tuple[str, list[int], str])
        data = base64.b64decode(text, validate=True)
        if kind not in self._KINDS or len(shape) > 8 or min(shape, default=0) < 0:
            raise ValueError("no array of plain numbers")
        if math.prod(shape) * np.dtype(kind).itemsize != len(data):
            raise ValueError("an array with other bytes than it says")
        return np.frombuffer(data, kind).reshape(shape).copy()


class ErrorText(_Written):
    """An error of iobench."""

    def write(self, value: IobenchError) -> object:
        notes = list(getattr(value, "__notes__", []))
        return [type(value).__name__, value.what, value.remedy, notes]

    def read(self, value: Any) -> IobenchError:
        name, what, remedy, notes = of_kind(value, tuple[str, str, str, list[str]])
        kind = getattr(errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, IobenchError)):
            raise ValueError("no error of iobench")
        return errors._rebuild(kind, what, remedy, notes)


class OneOf(_Written):
    """A value of one of these classes, with its name."""

    def __init__(self, *kinds: type) -> None:
        self._kinds: Mapping[str, type] = {kind.__name__: kind for kind in kinds}

    def write(self, value: Any) -> object:
        name = type(value).__name__
        return [name, _adapter(self._kinds[name]).dump_python(value, warnings=False)]

    def read(self, value: Any) -> Any:
        name, has = of_kind(value, tuple[str, dict[str, Any]])
        if name not in self._kinds:
            raise ValueError("none of the known kinds")
        return of_kind(has, self._kinds[name])


def of_kind(value: object, kind: Any) -> Any:
    """The value, checked against this type. Raises ValueError: a ValidationError is one."""
    return _adapter(kind).validate_python(value)
