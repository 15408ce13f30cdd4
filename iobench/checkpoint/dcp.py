"""torch.distributed.checkpoint (DCP): the ranks plan together who writes what, and any number of ranks can read it.

A plain tensor is its rank's own, and saved under the rank's name. Only what the ranks have together, DTensors, can be resharded: restored
by another number of ranks, or as plain whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import CheckpointError, IobenchError, StorageError
from ..limits import header_limit
from ..storage.catalog import exists
from .base import Job, Pending, Restored, Saved, State
from .catalog import CheckpointTarget
from .dcp_files import METADATA, SafePlanner, SafeReader, inspect, writer_for
from .group import Group
from .leaves import Leaves, check_fits, is_shared, leaves, set_values, state_checksums
from .leaves import verify as verify_state
from .manifest import Manifest, Part, corrupt
from .saving import Clock, Finished, cannot_write, make_durable, own_part, reading

_SHARED = " shared"


class Dcp:
    """``threads`` files for each rank, each written by a thread of its own."""

    name = "dcp"
    asynchronous = False

    def __init__(self, job: Job, *, threads: int | str = 1) -> None:
        self.job = job
        self.threads = int(threads)
        self.group = Group(job)

    def save(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        fsync: bool = True,
        checksums: Mapping[str, str] | None = None,
    ) -> Pending:
        known, shared = self.prepare(state, target, checksums)
        group = self.group.open()
        clock = Clock()
        with writing(target):
            save(
                self.named(state),
                storage_writer=writer_for(
                    target, fsync=fsync, threads=self.threads, nbytes=tensor_bytes(state)
                ),
                process_group=group,
            )
            accepted = clock.wall()
            if fsync:
                self.sync(target)
        wall, cpu = clock.wall(), clock.cpu()
        return Finished(
            self.saved(
                target,
                clock.started_s,
                wall,
                accepted,
                wall if fsync else None,
                known,
                shared=shared,
                cpu_s=cpu,
            )
        )

    def prepare(
        self, state: State, target: CheckpointTarget, checksums: Mapping[str, str] | None
    ) -> tuple[dict[str, str], bool]:
        """Before the clock starts: the state's checksums, and whether anything in it is shared. Raises CheckpointError."""
        known = dict(checksums) if checksums is not None else state_checksums(state)
        target.prepare()
        if any(exists(target.storage, target.key(name)) for name in self.files()):
            raise CheckpointError(
                f"{target.url} holds a partial checkpoint",
                remedy="remove it first, or save another step",
            )
        return known, any(checksum.endswith(_SHARED) for checksum in known.values())

    def files(self) -> list[str]:
        """What this rank writes; the metadata comes from rank 0."""
        return [f"__{self.job.rank}_{number}.distcp" for number in range(self.threads)] + (
            [METADATA] if self.job.rank == 0 else []
        )

    def named(self, state: State) -> Leaves:
        return {self.dcp_name(name, leaf): leaf for name, leaf in leaves(state).items()}

    def dcp_name(self, name: str, leaf: object) -> str:
        return name if is_shared(leaf) else f"rank-{self.job.rank:04d}/{name}"

    def sync(self, target: CheckpointTarget) -> None:
        """What the library wrote to local files becomes safe; elsewhere the storage's sinks have done that."""
        if target.path() is not None:
            paths = [target.path(name) for name in self.files()]
            make_durable([path for path in paths if path is not None and path.exists()])

    def saved(
        self,
        target: CheckpointTarget,
        started_s: float,
        blocked_s: float,
        accepted_s: float,
        durable_s: float | None,
        checksums: dict[str, str],
        *,
        shared: bool,
        cpu_s: float | None = None,
        staged_s: float | None = None,
        backpressure_s: float = 0.0,
    ) -> Saved:
        keys = {name: target.key(name) for name in self.files()}
        files = {
            name: target.storage.size(key)
            for name, key in keys.items()
            if exists(target.storage, key)
        }
        return Saved(
            started_s=started_s,
            blocked_s=blocked_s,
            backpressure_s=backpressure_s,
            staged_s=staged_s,
            accepted_s=accepted_s,
            durable_s=durable_s,
            bytes=sum(files.values()),
            files=files,
            cpu_s=cpu_s,
            checksums=checksums,
            shared=shared,
        )

    def restore(self, state: State, target: CheckpointTarget, *, verify: bool = True) -> Restored:
        manifest = target.manifest()
        part = (
            own_part(self.name, self.job, target)
            if manifest.world == self.job.world
            else self._others(state, target, manifest)
        )
        check_fits(state, part.checksums, target.url)
        wanted = {self._saved_name(name, leaf, part): leaf for name, leaf in leaves(state).items()}
        together = {name for name, checksum in part.checksums.items() if checksum.endswith(_SHARED)}
        files = manifest.files()
        target.check_sizes(files if together else {**part.files, METADATA: files.get(METADATA, 0)})
        group = self.group.open()
        before = Clock()
        with reading(f"{target.url}/{METADATA}"):
            limit = manifest.world * header_limit(list(part.checksums))
            inspected = inspect(target, files, set(wanted), limit=limit)
        looked, clock = before.wall(), Clock()
        with reading(f"{target.url}/{METADATA}"):
            reader = SafeReader(target, inspected)
        try:
            load(wanted, storage_reader=reader, planner=SafePlanner(), process_group=group)
        except BaseException as error:
            with reading(f"{target.url}/{reader.current or METADATA}"):
                raise _cause(error) from error
        set_values(
            state,
            {
                name: wanted[self._saved_name(name, leaf, part)]
                for name, leaf in leaves(state).items()
                if not _tensor(leaf)
            },
        )
        wall, cpu = clock.wall(), clock.cpu()
        if verify:
            own = {name: part.checksums[name] for name in part.checksums if name not in together}
            verify_state(
                state, own, lambda name: f"{target.url}/{reader.file_of(self._private(name))}"
            )
            if together:
                self._verify_files(target, manifest)
        return Restored(
            started_s=clock.started_s,
            wall_s=wall,
            bytes=tensor_bytes(wanted),
            cpu_s=cpu,
            verify_s=clock.wall() - wall,
            verified=("files" if together else "tensors") if verify else "",
            inspected_s=looked,
        )

    def _private(self, name: str) -> str:
        return f"rank-{self.job.rank:04d}/{name}"

    def _saved_name(self, name: str, leaf: object, part: Part) -> str:
        if part.checksums[name].endswith(_SHARED):
            return name
        # The values of a job of another size are rank 0's.
        return f"rank-{part.rank:04d}/{name}"

    def _others(self, state: State, target: CheckpointTarget, manifest: Manifest) -> Part:
        """Rank 0's part, of a checkpoint that another number of ranks saved. Raises CheckpointError where a tensor is one rank's own."""
        if not manifest.writer.startswith("dcp"):
            return own_part(self.name, self.job, target)
        for rank in range(manifest.world):
            part = target.part(manifest, rank)
            for name, checksum in part.checksums.items():
                if "[" in checksum and not checksum.endswith(_SHARED):
                    raise CheckpointError(
                        f"{target.url} was saved by {manifest.world} ranks, not {self.job.world}, and '{name}' is rank {rank}'s own tensor",
                        remedy=f"use --ranks {manifest.world}; only what ranks share (DTensors) can be resharded",
                    )
        return target.part(manifest, 0)

    def _verify_files(self, target: CheckpointTarget, manifest: Manifest) -> None:
        """Each rank verifies its share of the files; the job's restore is verified when all ranks have returned."""
        expected = {
            name: checksum
            for part in manifest.parts
            for name, checksum in part.file_checksums.items()
        }
        for number, (name, checksum) in enumerate(sorted(expected.items())):
            if number % self.job.world == self.job.rank and target.file_checksum(name) != checksum:
                raise corrupt(f"{target.url}/{name}", "it is not what was saved (XXH3 differs)")

    def close(self) -> None:
        self.group.close()


def _tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def tensor_bytes(state: State) -> int:
    """Of this rank's tensors, and of its shares."""
    local = (leaf.to_local() if is_shared(leaf) else leaf for leaf in leaves(state).values())
    return sum(leaf.nbytes for leaf in local if _tensor(leaf))


def _cause(error: BaseException) -> BaseException:
    """What went wrong on the first rank where something did."""
    if isinstance(error, CheckpointException) and error.failures:
        return error.failures[min(error.failures)][0]
    return error


@contextmanager
def writing(target: CheckpointTarget) -> Iterator[None]:
    """What the library raises while it writes, in one line."""
    try:
        yield
    except BaseException as error:
        raise_in_one_line(error, target)
        raise


def raise_in_one_line(error: BaseException, target: CheckpointTarget) -> None:
    """Raises StorageError or CheckpointError for what the library raised; lets interruptions pass."""
    cause = _cause(error)
    if isinstance(cause, IobenchError):
        raise cause from None
    if not isinstance(cause, Exception):
        return
    folder = target.path()
    if isinstance(cause, OSError | RuntimeError) and folder is not None:
        raise cannot_write(
            Path(str(getattr(cause, "filename", None) or folder / METADATA)), cause
        ) from error
    raise StorageError(
        f"cannot write {target.url}: {(str(cause).splitlines() or [type(cause).__name__])[0][:200]}"
    ) from error
