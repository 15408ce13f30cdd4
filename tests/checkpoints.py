"""Jobs of one rank and of several, for the tests of checkpoints."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from iobench.base.errors import CheckpointError
from iobench.checkpoint import make_writer
from iobench.checkpoint.base import Job
from iobench.checkpoint.catalog import CheckpointRoot, CheckpointTarget
from iobench.checkpoint.manifest import MANIFEST, part_name
from iobench.testing.writers import blank, make_state, restore, same, save

__all__ = ["blank", "make_state", "restore", "same", "save"]

WRITERS = (
    *("torch", "torch-nocrc", "torch-async", "safetensors", "safetensors-async"),
    *("dcp", "dcp-async", "dcp-async-process", "stream", "stream-async"),
)

EACH_WRITER = [
    pytest.param(writer, marks=[pytest.mark.nightly] * (writer == "dcp-async-process"))
    for writer in WRITERS
]
"""The process of dcp-async-process takes seconds to start: most tests of it wait for the night."""


def plant(target: CheckpointTarget, name: str, content: bytes) -> None:
    """Another file in the place of one of the checkpoint's, with a manifest that agrees."""
    folder = target.path()
    assert folder is not None
    (folder / name).write_bytes(content)
    manifest = target.manifest()
    part = target.part(manifest, 0)
    sums = part.file_checksums
    if name in sums:
        sums = {**sums, name: xxhash.xxh3_64_hexdigest(content)}
    part = replace(part, files={**part.files, name: len(content)}, file_checksums=sums)
    (folder / part_name(0)).write_bytes(part.dump())
    listed = replace(
        manifest.parts[0],
        xxh3=xxhash.xxh3_64_hexdigest(part.dump()),
        files=part.files,
        file_checksums=sums,
    )
    (folder / MANIFEST).write_bytes(replace(manifest, parts=(listed,)).dump())


MAX_WAIT_S = 240
"""Far beyond what a rank takes on the slowest machine: torch alone may need a minute to start."""


class Ranks:
    """Two processes, which run functions of this module as ranks of one job."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = folder
        self._jobs = 0
        self._pipes, self._processes = [], []
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, name: str, *arguments: Any) -> list[Any]:
        """What ``name(job, *arguments)`` returned on each rank; fails with the first rank's
        traceback.
        """
        self._jobs += 1
        for pipe in self._pipes:
            pipe.send((name, f"file://{self._folder}/meet-{self._jobs}", arguments))
        answers = [
            pipe.recv() if pipe.poll(MAX_WAIT_S) else (False, "no answer in time")
            for pipe in self._pipes
        ]
        for good, answer in answers:
            assert good, answer
        return [answer for _, answer in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


@contextmanager
def two_ranks(folder: Path) -> Iterator[Ranks]:
    ranks = Ranks(folder)
    try:
        yield ranks
    finally:
        ranks.close()


def _serve(rank: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            name, rendezvous, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(
                (True, globals()[name](Job(rank=rank, world=2, rendezvous=rendezvous), *arguments))
            )
        except BaseException:
            pipe.send((False, traceback.format_exc()))


# What ranks run


def rank_saves(job: Job, writer: str, url: str, step: int) -> dict[str, int]:
    """The rank's files. Its part is published; the test commits."""
    made, target = make_writer(writer, job), CheckpointRoot.open(url).step(step)
    try:
        saved = made.save(make_state(job.rank), target).wait()
    finally:
        made.close()
    target.publish(saved, rank=job.rank)
    return saved.files


def rank_restores(job: Job, writer: str, url: str, step: int) -> bool:
    state = blank(make_state(job.rank))
    restore(writer, CheckpointRoot.open(url).step(step), state, job)
    return same(state, make_state(job.rank))


def rank_is_refused(job: Job, writer: str, url: str, step: int) -> str:
    """Why the rank may not restore this; nothing was read into its state."""
    state = blank(make_state(job.rank))
    try:
        restore(writer, CheckpointRoot.open(url).step(step), state, job)
    except CheckpointError as error:
        assert same(state, blank(state))
        return str(error)
    raise AssertionError("it was restored")


def whole() -> dict[str, torch.Tensor]:
    """What the ranks have together."""
    torch.manual_seed(5)
    return {
        "rows": torch.randn(1001, 64),
        "columns": torch.randn(96, 130).to(torch.bfloat16),
        "copies": torch.randn(77),
    }


def shares(tensors: Mapping[str, torch.Tensor], world: int) -> dict[str, Any]:
    """Each rank's shares: of rows, of columns, and a copy."""
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

    mesh = DeviceMesh("cpu", list(range(world)))
    placements = {"rows": Shard(0), "columns": Shard(1), "copies": Replicate()}
    return {
        "model": {
            name: distribute_tensor(tensor, mesh, [placements[name]])
            for name, tensor in tensors.items()
        },
        "step": 9,
    }


def rank_saves_shares(job: Job, writer: str, url: str, step: int) -> bool:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=job.rendezvous, rank=job.rank, world_size=job.world)
    try:
        made, target = make_writer(writer, job), CheckpointRoot.open(url).step(step)
        try:
            saved = made.save(shares(whole(), job.world), target).wait()
        finally:
            made.close()
        target.publish(saved, rank=job.rank)
        return saved.shared
    finally:
        dist.destroy_process_group()


def rank_restores_shares(job: Job, writer: str, url: str, step: int) -> str:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=job.rendezvous, rank=job.rank, world_size=job.world)
    try:
        state = shares(
            {name: torch.zeros_like(tensor) for name, tensor in whole().items()}, job.world
        )
        state["step"] = 0
        restored = restore(writer, CheckpointRoot.open(url).step(step), state, job)
        assert state["step"] == 9
        for name, tensor in whole().items():
            assert torch.equal(state["model"][name].full_tensor(), tensor), name
        return restored.verified
    finally:
        dist.destroy_process_group()
