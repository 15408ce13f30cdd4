"""The files that make a checkpoint complete.

A part for each rank, and ``checkpoint.json``, which is written last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from ..base.documents import parse_json
from ..base.errors import CorruptCheckpointError

MANIFEST = "checkpoint.json"
Text = bytes  # ``CheckpointManifest`` has a field named ``bytes``, which hides the type
VERSION = 1
METADATA = ".metadata"
"""Of torch.distributed.checkpoint. It is a pickle, which is read only if its checksum is right."""

_PART = ".part"  # the suffix of a storage's incomplete files

NAME = re.compile(
    r"rank-\d{4,}\.(?:pt|safetensors|tensors|json)|checkpoint\.json|__\d+_\d+\.distcp|\.metadata"
)
"""The names of files that writers make in a checkpoint. No other files are ever read."""

TEMPORARY = re.compile(r"\.metadata\.tmp|\.tmp[A-Za-z0-9]{6}")
"""Temporary files of libraries that were killed during a save.

torch.distributed.checkpoint writes ``.metadata.tmp`` and renames it. safetensors writes to a
NamedTempFile of the crate tempfile: ``.tmp`` and six letters or digits. torch.save has none.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPart:
    """One rank's part of the manifest, in ``rank-NNNN.json``."""

    rank: int
    files: dict[str, int]  # name -> bytes
    checksums: dict[str, str]  # leaf of the state -> kind and XXH3
    file_checksums: dict[str, str] = field(default_factory=dict)
    """Name -> XXH3, of files with tensors that ranks share, and of METADATA."""

    def dump(self) -> Text:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPart:
    """A part as the manifest lists it."""

    rank: int
    xxh3: str  # of the part's own file
    files: dict[str, int]
    file_checksums: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseCheckpoint:
    """The checkpoint of a whole state, which a later one completes: its step and its manifest."""

    step: int
    xxh3: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointManifest:
    """The whole job's checkpoint, in ``checkpoint.json``."""

    step: int
    writer: str
    world: int
    created: str
    bytes: int
    parts: tuple[ListedPart, ...]  # by rank
    facts: dict[str, Any] = field(default_factory=dict)
    """Additional data of the caller: model, scale, ..."""
    base: BaseCheckpoint | None = None
    """Of a checkpoint with only what changed since then. None: it has the whole state."""

    def dump(self) -> Text:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    def as_base(self) -> BaseCheckpoint:
        return BaseCheckpoint(step=self.step, xxh3=xxhash.xxh3_64_hexdigest(self.dump()))

    def files(self) -> dict[str, int]:
        """Name -> bytes of all data files."""
        return {name: size for part in self.parts for name, size in part.files.items()}


def is_ours(name: str) -> bool:
    """Whether a writer made this file of a checkpoint's folder, complete or not."""
    return (
        NAME.fullmatch(name.removesuffix(_PART)) is not None
        or TEMPORARY.fullmatch(name) is not None
    )


def part_name(rank: int) -> str:
    return f"rank-{rank:04d}.json"


def parse_part(text: bytes, where: str) -> RankPart:
    """One rank's part. Raises CorruptCheckpointError that names ``where``."""
    try:
        data = _document(text)
        return RankPart(
            rank=_whole(data["rank"]),
            files=_files(data["files"]),
            checksums=_texts(data["checksums"]),
            file_checksums=_texts(data["file_checksums"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(where, f"it can't be read ({_reason(error)})") from None


def parse_manifest(text: bytes, where: str) -> CheckpointManifest:
    """The manifest. Raises CorruptCheckpointError that names ``where``."""
    try:
        data = _document(text)
        parts = tuple(
            ListedPart(
                rank=_whole(part["rank"]),
                xxh3=str(part["xxh3"]),
                files=_files(part["files"]),
                file_checksums=_texts(part["file_checksums"]),
            )
            for part in data["parts"]
        )
        world = _whole(data["world"])
        if len(parts) != world or any(part.rank != rank for rank, part in enumerate(parts)):
            raise ValueError("its list of ranks is not complete")
        step = _whole(data["step"])
        return CheckpointManifest(
            step=step,
            writer=str(data["writer"]),
            world=world,
            created=str(data["created"]),
            bytes=_whole(data["bytes"]),
            parts=parts,
            facts=dict(data["facts"]),
            base=_base(data.get("base"), step),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(where, f"it can't be read ({_reason(error)})") from None


def _document(text: bytes) -> dict[str, Any]:
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError("it must be a JSON object")
    if data.get("version") != VERSION:
        raise ValueError(
            f"its version is {str(data.get('version'))[:20]}, this iobench reads version {VERSION}"
        )
    return data


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a count is not a whole number")
    return value


def _base(value: Any, step: int) -> BaseCheckpoint | None:
    if value is None:
        return None
    base = BaseCheckpoint(step=_whole(value["step"]), xxh3=str(value["xxh3"]))
    if base.step >= step:
        raise ValueError("its base is not an earlier step")
    return base


def _files(value: Mapping[str, Any]) -> dict[str, int]:
    files = {str(name): _whole(size) for name, size in _mapping(value).items()}
    foreign = next((name for name in files if not NAME.fullmatch(name)), None)
    if foreign is not None:
        raise ValueError(f"it names a file that no writer makes: {foreign[:40]!r}")
    return files


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"a list of names must be a JSON object, got {type(value).__name__}")
    return value


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in _mapping(value).values()):
        raise ValueError("a checksum is not text")
    return {str(name): text for name, text in value.items()}


def _reason(error: Exception) -> str:
    return (
        f"it has no {error}"
        if isinstance(error, KeyError)
        else (str(error).splitlines() or ["it has an unexpected structure"])[0]
    )


def corrupt(where: str, why: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where} is corrupt: {why}", remedy="restore an older checkpoint, or a copy of this file"
    )
