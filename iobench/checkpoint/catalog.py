"""Where checkpoints lie: ``ROOT/step-00000100/rank-0000.*``, on any storage.

A checkpoint exists from the moment when its ``checkpoint.json`` does, which is written last, in one piece, and removed first. Whatever has
none is partial: a save that is going on, or one that was cut off.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..buffers import private
from ..documents import MAX_DOCUMENT_BYTES
from ..errors import CheckpointError, MissingObjectError, StorageError
from ..safety import Removal
from ..storage import open_storage
from ..storage.base import Storage
from ..storage.catalog import exists, local_root, read_object
from ..storage.local.sinks import make_folders
from ..storage.local.storage import LocalStorage
from ..storage.locks.lock import Lease
from . import place
from .base import Saved
from .manifest import (
    MANIFEST,
    Listed,
    Manifest,
    Part,
    corrupt,
    is_ours,
    parse_manifest,
    parse_part,
    part_name,
)
from .place import STEP

_BLOCK = 8 << 20


class CheckpointRoot:
    """The checkpoints of one job on one storage. Nothing is contacted before a method is called."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.path = local_root(storage)  # None where keys are not plain local files
        self.url = storage.url

    @classmethod
    def open(cls, url: str, options: Mapping[str, str] | None = None) -> CheckpointRoot:
        """A path or a storage URL, wrappers included. Raises UsageError."""
        return cls(open_storage(url, options=options))

    def claim(self) -> None:
        """Make this place the job's, or take it up again; creates it.

        Raises TargetRefusedError where it holds anything else. Two jobs may claim one place: a job
        that must be alone there takes it with ``held``.
        """
        place.claim(self.storage)

    def held(self, verb: str, *, break_lock: bool = False) -> AbstractContextManager[Lease]:
        """``claim``, and be the only job here. Raises TargetHeldError where another one is."""
        return place.held(self.storage, verb, break_lock=break_lock)

    def step(self, number: int) -> CheckpointTarget:
        """The place of one checkpoint, whether it is there or not."""
        return CheckpointTarget(self, number)

    def complete(self) -> list[CheckpointTarget]:
        """Oldest first."""
        return [self.step(number) for number, names in self._steps().items() if MANIFEST in names]

    def partial(self) -> list[CheckpointTarget]:
        """Those without a manifest: going on, or cut off. Oldest first."""
        return [
            self.step(number) for number, names in self._steps().items() if MANIFEST not in names
        ]

    def latest(self) -> CheckpointTarget | None:
        """The newest that is complete; a partial one is never it."""
        found = self.complete()
        return found[-1] if found else None

    def _steps(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for entry in self.storage.list():
            folder, _, name = entry.key.partition("/")
            step = STEP.fullmatch(folder)
            if step and is_ours(name):
                found.setdefault(int(step[1]), set()).add(name)
        return dict(sorted(found.items()))

    def remove(self, target: CheckpointTarget) -> Removal:
        """Take one checkpoint away, complete or partial: only files that writers make.

        Raises TargetRefusedError where the root is not iobench's, StorageError.
        """
        return place.remove_step(self.storage, target.folder)

    def last_number(self) -> int:
        """The highest number of a step that is there, complete or partial; 0 where none is."""
        return max(self._steps(), default=0)

    def keep(self, last: int, *, above: int = 0) -> list[int]:
        """Remove all complete checkpoints but the newest ``last``; the numbers of those that went.

        ``above``: look only at steps with higher numbers, which are one job's own.
        """
        complete = [target for target in self.complete() if target.number > above]
        going = complete[: max(0, len(complete) - last)]
        for target in going:
            self.remove(target)
        return [target.number for target in going]

    def leave(self, *, above: int) -> None:
        """Remove the steps above this number, and give the place up if it holds no others then.

        What an earlier job has left stays, and with it the marker that lets ``clean`` remove it.
        """
        for number in self._steps():
            if number > above:
                self.remove(self.step(number))
        if not self._steps():
            self.clean()

    def clean(self, *, dry_run: bool = False) -> Removal:
        """Remove every checkpoint, and the root itself if ``claim`` made it and it is empty then.

        The marker goes last, and only where nothing that a writer made is left: what a mount point
        hides can be removed later.
        """
        return place.clean(self.storage, dry_run=dry_run)


@dataclass(frozen=True)
class CheckpointTarget:
    """One checkpoint's place: what a writer writes into and restores from."""

    root: CheckpointRoot
    number: int  # of the training step

    @property
    def folder(self) -> str:
        return f"step-{self.number:08d}"

    @property
    def url(self) -> str:
        return f"{self.root.url}/{self.folder}"

    @property
    def storage(self) -> Storage:
        return self.root.storage

    def key(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def path(self, name: str = "") -> Path | None:
        """Where the file lies, if it is a plain local file."""
        return None if self.root.path is None else self.root.path / self.folder / name

    def library_path(self, name: str) -> Path | None:
        """``path``, for libraries that open files by themselves; None for one that is not UTF-8.

        torch and safetensors can't open such a path, and read through the storage then.
        """
        path = self.path(name)
        try:
            str(path).encode()
        except UnicodeEncodeError:
            return None
        return path

    def prepare(self) -> None:
        """Make the folder, and refuse one that holds a checkpoint already. Raises CheckpointError."""
        if exists(self.storage, self.key(MANIFEST)):
            raise CheckpointError(
                f"{self.url} holds a checkpoint already",
                remedy="save another step, or remove this one first",
            )
        folder = self.path()
        if folder is not None:
            try:
                make_folders(folder)
            except OSError as error:
                raise StorageError(
                    f"cannot create {folder}: {error.strerror}", remedy="choose another target"
                ) from error

    def direct(self, name: str) -> Storage:
        """The storage that reads this file past the page cache where that can be had."""
        storage = self.storage
        if type(storage) is LocalStorage and storage.supports_direct(self.key(name)):
            return LocalStorage(storage.root, direct=True)
        return storage

    # The manifest

    def publish(self, saved: Saved, *, rank: int) -> None:
        """Write this rank's part; its files are where ``saved`` says. Off the clock."""
        checksums = {name: self.file_checksum(name) for name in saved.files} if saved.shared else {}
        part = Part(
            rank=rank, files=saved.files, checksums=saved.checksums, file_checksums=checksums
        )
        self._write(part_name(rank), part.dump())

    def commit(
        self, *, writer: str, world: int, facts: Mapping[str, Any] | None = None
    ) -> Manifest:
        """Write the manifest, once all ranks have published. Raises CheckpointError that names a rank whose part or file is missing."""
        present = {entry.key: entry.size for entry in self.storage.list(self.folder)}
        listed = []
        for rank in range(world):
            name = part_name(rank)
            if self.key(name) not in present:
                raise CheckpointError(
                    f"{self.url} stays partial: rank {rank} of {world} did not finish its save"
                )
            text = read_object(self.storage, self.key(name))
            part = parse_part(text, f"{self.url}/{name}")
            for file, size in part.files.items():
                if present.get(self.key(file)) != size:
                    found = present.get(self.key(file), "no")
                    raise CheckpointError(
                        f"{self.url} stays partial: rank {rank} wrote {size} bytes of {file}, the storage has {found}"
                    )
            listed.append(
                Listed(
                    rank=rank,
                    xxh3=xxhash.xxh3_64_hexdigest(text),
                    files=part.files,
                    file_checksums=part.file_checksums,
                )
            )
        total = sum({name: size for part in listed for name, size in part.files.items()}.values())
        manifest = Manifest(
            step=self.number,
            writer=writer,
            world=world,
            created=_now(),
            bytes=total,
            parts=tuple(listed),
            facts=dict(facts or {}),
        )
        self._write(MANIFEST, manifest.dump())
        return manifest

    def _write(self, name: str, text: bytes) -> None:
        with self.storage.create(self.key(name), size_hint=len(text)) as sink:
            sink.write(text)

    def manifest(self) -> Manifest:
        """Raises CheckpointError where there is none, CorruptCheckpointError."""
        try:
            text = read_object(self.storage, self.key(MANIFEST), max_bytes=MAX_DOCUMENT_BYTES)
        except MissingObjectError:
            raise CheckpointError(
                f"no complete checkpoint at {self.url} (no {MANIFEST})",
                remedy="restore the latest one",
            ) from None
        return parse_manifest(text, f"{self.url}/{MANIFEST}")

    def part(self, manifest: Manifest, rank: int) -> Part:
        """One rank's part, which is the one that was committed. Raises CorruptCheckpointError."""
        where = f"{self.url}/{part_name(rank)}"
        try:
            text = read_object(
                self.storage, self.key(part_name(rank)), max_bytes=MAX_DOCUMENT_BYTES
            )
        except MissingObjectError:
            raise corrupt(where, "it is missing") from None
        if xxhash.xxh3_64_hexdigest(text) != manifest.parts[rank].xxh3:
            raise corrupt(where, "it is not what was committed (XXH3 differs)")
        return parse_part(text, where)

    def check_sizes(self, files: Mapping[str, int]) -> None:
        """Raises CorruptCheckpointError that names the first file that is missing or has another size."""
        for name, size in files.items():
            try:
                found = self.storage.size(self.key(name))
            except MissingObjectError:
                raise corrupt(f"{self.url}/{name}", "it is missing") from None
            if found != size:
                raise corrupt(f"{self.url}/{name}", f"it has {found} bytes, {size} were saved")

    def file_checksum(self, name: str) -> str:
        """XXH3 of a whole file, read past the page cache where possible."""
        storage, key = self.direct(name), self.key(name)
        size, digest = storage.size(key), xxhash.xxh3_64()
        block = private(_BLOCK, prefault=False).array.data
        for start in range(0, size, _BLOCK):
            count = min(storage.read_into(key, start, block), size - start)
            digest.update(block[:count])
        if storage is not self.storage:
            storage.close()
        return digest.hexdigest()

    def data_keys(self, rank: int | None = None) -> list[str]:
        """Keys of the data files, of one rank or of all: for eviction, and to prove that a restore was cold."""
        manifest = self.manifest()
        names = manifest.files() if rank is None else manifest.parts[rank].files
        return [self.key(name) for name in names]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
