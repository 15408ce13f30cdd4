"""A rank's state: its leaves by name, their checksums, and a state of random content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from ..base import buffers, payload
from ..base.errors import CheckpointError, UsageError
from .base import State
from .manifest import corrupt
from .sharding import Share, TensorSpec

SEPARATOR = "/"
SHARED = " shared"
"""How the checksum of a tensor ends that ranks share."""

Leaves = dict[str, Any]
Bytes = npt.NDArray[np.uint8]


def leaves(state: Mapping[str, Any]) -> Leaves:
    """Name -> tensor or value, in the state's order; names of nested dicts are joined with '/'.

    Raises UsageError for a leaf of another type, and for two leaves of one name.
    """
    found: Leaves = {}
    for name, leaf in _walk(state, ""):
        if name in found:
            raise UsageError(f"two entries of the state have the name '{name}'")
        found[name] = leaf
    return found


def _walk(state: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _walk(value, name + SEPARATOR)
        elif isinstance(value, torch.Tensor | int | float | str):
            yield name, value
        else:
            raise UsageError(
                f"the state's '{name}' is a {type(value).__name__}",
                remedy="a state holds tensors, int, float, str and dicts",
            )


def set_values(state: dict[str, Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Set each leaf that is not a tensor to the value of its name."""
    for key, old in state.items():
        name = f"{prefix}{key}"
        if isinstance(old, dict):
            set_values(old, values, name + SEPARATOR)
        elif name in values:
            state[key] = values[name]


def is_shared(leaf: object) -> bool:
    """Whether a leaf is one rank's part of a tensor that ranks share (a DTensor)."""
    from torch.distributed.tensor import DTensor

    return isinstance(leaf, DTensor)


def raw(tensor: torch.Tensor) -> Bytes:
    """A tensor's memory as bytes; of a copy if it is not contiguous or not in host memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def kind(leaf: object) -> str:
    """What must be equal for a saved leaf to fit: the type, and the shape in brackets."""
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}".replace(" ", "")
    return type(leaf).__name__


def state_checksums(state: Mapping[str, Any]) -> dict[str, str]:
    """Name -> kind and XXH3 of each leaf's bytes.

    A shared tensor has its kind alone, since the ranks may divide its bytes differently later.
    """
    found = leaves(state)
    with ThreadPoolExecutor(4) as threads:
        return dict(zip(found, threads.map(_checksum, found.values()), strict=True))


def _checksum(leaf: object) -> str:
    if is_shared(leaf):
        return f"{kind(leaf)}{SHARED}"
    data: Any = raw(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf).encode()
    return f"{kind(leaf)} {xxhash.xxh3_64_hexdigest(data)}"


def check_fits(state: Mapping[str, Any], checksums: Mapping[str, str], where: str) -> None:
    """Check, before anything is read, that the state has exactly the saved leaves.

    Raises CheckpointError.
    """
    wanted = {name: kind(leaf) for name, leaf in leaves(state).items()}
    saved = {name: checksum.rpartition(" ")[0] for name, checksum in checksums.items()}
    if wanted == saved:
        return
    name = min(name for name in wanted.keys() | saved.keys() if wanted.get(name) != saved.get(name))
    has, needs = saved.get(name, "nothing"), wanted.get(name, "nothing")
    raise CheckpointError(
        f"{where} is not a checkpoint of this state: it has {has} for '{name}', "
        f"the state has {needs}",
        remedy="restore it with the model, scale and ranks that it was saved with",
    )


def verify(
    state: Mapping[str, Any], checksums: Mapping[str, str], where: str | Callable[[str], str]
) -> None:
    """Check, after reading, that every leaf has the saved bytes.

    ``where``: the file, or a function from a leaf's name to its file. Raises CorruptCheckpointError
    that names the file and the leaf.
    """
    found = state_checksums(state)
    wrong = [name for name, checksum in checksums.items() if found.get(name) != checksum]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise corrupt(
            where if isinstance(where, str) else where(wrong[0]),
            f"'{wrong[0]}'{more} differs from what was saved (XXH3)",
        )


_ALIGN = 4096


def build_state(share: Share, *, seed: int, rank: int) -> State:
    """A state of random content: {"model": {name: tensor}, "optimizer": {name: tensor}, "step": 0}.

    The content depends only on ``seed`` and ``rank``. It takes the share's bytes of memory, and up
    to 4 KiB more for each tensor.
    """
    specs = (*share.model, *share.optimizer)
    memory = buffers.private(sum(_room(spec) for spec in specs) or 1, prefault=False).array
    tensors: list[torch.Tensor] = []
    start = 0
    for number, spec in enumerate(specs):
        piece = memory[start : start + spec.nbytes]
        if spec.nbytes:
            payload.fill(piece.data, seed=seed, index=(rank << 20) + number)
        tensors.append(_tensor(piece, spec))
        start += _room(spec)
    return {
        "model": _named(share.model, tensors),
        "optimizer": _named(share.optimizer, tensors[len(share.model) :]),
        "step": 0,
    }


def part_of(state: State, share: Share) -> State:
    """The tensors of ``share`` in a state, in the same memory, and all its values."""
    own = {"model": share.model, "optimizer": share.optimizer}
    tensors = {
        group: {spec.name: state[group][spec.name] for spec in specs}
        for group, specs in own.items()
    }
    return state | tensors


def _room(spec: TensorSpec) -> int:
    return -(-spec.nbytes // _ALIGN) * _ALIGN


def _tensor(piece: object, spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    if not spec.nbytes:
        return torch.empty(spec.shape, dtype=dtype)
    return torch.from_numpy(piece).view(dtype).view(spec.shape)


def _named(specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip((spec.name for spec in specs), tensors, strict=False))
