"""The pickle that ``torch.save`` writes: tensors within their memory, and plain values."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .pickles import Grammar, Refused


class Described(NamedTuple):
    """A tensor without its data: type and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """The same text as ``leaves.kind``."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}".replace(" ", "")


class _Storage(NamedTuple):
    dtype: torch.dtype
    elements: int


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Name -> kind of each leaf, as ``leaves.kind`` has it.

    Raises ValueError for anything that a state can't hold.
    """
    found: dict[str, str] = {}
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__} instead of a state")
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            found |= flat(item, f"{name}/")
        elif isinstance(item, Described):
            found[name] = item.kind
        elif isinstance(item, int | float | str):
            found[name] = type(item).__name__
        else:
            raise ValueError(f"'{name}' is a {type(item).__name__}")
    return found


def grammar(sizes: dict[str, int]) -> Grammar:
    """The grammar for an archive; ``sizes``: bytes of each member that holds a tensor's memory."""

    def storage(*arguments: object) -> _Storage:
        kind, dtype, key, _, count = arguments
        if kind != "storage" or type(key) is not str or type(count) is not int:
            raise Refused("an object that is not the memory of a tensor")
        if not isinstance(dtype, torch.dtype) or not 0 <= count * dtype.itemsize <= sizes[key]:
            raise ValueError(f"a tensor claims {count} elements in {sizes[key]} bytes of memory")
        return _Storage(dtype, count)

    return Grammar(constants=_CONSTANTS, calls=_CALLS, storage=storage)


def _tensor(*arguments: object) -> Described:
    """``_rebuild_tensor_v2``: storage, offset, shape, strides, requires_grad, hooks."""
    storage, offset, shape, strides, grad, hooks = arguments
    if not isinstance(storage, _Storage) or type(grad) is not bool or hooks != {}:
        raise Refused("a tensor with more than its numbers")
    return _within(storage, offset, shape, strides, storage.dtype)


def _tensor_v3(*arguments: object) -> Described:
    """``_rebuild_tensor_v3``: the same, for types that have no storage class of their own."""
    storage, offset, shape, strides, grad, hooks, dtype = arguments
    if not isinstance(storage, _Storage) or type(grad) is not bool or hooks != {}:
        raise Refused("a tensor with more than its numbers")
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no type")
    return _within(storage, offset, shape, strides, dtype)


def _within(
    storage: _Storage, offset: object, shape: object, strides: object, dtype: torch.dtype
) -> Described:
    if type(offset) is not int or offset < 0:
        raise ValueError("a tensor's offset is not a whole number")
    sizes, steps = _numbers(shape), _numbers(strides)
    if len(sizes) != len(steps):
        raise ValueError("a tensor has a shape and strides of different lengths")
    nbytes = storage.elements * storage.dtype.itemsize
    last = offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if 0 not in sizes and (last + 1) * dtype.itemsize > nbytes:
        raise ValueError(f"a tensor would end beyond its {nbytes} bytes of memory")
    return Described(dtype, sizes)


def _numbers(value: object) -> tuple[int, ...]:
    if type(value) is not tuple or not all(type(n) is int and 0 <= n < 1 << 63 for n in value):
        raise ValueError("a tensor's shape or strides are not whole numbers")
    return value


def _parameter(*arguments: object) -> Described:
    """``_rebuild_parameter``: tensor, requires_grad, hooks."""
    tensor, _, hooks = arguments
    if not isinstance(tensor, Described) or hooks != {}:
        raise Refused("a parameter with more than its numbers")
    return tensor


def _hooks(*arguments: object) -> dict[str, object]:
    if arguments:
        raise Refused("an OrderedDict that is not empty")
    return {}


def _storages() -> dict[tuple[str, str], object]:
    """The types that a pickle of tensors may name."""
    found: dict[tuple[str, str], object] = {
        ("torch", name): value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype)
    }
    for name, dtype in (
        ("Double", torch.float64),
        ("Float", torch.float32),
        ("Half", torch.float16),
        ("BFloat16", torch.bfloat16),
        ("Long", torch.int64),
        ("Int", torch.int32),
        ("Short", torch.int16),
        ("Char", torch.int8),
        ("Byte", torch.uint8),
        ("Bool", torch.bool),
        ("ComplexFloat", torch.complex64),
        ("ComplexDouble", torch.complex128),
    ):
        found["torch", f"{name}Storage"] = dtype
    found["torch.storage", "UntypedStorage"] = torch.uint8
    return found


_CONSTANTS = _storages()
_CALLS = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): _hooks,
}
