"""torch.distributed.checkpoint (DCP): the ranks plan together who writes what.

A plain tensor belongs to one rank, and is saved under the rank's name. Tensors that the ranks share
(DTensors) can be restored by another number of ranks, or as whole plain tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import CheckpointError, IobenchError, StorageError, UsageError
from ..limits import header_limit
from ..storage.catalog import exists
from .base import Job, Pending, Restored, State
from .catalog import CheckpointTarget
from .dcp_files import METADATA, SafePlanner, SafeReader, inspect, writer_for
from .leaves import SHARED, Leaves, check_fits, is_shared, leaves, set_values
from .leaves import verify as verify_state
from .manifest import CheckpointManifest, RankPart, corrupt
from .saving import Finished, SaveClock, Writer, cannot_write, make_durable, own_part, read_errors


class RankGroup:
    """A gloo group of all ranks.

    It is a new group if the training has initialized torch.distributed; otherwise it is the
    process's default group while this object is open.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._owned = False
        self._group: Any = None
        self._address = False

    def open(self) -> Any:
        """The group, the same at each call. All ranks must call it. Raises UsageError."""
        if self._group is not None:
            return self._group
        job = self._job
        if not dist.is_initialized():
            if job.world > 1 and not job.rendezvous:
                raise UsageError(
                    f"the {job.world} ranks of a dcp checkpoint have no rendezvous",
                    remedy="give the job a rendezvous: tcp://host:port",
                )
            if job.world == 1:
                store = dist.HashStore()  # type: ignore[attr-defined]
                dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            else:
                dist.init_process_group(
                    "gloo", init_method=job.rendezvous, rank=job.rank, world_size=job.world
                )
            self._owned = True
        self._group = dist.group.WORLD if self._owned else dist.new_group(backend="gloo")
        one_host = job.world == 1 or job.rendezvous.startswith(
            ("file://", "tcp://127.0.0.1", "tcp://localhost")
        )
        if one_host and "MASTER_ADDR" not in os.environ:
            # dcp-async-process's processes of all ranks meet here. The host's own name may have no
            # address.
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            self._address = True
        return self._group

    def close(self) -> None:
        if self._owned and dist.is_initialized():
            dist.destroy_process_group()
        elif self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        if self._address:
            os.environ.pop("MASTER_ADDR", None)
        self._group, self._owned, self._address = None, False, False


class Dcp(Writer):
    """``threads`` files for each rank, each written by its own thread."""

    name = "dcp"

    def __init__(self, job: Job, *, threads: int | str = 1) -> None:
        super().__init__(job)
        self.threads = int(threads)
        self.group = RankGroup(job)

    def begin(
        self, state: State, target: CheckpointTarget, checksums: dict[str, str], *, fsync: bool
    ) -> Pending:
        group = self.ready(target)
        clock = SaveClock()
        with write_errors(target):
            save(
                self.named(state),
                storage_writer=self.storage_writer(state, target, fsync=fsync),
                process_group=group,
            )
            accepted = clock.wall()
            if fsync:
                self.sync(target)
        return Finished(self.ended(target, clock, checksums, accepted_s=accepted, fsync=fsync))

    def ready(self, target: CheckpointTarget) -> Any:
        """The group of the ranks. Raises CheckpointError where a save has left its files."""
        if any(exists(target.storage, target.key(name)) for name in self.files()):
            raise CheckpointError(
                f"{target.url} holds a partial checkpoint",
                remedy="remove it first, or use another step number",
            )
        return self.group.open()

    def storage_writer(self, state: State, target: CheckpointTarget, *, fsync: bool) -> Any:
        return writer_for(target, fsync=fsync, threads=self.threads, nbytes=tensor_bytes(state))

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
        together = {name for name, checksum in part.checksums.items() if checksum.endswith(SHARED)}
        files = manifest.files()
        target.check_sizes(files if together else {**part.files, METADATA: files.get(METADATA, 0)})
        group = self.group.open()
        before = SaveClock()
        with read_errors(f"{target.url}/{METADATA}"):
            limit = manifest.world * header_limit(list(part.checksums))
            inspected = inspect(target, files, set(wanted), limit=limit)
        looked = before.wall()
        if begin is not None:
            begin()
        clock = SaveClock()
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

    def _saved_name(self, name: str, leaf: object, part: RankPart) -> str:
        if part.checksums[name].endswith(SHARED):
            return name
        # A job of another size takes the values that rank 0 saved.
        return f"rank-{part.rank:04d}/{name}"

    def _part_of_other_ranks(
        self, state: State, target: CheckpointTarget, manifest: CheckpointManifest
    ) -> RankPart:
        """Rank 0's part of a checkpoint that another number of ranks saved.

        Raises CheckpointError if a tensor belongs to one rank alone.
        """
        if not manifest.writer.startswith("dcp"):
            return own_part(self.name, self.job, target)
        for rank in range(manifest.world):
            part = target.part(manifest, rank)
            for name, checksum in part.checksums.items():
                if "[" in checksum and not checksum.endswith(SHARED):
                    raise CheckpointError(
                        f"{target.url} was saved by {manifest.world} ranks, not {self.job.world}, "
                        f"and '{name}' belongs to rank {rank} alone",
                        remedy=f"use --ranks {manifest.world}; only tensors that ranks share "
                        "(DTensors) can be restored by another number of ranks",
                    )
        return target.part(manifest, 0)

    def _verify_files(self, target: CheckpointTarget, manifest: CheckpointManifest) -> None:
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
