"""Where checkpoints lie: ``ROOT/step-00000100/rank-0000.*``, on any storage.

A checkpoint exists while its ``checkpoint.json`` does, which is written last, as a whole, and
removed first. Without it a checkpoint is partial: a save is running, or was interrupted. One that
has only what changed names its base there, the checkpoint of a whole state, which stays as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..base.buffers import private
from ..base.documents import MAX_DOCUMENT_BYTES
from ..base.errors import CheckpointError, CorruptCheckpointError, MissingObjectError, StorageError
from ..base.safety import Removal
from ..base.units import utc_now
from ..storage import open_storage
from ..storage.base import Storage, exists, local_root, read_object
from ..storage.local.sinks import make_folders
from ..storage.local.storage import LocalStorage
from ..storage.locks.lock import Lease
from . import place
from .base import Saved
from .manifest import (
    MANIFEST,
    METADATA,
    BaseCheckpoint,
    CheckpointManifest,
    ListedPart,
    RankPart,
    corrupt,
    is_ours,
    parse_manifest,
    parse_part,
    part_name,
)
from .place import CHECKPOINTS, STEP

_BLOCK = 8 << 20


class CheckpointRoot:
    """The checkpoints of one job on one storage. Nothing is contacted before a method is called."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.path = local_root(storage)  # None if keys are not local files
        self.url = storage.url

    @classmethod
    def open(cls, url: str, options: Mapping[str, str] | None = None) -> CheckpointRoot:
        """A path or a storage URL, wrappers included. Raises UsageError."""
        return cls(open_storage(url, options=options))

    def claim(self) -> None:
        """Make this directory the job's, and create it if it is missing. May be repeated.

        Raises TargetRefusedError if it holds anything else. Two jobs may claim one place; a job
        that must be alone uses ``held``.
        """
        CHECKPOINTS.claim(self.storage)

    def held(self, verb: str, *, break_lock: bool = False) -> AbstractContextManager[Lease]:
        """``claim``, and exclude other jobs. Raises TargetHeldError if another job holds it."""
        return CHECKPOINTS.held(self.storage, verb, break_lock=break_lock)

    def step(self, number: int) -> CheckpointTarget:
        """The place of one checkpoint, which may not exist yet."""
        return CheckpointTarget(self, number)

    def complete(self) -> list[CheckpointTarget]:
        """All complete checkpoints, oldest first."""
        return [self.step(number) for number, names in self._steps().items() if MANIFEST in names]

    def partial(self) -> list[CheckpointTarget]:
        """Checkpoints without a manifest: running saves, and interrupted ones. Oldest first."""
        return [
            self.step(number) for number, names in self._steps().items() if MANIFEST not in names
        ]

    def latest(self) -> CheckpointTarget | None:
        """The newest complete checkpoint."""
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
        """Remove one checkpoint, complete or partial; only files that writers make.

        Raises TargetRefusedError if the root is not iobench's; StorageError.
        """
        return place.remove_step(self.storage, target.folder)

    def last_number(self) -> int:
        """The highest step number, of a complete or partial checkpoint; 0 if there is none."""
        return max(self._steps(), default=0)

    def keep(self, last: int, *, above: int = 0) -> list[int]:
        """Remove all complete checkpoints except the newest ``last``; the removed step numbers.

        Those on which one of these is based stay, too. ``above``: only steps with higher numbers
        count, which belong to one job. Raises CorruptCheckpointError.
        """
        complete = [target for target in self.complete() if target.number > above]
        old = complete[: max(0, len(complete) - last)]
        kept = [target.manifest().base for target in complete[len(old) :]] if old else []
        bases = {base.step for base in kept if base is not None}
        removed = [target for target in old if target.number not in bases]
        for target in reversed(removed):  # never a base before what needs it
            self.remove(target)
        return [target.number for target in removed]

    def leave(self, *, above: int) -> None:
        """Remove the steps above this number, and the root if no steps are left.

        Checkpoints of earlier jobs stay, and so does the marker that lets ``clean`` remove them.
        """
        for number in reversed(self._steps()):  # never a base before what needs it
            if number > above:
                self.remove(self.step(number))
        if not self._steps():
            self.clean()

    def clean(self, *, dry_run: bool = False) -> Removal:
        """Remove every checkpoint, and the root itself if ``claim`` made it and it is empty.

        The marker is removed last, and only if no file of a writer is left: files that a mount
        point hides at the moment can then be removed later.
        """
        return place.clean(self.storage, dry_run=dry_run)


@dataclass(frozen=True)
class CheckpointTarget:
    """The place of one checkpoint, for writers."""

    root: CheckpointRoot
    number: int  # the training step

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
        """The file's path, if it is a local file."""
        return None if self.root.path is None else self.root.path / self.folder / name

    def library_path(self, name: str) -> Path | None:
        """``path``, for libraries that open files themselves; None if it is not valid UTF-8.

        torch and safetensors can't open such a path; then they read through the storage.
        """
        path = self.path(name)
        try:
            str(path).encode()
        except UnicodeEncodeError:
            return None
        return path

    def prepare(self) -> None:
        """Create the folder. Raises CheckpointError if it holds a checkpoint; StorageError."""
        if exists(self.storage, self.key(MANIFEST)):
            raise CheckpointError(
                f"{self.url} already holds a checkpoint",
                remedy="use another step number, or remove this checkpoint first",
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
        """A storage that reads this file with O_DIRECT, if it supports that."""
        storage = self.storage
        if type(storage) is LocalStorage and storage.supports_direct(self.key(name)):
            return LocalStorage(storage.root, direct=True)
        return storage

    # The manifest

    def publish(self, saved: Saved, *, rank: int) -> None:
        """Write this rank's part of the manifest; not timed."""
        names = [name for name in saved.files if saved.shared or name == METADATA]
        checksums = {name: self.file_checksum(name) for name in names}
        part = RankPart(
            rank=rank, files=saved.files, checksums=saved.checksums, file_checksums=checksums
        )
        self._write(part_name(rank), part.dump())

    def commit(
        self,
        *,
        writer: str,
        world: int,
        facts: Mapping[str, Any] | None = None,
        base: BaseCheckpoint | None = None,
    ) -> CheckpointManifest:
        """Write the manifest, after all ranks have published.

        ``base``: where the ranks have saved only what changed since that checkpoint. Raises
        CheckpointError that names a rank whose part or file is missing; StorageError.
        """
        present = {entry.key: entry.size for entry in self.storage.list(self.folder)}
        listed = []
        for rank in range(world):
            name = part_name(rank)
            if self.key(name) not in present:
                raise CheckpointError(
                    f"{self.url} is not complete: rank {rank} of {world} did not finish its save"
                )
            text = read_object(self.storage, self.key(name))
            part = parse_part(text, f"{self.url}/{name}")
            for file, size in part.files.items():
                if present.get(self.key(file)) != size:
                    found = present.get(self.key(file), "no")
                    raise CheckpointError(
                        f"{self.url} is not complete: rank {rank} wrote {size} bytes of {file}, "
                        f"but the storage has {found} bytes"
                    )
            listed.append(
                ListedPart(
                    rank=rank,
                    xxh3=xxhash.xxh3_64_hexdigest(text),
                    files=part.files,
                    file_checksums=part.file_checksums,
                )
            )
        total = sum({name: size for part in listed for name, size in part.files.items()}.values())
        manifest = CheckpointManifest(
            step=self.number,
            writer=writer,
            world=world,
            created=utc_now(),
            bytes=total,
            parts=tuple(listed),
            facts=dict(facts or {}),
            base=base,
        )
        self._write(MANIFEST, manifest.dump())
        return manifest

    def _write(self, name: str, text: bytes) -> None:
        with self.storage.create(self.key(name), size_hint=len(text)) as sink:
            sink.write(text)

    def manifest(self) -> CheckpointManifest:
        """The manifest. Raises CheckpointError if there is none; CorruptCheckpointError."""
        try:
            text = read_object(self.storage, self.key(MANIFEST), max_bytes=MAX_DOCUMENT_BYTES)
        except MissingObjectError:
            raise CheckpointError(
                f"no complete checkpoint at {self.url} (no {MANIFEST})",
                remedy="restore the latest one",
            ) from None
        return parse_manifest(text, f"{self.url}/{MANIFEST}")

    def sources(self) -> list[CheckpointTarget]:
        """The checkpoints that a restore reads, in this order: the base, if there is one, and this.

        Raises CheckpointError if there is none here; CorruptCheckpointError, also for a base that
        is missing, or that another checkpoint has replaced.
        """
        base = self.manifest().base
        if base is None:
            return [self]
        first = self.root.step(base.step)
        there = exists(self.storage, first.key(MANIFEST))
        if not there or first.manifest().as_base() != base:
            found = "where another checkpoint is now" if there else "which is missing"
            raise CorruptCheckpointError(
                f"{self.url} can't be restored: it has only what changed since {first.folder}, "
                f"{found}",
                remedy=f"bring {first.folder} back, or restore another checkpoint",
            )
        return [first, self]

    def part(self, manifest: CheckpointManifest, rank: int) -> RankPart:
        """One rank's committed part. Raises CorruptCheckpointError."""
        where = f"{self.url}/{part_name(rank)}"
        try:
            text = read_object(
                self.storage, self.key(part_name(rank)), max_bytes=MAX_DOCUMENT_BYTES
            )
        except MissingObjectError:
            raise corrupt(where, "it is missing") from None
        if xxhash.xxh3_64_hexdigest(text) != manifest.parts[rank].xxh3:
            raise corrupt(where, "it differs from what was committed (XXH3)")
        return parse_part(text, where)

    def check_sizes(self, files: Mapping[str, int]) -> None:
        """Raises CorruptCheckpointError for the first file that is missing or has another size."""
        for name, size in files.items():
            try:
                found = self.storage.size(self.key(name))
            except MissingObjectError:
                raise corrupt(f"{self.url}/{name}", "it is missing") from None
            if found != size:
                raise corrupt(f"{self.url}/{name}", f"it has {found} bytes, but {size} were saved")

    def file_checksum(self, name: str) -> str:
        """XXH3 of a whole file, read with O_DIRECT if possible."""
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
        """Keys of the data files, of one rank or of all.

        To evict them, and to show that a restore was cold.
        """
        manifest = self.manifest()
        names = manifest.files() if rank is None else manifest.parts[rank].files
        return [self.key(name) for name in names]
