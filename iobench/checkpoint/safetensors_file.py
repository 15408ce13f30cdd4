"""safetensors: a JSON header and raw tensors, without any pickle.

The library writes and reads local files. It can only write to a stream with a complete copy of the
state in memory, so on other storages this module writes the format itself, tensor by tensor
(https://huggingface.co/docs/safetensors: 8 bytes with the header's length, JSON header, data).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ..base.documents import safetensors_header
from ..base.errors import CheckpointError
from ..base.limits import header_limit
from ..storage.files import StorageFile
from .base import State
from .catalog import CheckpointTarget
from .leaves import leaves, raw, set_values
from .reading import uncached_window
from .saving import Behind, FileWriter, SaveClock, write_file

_VALUES = "iobench"
"""The metadata's entry with the state's int, float and str as JSON: the format has tensors only."""

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


class Safetensors(FileWriter):
    """One file for each rank."""

    name = "safetensors"
    suffix = ".safetensors"

    def check(self, state: State, target: CheckpointTarget) -> None:
        super().check(state, target)
        for name, leaf in leaves(state).items():
            if isinstance(leaf, torch.Tensor) and leaf.dtype not in _DTYPES:
                raise CheckpointError(
                    f"'{name}' is {leaf.dtype}, which the safetensors format does not support",
                    remedy="use another writer",
                )

    def write(
        self, state: State, target: CheckpointTarget, *, fsync: bool, clock: SaveClock
    ) -> float:
        tensors, values = _split(state)
        metadata = {_VALUES: json.dumps(values)}
        if target.path() is not None:

            def save(path: Path) -> None:
                save_file(tensors, path, metadata=metadata)

            return write_file(target, self.file(), save, fsync=fsync, clock=clock)
        header = safetensors_header(
            (
                (name, _DTYPES[tensor.dtype], tensor.shape, tensor.nbytes)
                for name, tensor in tensors.items()
            ),
            metadata,
        )
        size = len(header) + sum(tensor.nbytes for tensor in tensors.values())
        with target.storage.create(target.key(self.file()), size_hint=size, durable=fsync) as sink:
            sink.write(header)
            for tensor in tensors.values():
                if tensor.nbytes:
                    sink.write(raw(tensor).data)
            return clock.wall()

    def inspect(self, state: State, target: CheckpointTarget) -> None:
        with uncached_window(target, self.file()) as window:
            _check_length(window.bytes(0, min(8, window.size)), window.size, list(leaves(state)))

    def read(self, state: State, target: CheckpointTarget) -> None:
        tensors = {
            name: leaf for name, leaf in leaves(state).items() if isinstance(leaf, torch.Tensor)
        }
        path = target.library_path(self.file())
        if path is not None:
            with safe_open(path, framework="pt", device="cpu") as file:
                if set(file.keys()) != set(tensors):
                    raise ValueError("it holds other tensors than the manifest lists")
                for name, tensor in tensors.items():
                    tensor.copy_(file.get_tensor(name))
                metadata = file.metadata()
        else:
            metadata = _read(StorageFile(target.storage, target.key(self.file())), tensors)
        set_values(state, _values(metadata))


class SafetensorsBehind(Behind, Safetensors):
    """The same of a copy, by a thread, while training goes on."""

    name = "safetensors-async"


def _split(state: State) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    found = leaves(state)
    tensors = {
        name: leaf.detach().contiguous()
        for name, leaf in found.items()
        if isinstance(leaf, torch.Tensor)
    }
    return tensors, {
        name: leaf for name, leaf in found.items() if not isinstance(leaf, torch.Tensor)
    }


def _read(file: StorageFile, tensors: dict[str, torch.Tensor]) -> object:
    """Read directly into the tensors' memory; the metadata, whatever it is.

    Raises ValueError if the file is not a valid safetensors file.
    """
    length = _check_length(_exactly(file, bytearray(8)), file.size, list(tensors))
    entries = _object(_exactly(file, bytearray(length)), "the header")
    metadata: object = entries.pop("__metadata__", None)
    if set(entries) != set(tensors):
        raise ValueError("it holds other tensors than the manifest lists")
    for name, tensor in tensors.items():
        entry = entries[name] if isinstance(entries[name], dict) else {}
        match entry.get("data_offsets"):
            case [int(begin), int(end)] if begin >= 0 and end - begin == tensor.nbytes:
                fits = entry.get("shape") == list(tensor.shape)
            case _:
                fits = False
        if not fits or entry.get("dtype") != _DTYPES[tensor.dtype]:
            raise ValueError(f"the header contradicts the manifest about '{name}'")
        if tensor.nbytes:
            file.seek(8 + length + begin)
            memory = raw(tensor)
            _exactly(file, memory.data)
            if memory.ctypes.data != tensor.data_ptr():
                tensor.copy_(torch.from_numpy(memory).view(tensor.dtype).reshape(tensor.shape))
    return metadata


def _values(metadata: object) -> dict[str, Any]:
    """The state's int, float and str. Raises ValueError if the metadata does not hold them."""
    text = metadata.get(_VALUES) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"the metadata has no '{_VALUES}'")
    return _object(text, "the metadata")


def _object(text: str | bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"{what} is not a JSON object")
    return found


def _check_length(begin: bytes, size: int, names: list[str]) -> int:
    """The header's length in bytes, from its first eight bytes. Raises ValueError."""
    length, limit = int.from_bytes(begin, "little"), header_limit(names)
    if len(begin) < 8 or length > min(size - 8, limit):
        raise ValueError(
            f"it does not begin with a valid header: the length is {length} bytes in a file of "
            f"{size}, the limit is {limit}"
        )
    return length


def _exactly(file: StorageFile, buffer: Any) -> Any:
    if file.readinto(buffer) < len(buffer):
        raise ValueError("the file ends too early")
    return buffer
