"""Targets that are checkpoints: manifests, parts, and the files of every writer."""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import xxhash

from iobench.checkpoint import make_writer
from iobench.checkpoint.catalog import CheckpointRoot, CheckpointTarget
from iobench.checkpoint.container import MAGIC, PAGE, layout_from_header, read_header
from iobench.checkpoint.leaves import leaves
from iobench.checkpoint.manifest import MANIFEST, parse_manifest, parse_part, part_name
from iobench.checkpoint.place import CHECKPOINTS
from iobench.checkpoint.safetensors_file import _read as read_safetensors
from iobench.data.generator import journal
from iobench.data.generator.plan import ShardPlan, plan_shards
from iobench.serve.weights import INDEX, read_weights
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from iobench.storage.files import StorageFile
from iobench.storage.local.storage import LocalStorage
from tests.checkpoints import blank, plant, save
from tests.fuzz.target import Target, parts, scratch
from tests.looking import stored_as


def small_state() -> dict[str, Any]:
    """As small as its files can be: they are seeds."""
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {"w": weight, "mask": torch.ones(3, dtype=torch.bool), "step": 3, "name": "é"}


FILES = {
    "torch": "rank-0000.pt",
    "safetensors": "rank-0000.safetensors",
    "stream": "rank-0000.tensors",
    "dcp": ".metadata",
}
"""The file of each writer that is fuzzed."""


def saved(writer: str, folder: Path) -> CheckpointTarget:
    """A checkpoint of the small state."""
    root = CheckpointRoot(LocalStorage(folder))
    root.claim()
    return save(writer, root, 1, small_state(), fsync=False)


@functools.cache
def _own(writer: str) -> tuple[CheckpointTarget, Any]:
    return saved(writer, scratch(writer)), make_writer(writer)


def _restored(writer: str, data: bytes) -> None:
    """A whole restore of the small state, where one file is ``data`` and the manifest agrees."""
    target, made = _own(writer)
    plant(target, FILES[writer], data)
    made.restore(blank(small_state()), target)


def torch_archive(data: bytes) -> None:
    _restored("torch", data)


def safetensors(data: bytes) -> None:
    """The header's JSON, and then the tensors; the length of the header is made right."""
    if data[8:9] != b"{":
        header, tensors = parts(data, 2)
        data = len(header).to_bytes(8, "little") + header + tensors
    state = {name: t for name, t in leaves(blank(small_state())).items() if torch.is_tensor(t)}
    with suppress(ValueError):  # Safetensors.restore names the file
        read_safetensors(StorageFile(stored_as({"a": data}), "a"), state)
    _restored("safetensors", data)


def weights(data: bytes) -> None:
    """A shard's header, its tensors, and an index; the length of the header is made right."""
    header, tensors, index = parts(data, 3)
    objects = {"a.safetensors": len(header).to_bytes(8, "little") + header + tensors}
    read_weights(stored_as(objects | ({INDEX: index} if index else {})))


def stream(data: bytes) -> None:
    """The header's JSON, and then the tensors; its checksum, length and the size are made right."""
    if not data.startswith(MAGIC):
        text, tensors = parts(data, 2)
        size = _padded(24 + len(text)) + len(tensors)
        with suppress(ValueError, TypeError, RecursionError):
            text = json.dumps({**json.loads(text), "size": size}).encode()
        digest = xxhash.xxh3_64_digest(text)
        begin = MAGIC + len(text).to_bytes(8, "little") + digest + text
        data = (begin.ljust(_padded(len(begin)), b"\0") + tensors).ljust(size, b"\0")[:size]
    state = blank(small_state())
    with suppress(ValueError):  # Stream.restore names the file
        layout_from_header(state, read_header(stored_as({"a": data}), "a", list(leaves(state))))
    _restored("stream", data)


def _padded(size: int) -> int:
    return -(-size // PAGE) * PAGE


def dcp(data: bytes) -> None:
    from iobench.checkpoint.dcp_compat import unpickle_metadata  # which takes a second to import

    with suppress(Exception):  # RestoringDcp.inspect names the file
        unpickle_metadata(data)
    _restored("dcp", data)


def checkpoint_manifest(data: bytes) -> None:
    found = parse_manifest(data, MANIFEST)
    found.files()
    found.dump()


def checkpoint_part(data: bytes) -> None:
    parse_part(data, part_name(0)).dump()


def checkpoint_root(data: bytes) -> None:
    """The marker of a place of checkpoints."""
    folder = scratch("root")
    (folder / CHECKPOINTS.marker).write_bytes(data)
    CHECKPOINTS.require(LocalStorage(folder))


@functools.cache
def small_plan() -> ShardPlan:
    given = {"name": "x", "samples": 8, "sample_size": {"mean": 100}, "format": "tar"}
    return plan_shards(build(DatasetSpec, given, where="the dataset"))


def journal_entry(data: bytes) -> None:
    """An entry of generate's journal, as it is and with a right checksum; None where damaged."""
    journal.parse(data, small_plan())
    body = data.partition(b"\n")[0]
    line = json.dumps({"xxh3": xxhash.xxh3_64_hexdigest(body)}).encode()
    journal.parse(body + b"\n" + line + b"\n", small_plan())


TARGETS = {
    "torch": Target(torch_archive),
    "safetensors": Target(safetensors),
    "weights": Target(weights),
    "stream": Target(stream),
    "dcp": Target(dcp),
    "checkpoint-manifest": Target(checkpoint_manifest, max_bytes=4096),
    "checkpoint-part": Target(checkpoint_part, max_bytes=4096),
    "checkpoint-root": Target(checkpoint_root, max_bytes=4096),
    "journal": Target(journal_entry, max_bytes=4096),
}
