"""What says that a checkpoint is one: a part for each rank, and ``checkpoint.json``, which is written last."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..documents import parse_json
from ..errors import CorruptCheckpointError

MANIFEST = "checkpoint.json"
Text = bytes
VERSION = 1
_PART = ".part"  # what a storage calls a file that is not complete yet

NAME = re.compile(
    r"rank-\d{4,}\.(?:pt|safetensors|tensors|json)|checkpoint\.json|__\d+_\d+\.distcp|\.metadata"
)
"""The files that writers make in a checkpoint; no others are ever read."""

TEMPORARY = re.compile(r"\.metadata\.tmp|\.tmp[A-Za-z0-9]{6}")
"""What a library that is killed in a save leaves beside them.

torch.distributed.checkpoint writes ``.metadata.tmp`` and renames it. safetensors writes to a
NamedTempFile of the crate tempfile: ``.tmp`` and six letters or digits. torch.save has none.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One rank's share, in ``rank-NNNN.json``."""

    rank: int
    files: dict[str, int]  # name -> bytes
    checksums: dict[str, str]  # leaf of the state -> kind and XXH3
    file_checksums: dict[str, str] = field(
        default_factory=dict
    )  # name -> XXH3, of files that hold tensors shared among ranks

    def dump(self) -> Text:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A part as the manifest knows it."""

    rank: int
    xxh3: str  # of the part's own file
    files: dict[str, int]
    file_checksums: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The whole job's checkpoint, in ``checkpoint.json``."""

    step: int
    writer: str
    world: int
    created: str
    bytes: int
    parts: tuple[Listed, ...]  # by rank
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # what the one who saved wants to know again: model, scale, ...

    def dump(self) -> Text:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    def files(self) -> dict[str, int]:
        """Name -> bytes of all data files, each once."""
        return {name: size for part in self.parts for name, size in part.files.items()}


def is_ours(name: str) -> bool:
    """Whether a file in a checkpoint's folder was made by a writer, complete or not."""
    return (
        NAME.fullmatch(name.removesuffix(_PART)) is not None
        or TEMPORARY.fullmatch(name) is not None
    )


def part_name(rank: int) -> str:
    return f"rank-{rank:04d}.json"


def parse_part(text: bytes, where: str) -> Part:
    """Raises CorruptCheckpointError."""
    try:
        data = _document(text)
        return Part(
            rank=_whole(data["rank"]),
            files=_files(data["files"]),
            checksums=_texts(data["checksums"]),
            file_checksums=_texts(data["file_checksums"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(where, f"it can't be read ({_reason(error)})") from None


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Raises CorruptCheckpointError."""
    try:
        data = _document(text)
        parts = tuple(
            Listed(
                rank=_whole(part["rank"]),
                xxh3=str(part["xxh3"]),
                files=_files(part["files"]),
                file_checksums=_texts(part["file_checksums"]),
            )
            for part in data["parts"]
        )
        world = _whole(data["world"])
        if len(parts) != world or any(part.rank != rank for rank, part in enumerate(parts)):
            raise ValueError("its ranks are not complete")
        return Manifest(
            step=_whole(data["step"]),
            writer=str(data["writer"]),
            world=world,
            created=str(data["created"]),
            bytes=_whole(data["bytes"]),
            parts=parts,
            facts=dict(data["facts"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(where, f"it can't be read ({_reason(error)})") from None


def _document(text: bytes) -> dict[str, Any]:
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    if data.get("version") != VERSION:
        raise ValueError(f"version {str(data.get('version'))[:20]}, this iobench knows {VERSION}")
    return data


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a count is no whole number")
    return value


def _files(value: Mapping[str, Any]) -> dict[str, int]:
    files = {str(name): _whole(size) for name, size in _mapping(value).items()}
    foreign = next((name for name in files if not NAME.fullmatch(name)), None)
    if foreign is not None:
        raise ValueError(f"it names a file that no writer makes: {foreign[:40]!r}")
    return files


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a list of names is none")
    return value


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in _mapping(value).values()):
        raise ValueError("a checksum is no text")
    return {str(name): text for name, text in value.items()}


def _reason(error: Exception) -> str:
    return (
        f"no {error}"
        if isinstance(error, KeyError)
        else (str(error).splitlines() or ["not what it should be"])[0]
    )


def corrupt(where: str, why: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where} is corrupt: {why}", remedy="restore an older checkpoint, or a copy of this file"
    )
