"""torch.distributed.checkpoint (DCP): the ranks plan together who writes what.

A plain tensor belongs to one rank, and is saved under the rank's name. Tensors that the ranks share
(DTensors) can be restored by another number of ranks, or as whole plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from .saving import Clock, Finished, cannot_write, make_durable, own_part, read_errors

_SHARED = " shared"


class Dcp:
    """``threads`` files for each rank, each written by its own thread."""

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
        with write_errors(target):
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
        """The state's checksums, and whether ranks share a part of it; before the clock starts.

        Raises CheckpointError.
        """
        known = dict(checksums) if checksums is not None else state_checksums(state)
        target.prepare()
        if any(exists(target.storage, target.key(name)) for name in self.files()):
            raise CheckpointError(
                f"{target.url} holds a partial checkpoint",
                remedy="remove it first, or use another step number",
            )
        return known, any(checksum.endswith(_SHARED) for checksum in known.values())

    def files(self) -> list[str]:
        """The names of this rank's files; rank 0 also writes the metadata."""
        return [f"__{self.job.rank}_{number}.distcp" for number in range(self.threads)] + (
            [METADATA] if self.job.rank == 0 else []
        )

    def named(self, state: State) -> Leaves:
        return {self.dcp_name(name, leaf): leaf for name, leaf in leaves(state).items()}

    def dcp_name(self, name: str, leaf: object) -> str:
        return name if is_shared(leaf) else f"rank-{self.job.rank:04d}/{name}"

    def sync(self, target: CheckpointTarget) -> None:
        """fsync what the library wrote to local files. Sinks of other storages have done that."""
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

    def restore(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        verify: bool = True,
        begin: Callable[[], None] | None = None,
    ) -> Restored:
        manifest = target.manifest()
        part = (
            own_part(self.name, self.job, target)
            if manifest.world == self.job.world
            else self._part_of_other_ranks(state, target, manifest)
        )
        check_fits(state, part.checksums, target.url)
        wanted = {self._saved_name(name, leaf, part): leaf for name, leaf in leaves(state).items()}
        together = {name for name, checksum in part.checksums.items() if checksum.endswith(_SHARED)}
        files = manifest.files()
        target.check_sizes(files if together else {**part.files, METADATA: files.get(METADATA, 0)})
        group = self.group.open()
        before = Clock()
        with read_errors(f"{target.url}/{METADATA}"):
            limit = manifest.world * header_limit(list(part.checksums))
            inspected = inspect(target, files, set(wanted), limit=limit)
        looked = before.wall()
        if begin is not None:
            begin()
        clock = Clock()
        with read_errors(f"{target.url}/{METADATA}"):
            reader = SafeReader(target, inspected)
        try:
            load(wanted, storage_reader=reader, planner=SafePlanner(), process_group=group)
        except BaseException as error:
            with read_errors(f"{target.url}/{reader.current or METADATA}"):
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
        # A job of another size takes the values that rank 0 saved.
        return f"rank-{part.rank:04d}/{name}"

    def _part_of_other_ranks(
        self, state: State, target: CheckpointTarget, manifest: Manifest
    ) -> Part:
        """Rank 0's part of a checkpoint that another number of ranks saved.

        Raises CheckpointError if a tensor belongs to one rank alone.
        """
        if not manifest.writer.startswith("dcp"):
            return own_part(self.name, self.job, target)
        for rank in range(manifest.world):
            part = target.part(manifest, rank)
            for name, checksum in part.checksums.items():
                if "[" in checksum and not checksum.endswith(_SHARED):
                    raise CheckpointError(
                        f"{target.url} was saved by {manifest.world} ranks, not {self.job.world}, "
                        f"and '{name}' belongs to rank {rank} alone",
                        remedy=f"use --ranks {manifest.world}; only tensors that ranks share "
                        "(DTensors) can be restored by another number of ranks",
                    )
        return target.part(manifest, 0)

    def _verify_files(self, target: CheckpointTarget, manifest: Manifest) -> None:
        """Each rank verifies its part of the files; together the ranks verify all of them."""
        expected = {
            name: checksum
            for part in manifest.parts
            for name, checksum in part.file_checksums.items()
        }
        for number, (name, checksum) in enumerate(sorted(expected.items())):
            if number % self.job.world == self.job.rank and target.file_checksum(name) != checksum:
                raise corrupt(f"{target.url}/{name}", "it differs from what was saved (XXH3)")

    def close(self) -> None:
        self.group.close()


def _tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def tensor_bytes(state: State) -> int:
    """Bytes of this rank's tensors, and of its parts of shared ones."""
    local = (leaf.to_local() if is_shared(leaf) else leaf for leaf in leaves(state).values())
    return sum(leaf.nbytes for leaf in local if _tensor(leaf))


def _cause(error: BaseException) -> BaseException:
    """The exception of the first rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        return error.failures[min(error.failures)][0]
    return error


@contextmanager
def write_errors(target: CheckpointTarget) -> Iterator[None]:
    """Raise what the library raises while it writes as an error of one line."""
    try:
        yield
    except BaseException as error:
        raise_write_error(error, target)
        raise


def raise_write_error(error: BaseException, target: CheckpointTarget) -> None:
    """Raise StorageError or CheckpointError for an exception of the library.

    Returns if it is not an ``Exception``, such as KeyboardInterrupt.
    """
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
    line = (str(cause).splitlines() or [type(cause).__name__])[0][:200]
    raise StorageError(f"cannot write {target.url}: {line}") from error
