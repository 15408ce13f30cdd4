"""Checkpoint writers against fio and against the bare library calls, interleaved A B A B in one
run.

``python -m tools.bench.checkpoint_vs_fio [--case NAME] [--size MiB] [--repeat N] [--dir
PATH]``. ``stream`` and fio write and read the same bytes with the same block size, direct flag and
concurrency, durably. A library writer and its bare call (and fsync) write the same state.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from iobench.base.buffers import private
from iobench.checkpoint import make_writer
from iobench.checkpoint.catalog import CheckpointRoot, CheckpointTarget
from iobench.checkpoint.container import lay_out
from iobench.checkpoint.leaves import state_checksums
from iobench.checkpoint.stream import FILE_BLOCK
from tools.bench import fio_peer
from tools.bench.sides import MIB, SCRATCH, Case, Figure, compare, fio_is_missing, flags_of

BLOCK, CONCURRENCY = FILE_BLOCK, 8


class Study:
    """One state, and a root on the disk to measure."""

    def __init__(self, folder: Path, mib: int) -> None:
        torch.manual_seed(1)
        # Few large tensors, as a transformer has, and some small ones.
        count = max(1, mib // 64)
        self.state: dict[str, Any] = {
            f"layer{n}": {"weight": _noise(64 * MIB), "norm": torch.randn(4096)}
            for n in range(count)
        }
        self.folder = folder
        self.bytes = lay_out(self.state).size
        self.checksums = state_checksums(self.state)
        self.root = CheckpointRoot.open(str(folder / "checkpoints"))
        self.root.claim()
        self._step = 0

    def save(self, writer: Any, name: str) -> tuple[Figure, CheckpointTarget]:
        self._step += 1
        target = self.root.step(self._step)
        saved = writer.save(self.state, target, checksums=self.checksums).wait()
        target.publish(saved, rank=0)
        target.commit(writer=name, world=1)
        return Figure(
            saved.bytes / saved.durable_s, (saved.cpu_s or 0.0) / (saved.bytes / 1e9)
        ), target


def _noise(size: int) -> torch.Tensor:
    """On huge pages, as a framework's allocator has them."""
    tensor = torch.from_numpy(private(size).array).view(torch.bfloat16)
    tensor.copy_(torch.randint(-(2**63), 2**63 - 1, (size // 8,)).view(torch.bfloat16))
    return tensor


def stream_write(study: Study, seconds: float, *, own_memory: bool) -> Case:
    """Against fio with the same blocks; or with one block for each job's whole share, so that it
    writes as much memory as a state is.
    """
    writer = make_writer("stream", options={"block_size": BLOCK, "concurrency": CONCURRENCY})
    block = study.bytes // CONCURRENCY // MIB * MIB if own_memory else BLOCK

    def ours() -> Figure:
        figure, target = study.save(writer, "stream")
        study.root.remove(target)
        return figure

    def peer() -> Figure:
        return fio_peer.seq_write(
            study.folder,
            bytes=study.bytes,
            block_size=block,
            jobs=CONCURRENCY,
            run_dir=study.folder / "fio-write",
        )

    return Case(
        f"stream: {study.bytes // MIB} MiB state, durable, {CONCURRENCY} x {BLOCK // MIB} MiB",
        "0.95 x, 0.2 CPU s/GB",
        ours,
        peer,
        f"fio psync {block // MIB} MiB direct, {CONCURRENCY} jobs, fsync{_MEMORY[own_memory]}",
    )


_MEMORY = {
    True: ": each job's whole share in its memory",
    False: ": one block of memory for each job, over and over",
}


def stream_read(study: Study, seconds: float, *, own_memory: bool) -> Case:
    writer = make_writer("stream", options={"block_size": BLOCK})  # it finds the threads it needs
    target = study.save(writer, "stream")[1]
    path = target.path("rank-0000.tensors")
    assert path is not None
    size = path.stat().st_size
    block = size // CONCURRENCY // MIB * MIB if own_memory else BLOCK

    def ours() -> Figure:
        target.storage.evict(target.data_keys())
        restored = writer.restore(study.state, target)
        return Figure(restored.bytes / restored.wall_s, restored.cpu_s / (restored.bytes / 1e9))

    def peer() -> Figure:
        target.storage.evict(target.data_keys())
        return fio_peer.raw_read(
            [path],
            block_size=block,
            seconds=seconds,
            run_dir=study.folder / "fio-read",
            concurrency=CONCURRENCY,
        )

    name = f"stream: cold restore of {study.bytes // MIB} MiB, blocks of {BLOCK // MIB} MiB"
    return Case(
        name,
        "0.90 x",
        ours,
        peer,
        f"fio psync {block // MIB} MiB direct, {CONCURRENCY} jobs{_MEMORY[own_memory]}",
    )


def library(study: Study, seconds: float, *, name: str, bare: Callable[[Any, Path], None]) -> Case:
    writer = make_writer(name)

    def ours() -> Figure:
        figure, target = study.save(writer, name)
        study.root.remove(target)
        return figure

    def peer() -> Figure:
        folder = Path(tempfile.mkdtemp(prefix="bare-", dir=study.folder))
        started, cpu = time.monotonic(), time.process_time()
        bare(study.state, folder)
        for path in (*folder.iterdir(), folder, study.folder):
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        wall, cpu = time.monotonic() - started, time.process_time() - cpu
        size = sum(path.stat().st_size for path in folder.iterdir())
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        return Figure(size / wall, cpu / (size / 1e9))

    return Case(
        f"{name}: {study.bytes // MIB} MiB state, durable",
        "0.99 x",
        ours,
        peer,
        "the bare call, and fsync",
    )


def _torch(state: Any, folder: Path) -> None:
    torch.save(state, folder / "state.pt")


def _safetensors(state: Any, folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = {f"{name}.{leaf}": layer[leaf] for name, layer in state.items() for leaf in layer}
    save_file(tensors, folder / "state.safetensors")


def _dcp(state: Any, folder: Path) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, save

    save(state, storage_writer=FileSystemWriter(folder, sync_files=False))


CASES: dict[str, Callable[[Study, float], Case]] = {
    "stream-write": partial(stream_write, own_memory=False),
    "stream-write-memory": partial(stream_write, own_memory=True),
    "stream-read": partial(stream_read, own_memory=False),
    "stream-read-memory": partial(stream_read, own_memory=True),
    "torch": partial(library, name="torch", bare=_torch),
    "safetensors": partial(library, name="safetensors", bare=_safetensors),
    "dcp": partial(library, name="dcp", bare=_dcp),
}


def main() -> int:
    parser = flags_of(__doc__, CASES)
    parser.add_argument("--size", type=int, default=512, help="MiB of the state")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of fio's timed read")
    args = parser.parse_args()
    if fio_is_missing():
        return 1
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=args.dir) as folder:
        study = Study(Path(folder), args.size)
        compare((CASES[name](study, args.seconds) for name in args.case or CASES), args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
