"""A message between two hosts as bytes: a text in JSON, then the numbers of its arrays.

Nothing in it is code, and nothing of it is believed: a message consists of numbers, texts, arrays
of plain numbers, and objects of the kinds that ``kinds`` lists. Every field is checked against its
type before an object is made of it, and sizes are compared before memory is taken for them.
"""

from __future__ import annotations

import json
import math
import struct
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from ...base import errors
from ...base.documents import parse_json
from ...base.errors import IobenchError
from ...data.generator import writer
from ...data.verify import report
from ...host import depth, nfs
from ...record import checkpoint, host, job, resources, training
from ...settings import accelerator, workload
from ...settings.base import OpenRecord, Record, Strict, fitting
from .. import agent, messages
from .. import agent as fetches
from ..curve import places
from . import words

MAX_MESSAGE_BYTES = 1 << 28
"""The events of a rank take some 15 MB; nothing larger is sent or received."""

MAX_TEXT_BYTES = 1 << 25
MAX_ITEMS, MAX_PARTS = 1 << 21, 1 << 19
"""Of the text of a message: items between commas, and objects and lists. Each takes some 100 bytes
of memory, so a message never takes much more than its own size."""

HEAD = struct.Struct("!4sII")
"""Before each message: a mark, and the bytes of its text and of its arrays."""

_MARK = b"iob1"

_MANY = 64
"""A list of so many whole numbers travels as an array."""

_RECORDS = (Record, OpenRecord, Strict)

_MODULES = (
    *(messages, words, errors, agent, fetches),
    *(accelerator, checkpoint, host, job, resources, training, workload),
    *(writer, report, depth, places),
)


@cache
def kinds() -> dict[str, type]:
    """The classes that a message may consist of, by their names. All of them only hold data."""
    found = [kind for module in _MODULES for kind in _classes(module)]
    return {_name(kind): kind for kind in (*found, nfs.MountStats, nfs.Operation)}


def _classes(module: types.ModuleType) -> Iterable[type]:
    return (
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and each.__module__ == module.__name__
        and (
            is_dataclass(each)
            or issubclass(each, (*_RECORDS, IobenchError))
            or (issubclass(each, tuple) and hasattr(each, "_fields"))
        )
    )


_KINDS = {
    kind: np.dtype(kind)
    for kind in "|b1 |i1 |u1 <i2 <i4 <i8 <u2 <u4 <u8 <f2 <f4 <f8".split()  # noqa: SIM905
}
"""The arrays that a message may have: of plain numbers, with the lowest byte first."""


def _name(kind: type) -> str:
    return f"{kind.__module__.removeprefix('iobench.')}.{kind.__qualname__}"


# To bytes


def encoded(message: object) -> bytes:
    """The message with its head. Raises ValueError for what no message may hold."""
    arrays: list[npt.NDArray[Any]] = []
    told = {"told": _plain(message, arrays), "arrays": [_about(array) for array in arrays]}
    text = json.dumps(told, separators=(",", ":"), allow_nan=False).encode("ascii")
    body = b"".join(array.tobytes() for array in arrays)
    check_sizes(len(text), len(body))
    return HEAD.pack(_MARK, len(text), len(body)) + text + body


def _about(array: npt.NDArray[Any]) -> list[object]:
    return [array.dtype.str, list(array.shape)]


def _plain(value: object, arrays: list[npt.NDArray[Any]]) -> object:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"number": repr(float(value))}
    if isinstance(value, np.generic):
        return _plain(value.item(), arrays)
    if isinstance(value, np.ndarray):
        kind = value.dtype.newbyteorder("<")
        if kind.str not in _KINDS:
            raise ValueError(f"a message can't hold an array of {kind.str}")
        return {"array": _kept(value.astype(kind, copy=False), arrays)}
    if _name(type(value)) in kinds():
        has = {key: _plain(each, arrays) for key, each in _fields(value).items()}
        return {"is": _name(type(value)), "has": has}
    if isinstance(value, Mapping):
        pairs = [[_plain(key, arrays), _plain(each, arrays)] for key, each in value.items()]
        return {"pairs": pairs}
    if isinstance(value, list | tuple):
        sort = "tuple" if isinstance(value, tuple) else "list"
        if (numbers := _numbers(value)) is not None:
            return {f"{sort}-of": _kept(numbers, arrays)}
        each = [_plain(each, arrays) for each in value]
        return {"tuple": each} if sort == "tuple" else each
    raise ValueError(f"a message can't hold a {type(value).__name__}")


def _kept(array: npt.NDArray[Any], arrays: list[npt.NDArray[Any]]) -> int:
    arrays.append(array)
    return len(arrays) - 1


def _numbers(values: Sequence[object]) -> npt.NDArray[Any] | None:
    """Many whole numbers as an array; None for anything else."""
    if len(values) < _MANY or any(type(each) is not int for each in values):
        return None
    for kind in ("<i8", "<u8"):
        try:
            return np.array(values, dtype=kind)
        except OverflowError:
            continue
    return None


def _fields(value: Any) -> Mapping[str, object]:
    if isinstance(value, IobenchError):
        notes = list(getattr(value, "__notes__", []))
        return {"what": value.what, "remedy": value.remedy, "notes": notes}
    if isinstance(value, _RECORDS):
        given = {
            name: getattr(value, name)
            for name, about in type(value).model_fields.items()
            if name in value.model_fields_set
            or getattr(value, name) != about.get_default(call_default_factory=True)
        }
        return given | (value.model_extra or {})
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return dict(value._asdict())


# From bytes


def sizes(head: bytes) -> tuple[int, int]:
    """The bytes of the text and of the arrays that follow. Raises ValueError."""
    mark, text, body = HEAD.unpack(head)
    if mark != _MARK:
        raise ValueError("it does not begin as one")
    check_sizes(text, body)
    return text, body


def check_sizes(text: int, body: int) -> None:
    """Raises ValueError for a message that is too large."""
    if text > MAX_TEXT_BYTES or HEAD.size + text + body > MAX_MESSAGE_BYTES:
        raise ValueError(f"it has {(text + body) >> 20} MiB")


def decoded(text: bytes, body: bytes | bytearray) -> object:
    """The message; one of ``words``. Raises ValueError in one line for bytes that are none."""
    if text.count(b",") > MAX_ITEMS or text.count(b"[") + text.count(b"{") > MAX_PARTS:
        raise ValueError("it has too many parts")
    found = parse_json(text)
    if not isinstance(found, dict) or found.keys() != {"told", "arrays"}:
        raise ValueError("it has other parts")
    try:
        message = _made(found["told"], _arrays(found["arrays"], body))
    except IobenchError as error:
        raise ValueError(error.what) from None
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it has a field of a wrong type ({type(error).__name__})") from None
    if type(message).__module__ != words.__name__:
        raise ValueError(f"it is a {type(message).__name__}")
    return message


def _arrays(about: object, body: bytes | bytearray) -> list[npt.NDArray[Any]]:
    """The arrays: together they are exactly the bytes that came."""
    found, at = [], 0
    for name, shape in _listed(about, _pair):
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ValueError("it has an array of an unknown kind")
        if not isinstance(shape, list) or len(shape) > 8:
            raise ValueError("it has an array of an unknown shape")
        if any(type(each) is not int or not 0 <= each <= MAX_MESSAGE_BYTES for each in shape):
            raise ValueError("it has an array of an unknown shape")
        count = math.prod(shape)
        if count * kind.itemsize > len(body) - at:
            raise ValueError("an array has fewer bytes than it says")
        found.append(np.frombuffer(body, kind, count, at).reshape(shape).copy())
        at += count * kind.itemsize
    if at != len(body):
        raise ValueError("it has bytes that belong to no array")
    return found


def _listed(value: object, each: Callable[[object], Any]) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("it has something else where a list belongs")
    return [each(one) for one in value]


def _pair(value: object) -> Sequence[object]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("it has something else where a pair belongs")
    return value


def _made(value: Any, arrays: Sequence[npt.NDArray[Any]]) -> Any:
    """What ``_plain`` was given."""

    def made(one: object) -> Any:
        return _made(one, arrays)

    if isinstance(value, list):
        return [made(each) for each in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"is": str(name), "has": dict(has), **more} if not more:
            return _object(name, {key: made(each) for key, each in has.items()})
        case {"pairs": list(pairs), **more} if not more:
            return {made(key): made(each) for key, each in map(_pair, pairs)}
        case {"tuple": list(values), **more} if not more:
            return tuple(made(each) for each in values)
        case {"number": "nan" | "inf" | "-inf" as number, **more} if not more:
            return float(number)
    if len(value) == 1:
        ((sort, number),) = value.items()
        if sort in ("array", "list-of", "tuple-of"):
            return _array(sort, number, arrays)
    raise ValueError("it has a part of an unknown kind")


def _array(sort: str, number: object, arrays: Sequence[npt.NDArray[Any]]) -> object:
    if type(number) is not int or not 0 <= number < len(arrays):
        raise ValueError("it has an array less than it names")
    if sort == "array":
        return arrays[number]
    values = fit(arrays[number].tolist(), list[int])
    return values if sort == "list-of" else tuple(values)


def _object(name: str, has: Mapping[str, Any]) -> object:
    kind: Any = kinds().get(name)
    if kind is None:
        raise ValueError(f"{name[:80]} is not known")
    if issubclass(kind, IobenchError):
        what, remedy, notes = (has.get(key) for key in ("what", "remedy", "notes"))
        return errors._rebuild(kind, fit(what, str), fit(remedy, str), fit(notes, list[str]))
    if issubclass(kind, _RECORDS):
        return fitting(name, kind, dict(has))
    hints = hints_of(kind)
    if not has.keys() <= hints.keys():
        raise ValueError(f"{name} has an unknown field")
    missing = hints.keys() - has.keys()
    if any(not _has_default(kind, field) for field in missing):
        raise ValueError(f"{name} lacks a field")
    return kind(**{field: fit(value, hints[field]) for field, value in has.items()})


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """The types of the fields of a dataclass or a named tuple."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in names}


def _has_default(kind: Any, name: str) -> bool:
    if not is_dataclass(kind):
        return name in kind._field_defaults
    (field,) = (each for each in fields(kind) if each.name == name)
    return field.default is not MISSING or field.default_factory is not MISSING


def fit(value: Any, hint: Any) -> Any:
    """The value, if it is of this type. Raises ValueError if it is not."""
    if hint is Any or hint is object:
        return value
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fit(value, args[0])
    if origin in (Union, types.UnionType):
        for each in args:
            try:
                return fit(value, each)
            except ValueError:
                continue
    elif origin is Literal:
        if any(type(value) is type(each) and value == each for each in args):
            return value
    elif origin is np.ndarray:
        if isinstance(value, np.ndarray) and _is_of(value.dtype, args[1]):
            return value
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(value, dict):
            return {fit(key, args[0]): fit(each, args[1]) for key, each in value.items()}
    elif origin is tuple:
        if isinstance(value, tuple) and (args[1:] == (...,) or len(args) == len(value)):
            each = [args[0]] * len(value) if args[1:] == (...,) else args
            return tuple(fit(one, kind) for one, kind in zip(value, each, strict=True))
    elif isinstance(origin, type) and issubclass(origin, Sequence):
        if isinstance(value, list) or (isinstance(value, tuple) and origin is not list):
            return type(value)(fit(one, args[0]) for one in value)
    elif hint is float:
        if type(value) in (int, float):
            return float(value)
    elif hint is int or hint is bool or hint is str:
        if type(value) is hint:
            return value
    elif hint is None or hint is types.NoneType:
        if value is None:
            return None
    elif isinstance(hint, type) and isinstance(value, hint):
        return value
    raise ValueError(f"it has a {type(value).__name__} where {_shown(hint)} belongs")


def _is_of(kind: np.dtype[Any], hint: Any) -> bool:
    (scalar,) = get_args(hint) or (Any,)
    return scalar is Any or bool(np.issubdtype(kind, scalar))


def _shown(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint))[:80]
