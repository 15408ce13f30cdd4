"""Read a pickle of others without running it: each name in it becomes a stand-in.

A pickle is a program: it names functions and classes, calls them, and sets attributes. Here no name
is looked up. What is called, made or filled is a ``StandIn``, which remembers its arguments and its
state and does nothing. The caller then takes the values that it expects.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar


class StandIn:
    """What a pickle made of a class or a function: ``kind`` is its module and name."""

    kind: ClassVar[tuple[str, str]] = ("", "")
    args: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *args: Any) -> StandIn:
        made = super().__new__(cls)
        made.args = args
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of a class that is a dict, such as OrderedDict, are of no use here."""


def load(data: bytes) -> Any:
    """Return the value of a pickle, in which everything but plain values is a stand-in.

    Raises ValueError if it is damaged, or made to take very long.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise ValueError(
            f"its pickle can't be read ({type(error).__name__}); nothing was executed"
        ) from None


_USUAL: dict[int, Any] = pickle._Unpickler.dispatch
_SETS = (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)


# Python's own unpickler, not the one in C: that one allocates as much memory as an index states.
class _Unpickler(pickle._Unpickler):
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        return type("StandIn", (StandIn,), {"kind": (str(module), str(name))})

    def persistent_load(self, pid: Any) -> Any:
        return StandIn(pid)

    def set_item(self) -> None:
        _check_keys(self.stack[-2:-1])
        _USUAL[pickle.SETITEM[0]](self)

    def set_items(self) -> None:
        _check_keys(self.stack[::2])
        _USUAL[pickle.SETITEMS[0]](self)

    dispatch: ClassVar[dict[int, Any]] = {
        code: run for code, run in _USUAL.items() if bytes([code]) not in _SETS
    } | {pickle.SETITEM[0]: set_item, pickle.SETITEMS[0]: set_items}


def _check_keys(keys: list[Any]) -> None:
    """Tuples of the same tuples, many times over, are few bytes, and take forever to hash."""
    if any(isinstance(key, tuple) for key in keys):
        raise ValueError("a tuple is a key of a dict")
