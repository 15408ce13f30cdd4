"""An interpreter for untrusted pickles, which knows no classes.

A pickle is a program, and Python's unpickler runs it. Even an unpickler that allows only certain
classes lets the program set attributes on them, allocate memory through their constructors, or
build values that take forever to compare. Here a ``Grammar`` names what may be made, by functions
that check their arguments and never by classes. Instructions that no checkpoint needs are refused.
A list or dict may be used only once, so that the result is a tree no larger than the pickle.

Source: Python's Lib/pickletools.py, which describes each instruction.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 100
"""How many lists, tuples and dicts may be open at the same time."""

_MAX_PROTOCOL = 5

Call = Callable[..., object]
New = Callable[[object], object]
Build = Callable[[Any, object], None]


class Refused(pickle.UnpicklingError):
    """The pickle asks for something that no checkpoint needs. Nothing was executed."""


@dataclass(frozen=True)
class Grammar:
    """What a pickle may name, by (module, name).

    ``constants``: values. ``calls``: functions that make a value from arguments. ``objects``: a
    function that makes an empty instance, and one that fills it with its state, once. Instances of
    the types in ``optional`` need no state. ``keys``: the types that a dict may have as keys.
    ``storage``: makes a value for what torch keeps outside of the pickle. All functions raise
    ValueError for arguments that they do not accept.
    """

    constants: Mapping[tuple[str, str], object] = field(default_factory=dict)
    calls: Mapping[tuple[str, str], Call] = field(default_factory=dict)
    objects: Mapping[tuple[str, str], tuple[Callable[[], object], Build]] = field(
        default_factory=dict
    )
    optional: tuple[type, ...] = ()
    keys: tuple[type, ...] = (str,)
    storage: Call | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """Stands on the stack for a function or a class; it has no attributes that could be set."""

    name: tuple[str, str]


def interpret(data: bytes, grammar: Grammar) -> Any:
    """The value that a pickle describes.

    Raises Refused; ValueError for a pickle that is damaged or does not fit the grammar.
    """
    try:
        return _Interpreter(data, grammar).run()
    except (IndexError, KeyError, TypeError, AttributeError, struct.error, OverflowError) as error:
        raise ValueError(f"the pickle is damaged ({type(error).__name__})") from None


class _Interpreter:
    def __init__(self, data: bytes, grammar: Grammar) -> None:
        self.data = data
        self.grammar = grammar
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        # By id; the value keeps the object alive, so that the id stays valid.
        self.unfilled: dict[int, tuple[object, Build]] = {}

    def run(self) -> Any:
        data, actions = self.data, _ACTIONS
        while True:
            code = data[self.position]
            self.position += 1
            if code == _STOP:
                break
            action = actions[code]
            if action is None:
                raise Refused(f"instruction {code} at byte {self.position - 1}")
            action(self)
        if len(self.stack) != 1 or self.marks:
            raise ValueError("the pickle is damaged (values are left on the stack)")
        for made, _ in self.unfilled.values():
            if not isinstance(made, self.grammar.optional):
                raise ValueError(f"a {type(made).__name__} has no state")
        return self.stack[0]

    # Parts of instructions

    def take(self, count: int) -> bytes:
        start = self.position
        if count > len(self.data) - start:
            raise IndexError(count)
        self.position = start + count
        return self.data[start : start + count]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def line(self) -> str:
        end = self.data.index(b"\n", self.position)
        return self.take(end + 1 - self.position)[:-1].decode()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    # Instructions

    def protocol(self) -> None:
        if self.number(1) > _MAX_PROTOCOL:
            raise ValueError("the pickle has an unknown protocol")

    def frame(self) -> None:
        self.number(8)

    def mark(self) -> None:
        if len(self.marks) >= MAX_DEPTH:
            raise ValueError(f"the pickle is nested more than {MAX_DEPTH} deep")
        self.marks.append(self.stack)
        self.stack = []

    def long(self) -> None:
        self.push(int.from_bytes(self.take(self.number(1)), "little", signed=True))

    def text(self, length_bytes: int) -> None:
        self.push(str(self.take(self.number(length_bytes)), "utf-8", "surrogatepass"))

    def pack(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count:
            raise IndexError(count)
        self.stack[-count:] = [items]

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise Refused("items for an object that is not a list")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise Refused("items for an object that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, self.grammar.keys) or id(key) in self.unfilled:
                raise Refused(f"a dict with a {type(key).__name__} as a key")
            target[key] = value

    def get(self, number: int) -> None:
        value = self.memo[number]
        if type(value) in (dict, list):
            raise Refused("a list or dict that is used twice")
        self.push(value)

    def put(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def name(self, module: Any, name: Any) -> None:
        found, grammar = (module, name), self.grammar
        if type(module) is not str or type(name) is not str:
            raise Refused("a name that is not text")
        if found in grammar.constants:
            self.push(grammar.constants[found])
        elif found in grammar.calls or found in grammar.objects:
            self.push(Name(found))
        else:
            raise Refused(f"{module}.{name}"[:200])

    def stack_name(self) -> None:
        name = self.stack.pop()
        self.name(self.stack.pop(), name)

    def call(self) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        call = self.grammar.calls.get(function.name) if type(function) is Name else None
        if call is None or type(arguments) is not tuple:
            raise Refused("a call of an object that is not a function")
        self.push(call(*arguments))

    def new(self) -> None:
        arguments = self.stack.pop()
        name = self.stack.pop()
        known = self.grammar.objects.get(name.name) if type(name) is Name else None
        if known is None or arguments != ():
            raise Refused("an instance of an object that is not a class")
        make, build = known
        made = make()
        self.unfilled[id(made)] = made, build
        self.push(made)

    def build(self) -> None:
        state = self.stack.pop()
        made, build = self.unfilled.pop(id(self.stack[-1]), (None, None))
        if build is None:
            raise Refused("a state for an object that has none, or has one already")
        build(made, state)

    def outside(self) -> None:
        described = self.stack.pop()
        if self.grammar.storage is None or type(described) is not tuple:
            raise Refused("an object outside of the pickle")
        self.push(self.grammar.storage(*described))


Action = Callable[[_Interpreter], None]
_STOP = pickle.STOP[0]
_ACTIONS: list[Action | None] = [None] * 256


def _known(code: bytes, action: Action) -> None:
    _ACTIONS[code[0]] = action


_known(pickle.PROTO, _Interpreter.protocol)
_known(pickle.FRAME, _Interpreter.frame)
_known(pickle.MARK, _Interpreter.mark)
_known(pickle.NONE, lambda i: i.push(None))
_known(pickle.NEWTRUE, lambda i: i.push(True))
_known(pickle.NEWFALSE, lambda i: i.push(False))
_known(pickle.BININT, lambda i: i.push(int.from_bytes(i.take(4), "little", signed=True)))
_known(pickle.BININT1, lambda i: i.push(i.number(1)))
_known(pickle.BININT2, lambda i: i.push(i.number(2)))
_known(pickle.LONG1, _Interpreter.long)
_known(pickle.BINFLOAT, lambda i: i.push(struct.unpack(">d", i.take(8))[0]))
_known(pickle.SHORT_BINUNICODE, lambda i: i.text(1))
_known(pickle.BINUNICODE, lambda i: i.text(4))
_known(pickle.EMPTY_TUPLE, lambda i: i.push(()))
_known(pickle.TUPLE, lambda i: i.push(tuple(i.since_mark())))
_known(pickle.TUPLE1, lambda i: i.pack(1))
_known(pickle.TUPLE2, lambda i: i.pack(2))
_known(pickle.TUPLE3, lambda i: i.pack(3))
_known(pickle.EMPTY_LIST, lambda i: i.push([]))
_known(pickle.APPEND, lambda i: i.append([i.stack.pop()]))
_known(pickle.APPENDS, lambda i: i.append(i.since_mark()))
_known(pickle.EMPTY_DICT, lambda i: i.push({}))
_known(pickle.SETITEM, lambda i: i.set_items([i.stack.pop(-2), i.stack.pop()]))
_known(pickle.SETITEMS, lambda i: i.set_items(i.since_mark()))
_known(pickle.MEMOIZE, lambda i: i.put(len(i.memo)))
_known(pickle.BINPUT, lambda i: i.put(i.number(1)))
_known(pickle.LONG_BINPUT, lambda i: i.put(i.number(4)))
_known(pickle.BINGET, lambda i: i.get(i.number(1)))
_known(pickle.LONG_BINGET, lambda i: i.get(i.number(4)))
_known(pickle.GLOBAL, lambda i: i.name(i.line(), i.line()))
_known(pickle.STACK_GLOBAL, _Interpreter.stack_name)
_known(pickle.REDUCE, _Interpreter.call)
_known(pickle.NEWOBJ, _Interpreter.new)
_known(pickle.BUILD, _Interpreter.build)
_known(pickle.BINPERSID, _Interpreter.outside)
