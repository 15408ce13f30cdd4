"""Read documents that others may have written, within limits; write JSON in plain ASCII.

Only regular files are read (a FIFO would wait forever), only up to a given number of bytes, and
nothing with deeper nesting or larger numbers than iobench's own documents have.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .beneath import open_regular
from .errors import MissingPlaceError, UsageError
from .filesystem import sync_names

MAX_DOCUMENT_BYTES = 256 << 20
"""Limit for a recorded run: 100 saves of 4,096 ranks take about 140 MiB."""

MAX_HEADER_BYTES = 4 << 20
"""Limit for a small document: a manifest's header, a marker, a layout's record."""

MAX_DEPTH = 50
MAX_NUMBER = 1e30
"""Larger than any byte count, rate or time; the product of two such numbers is still finite."""


def require_place(path: Path, remedy: str, *, directory: bool = True) -> None:
    """Check that a place of this host that a command names is there, before anything is done.

    ``directory``: a file would not do. Raises MissingPlaceError, UsageError.
    """
    if not path.exists():
        what = "directory" if directory else "file or directory"
        raise MissingPlaceError(f"no such {what}: {path}", remedy=remedy)
    if directory and not path.is_dir():
        raise UsageError(f"{path} is not a directory", remedy=remedy)


def walk(
    top: Path | str, failed: Callable[[OSError], None] = lambda error: None
) -> Iterator[tuple[str, list[str]]]:
    """Each folder from ``top`` downwards, and the names of what is in it beside folders, sorted.

    Links to folders are left out, and not followed. Folders may be nested as deeply as the system
    allows, where ``os.walk`` of Python 3.11 raises RecursionError. ``failed`` is called with the
    OSError of a folder that can't be read.
    """
    waiting = [os.fspath(top)]
    while waiting:
        folder = waiting.pop()
        folders, names = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif not (entry.is_symlink() and os.path.isdir(entry.path)):
                        names.append(entry.name)
        except OSError as error:
            failed(error)
            continue
        yield folder, sorted(names)
        waiting += sorted(folders, reverse=True)


def read_regular(path: str | Path, max_bytes: int) -> bytes:
    """All bytes of a regular file.

    Raises OSError (FileNotFoundError, beneath.NoFileError), and ValueError if the file has more
    than ``max_bytes``.
    """
    with open(open_regular(path), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes >> 20} MiB")
    return data


def write_whole(path: Path, text: str) -> None:
    """Write an ASCII text under a temporary name, then rename it to ``path``, durably.

    After a failure ``path`` is unchanged and no temporary file is left. Raises OSError.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_names(path.parent)
    except BaseException:
        with suppress(OSError):  # the first failure says more than this one would
            part.unlink(missing_ok=True)
        raise


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document. Raises ValueError in one line if it is not valid.

    NaN and Infinity, numbers beyond MAX_NUMBER, and more than MAX_DEPTH levels are not valid.
    """
    try:
        data = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "digits" not in str(error):  # not Python's limit for the digits of an integer
            raise
        raise ValueError("it has a number with thousands of digits") from None
    _check(data)
    return data


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a valid number")


def _check(data: Any) -> None:
    """Check the depth and the numbers, without recursion."""
    level = [data]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
                key = ".".join(_path(data, value))
                raise ValueError(f"'{key}' is out of range")
        level = below
    if level:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _path(data: Any, wanted: Any) -> list[str]:
    """Keys and indices that lead to the object ``wanted``; empty if it is ``data`` itself."""
    pairs: Any = ()
    if isinstance(data, dict):
        pairs = data.items()
    elif isinstance(data, list):
        pairs = enumerate(data)
    for key, value in pairs:
        if value is wanted:
            return [str(key)]
        if isinstance(value, dict | list) and (found := _path(value, wanted)):
            return [str(key), *found]
    return []


UNPRINTED = {"printed": False}
"""The ``metadata`` of a dataclass' field that is no part of the JSON document."""


def json_text(document: Any, *, indent: int | None = 2) -> str:
    """``document`` as JSON in ASCII, so that a terminal gets no character of its texts unescaped.

    Records (pydantic models, dataclasses, named tuples) become objects, paths become texts, and
    numbers that are not finite become null. ``json.loads`` returns an equal document, also with
    lone surrogates.
    """
    return json.dumps(_plain(document), indent=indent, allow_nan=False)


def safetensors_header(
    tensors: Iterable[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str]
) -> bytes:
    """The beginning of a safetensors file with these tensors: name, type, shape and bytes of each.

    The tensors follow without gaps, in this order (https://github.com/huggingface/safetensors).
    """
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, dtype, shape, nbytes in tensors:
        begin, end = end, end + nbytes
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if (names := getattr(type(value), "model_fields", None)) is not None:
        return {name: _plain(each) for name, each in _members(value, names).items()}
    if dataclasses.is_dataclass(value):
        names = (each.name for each in dataclasses.fields(value) if each.metadata != UNPRINTED)
        return {name: _plain(getattr(value, name)) for name in names}
    if hasattr(value, "item"):  # a number of NumPy
        return _plain(value.item())
    return str(value)


def _members(model: Any, names: Iterable[str]) -> dict[str, Any]:
    """All keys of a pydantic model; of one that keeps unknown keys, those that it was given."""
    unknown: dict[str, Any] | None = model.model_extra
    if unknown is None:
        return {name: getattr(model, name) for name in names}
    given = model.model_fields_set
    return {name: getattr(model, name) for name in names if name in given} | unknown
