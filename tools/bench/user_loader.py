"""What the instruments around a user's own loader cost: ``python -m tools.bench.user_loader``.

A DataLoader reads files of 115 kB, 64 in a batch, from the page cache and decodes nothing, so that
the instruments have few milliseconds to hide behind. It runs bare, under ``run --loader``, and
under ``iobench.watch``, each in a process of its own, since an audit hook can't be removed. One
epoch of each follows after the other. The figure is the ratio of the CPU times of the process and
of the loader's workers, with a 95 % interval over several sets of fresh processes; the ratio of
two bare loaders says what the method can tell. An epoch is long, so that the start of its workers
is a small part of it. malloc(3) must give no memory back to the kernel: whether it does so after
each batch depends on what happens to lie at the end of its heap, and then one process has twice the
page faults of another.

A second loader makes batches of one number from memory: its cost is what each batch costs whatever
is in it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import iobench
from iobench.judge.statistics import mean_interval
from iobench.settings.workload import LoaderSpec
from iobench.subject.loader import UserLoader
from tests import planted_loaders
from tools.bench.sides import cpu_s

BATCH, SAMPLE, FILES = 64, 115_000, 1024


def epoch_batches(maker: str, workers: int) -> int:
    """Batches of an epoch. A batch of one number takes 30 times as long where a worker makes it."""
    return 96 if maker == "of_files" else 1000 if workers else 4000


MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}

SIDES = ("bare", "bare again", "run --loader", "iobench.watch")


class Numbers(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def of_numbers(data: str, workers: int) -> DataLoader[Any]:
    return DataLoader(Numbers(epoch_batches("of_numbers", workers)), num_workers=workers)


def of_files(data: str, workers: int) -> DataLoader[Any]:
    samples = epoch_batches("of_files", workers) * BATCH
    some = RandomSampler(range(FILES), replacement=True, num_samples=samples)
    return planted_loaders.of_files(
        data, workers=workers, batch=BATCH, size=SAMPLE, shuffle=False, sampler=some
    )


MAKERS: dict[str, Callable[[str, int], DataLoader[Any]]] = {
    "of_files": of_files,
    "of_numbers": of_numbers,
}


def epoch_s(loader: Iterable[Any]) -> float:
    """CPU seconds of an epoch, with its workers, which have ended when their iterator is gone."""
    began = cpu_s()
    for _ in loader:
        pass
    while multiprocessing.active_children():  # reaps those that have ended
        time.sleep(0.002)
    return cpu_s() - began


def serve(side: str, maker: str, data: str, workers: int, parent: Connection) -> None:
    """Run an epoch whenever the parent asks for one."""
    bare = MAKERS[maker](data, workers)
    watch = None
    loader: Iterable[Any] = bare
    if side == "run --loader":
        spec = LoaderSpec(
            kind="user", factory=f"tools.bench.user_loader:{maker}", args={"workers": workers}
        )
        loader = UserLoader(spec, data=data, root=data, batch_size=BATCH, stored_bytes=SAMPLE)
    elif side == "iobench.watch":
        # Without ``data``: the look at the page cache before each epoch is not the instruments'.
        watch = iobench.watch(bare, results=Path(data) / "results")
        loader = watch.__enter__()
    while parent.recv():
        parent.send(epoch_s(loader))
    os._exit(0)  # leaves no record of what was watched


def turns(maker: str, data: str, workers: int, count: int) -> list[list[float]]:
    """CPU seconds of an epoch of each side, for each turn, by one set of fresh processes."""
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for side in SIDES:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(side, maker, data, workers, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    found = []
    for turn in range(count + 1):
        spent = [0.0] * len(SIDES)
        order = [(place + turn) % len(SIDES) for place in range(len(SIDES))]
        for place in order if turn % 2 else reversed(order):
            pipes[place].send(True)
            spent[place] = pipes[place].recv()
        found.append(spent)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(False)
        process.join()
    return found[1:]  # the first turn is warm-up


def cost(maker: str, data: str, workers: int, sets: int, count: int) -> None:
    """Print what each side costs."""
    batches = epoch_batches(maker, workers)
    measured = [turns(maker, data, workers, count) for _ in range(sets)]
    bare_us = statistics.median(spent[0] for each in measured for spent in each) / batches * 1e6
    print(f"{maker}, {workers} workers, a bare batch takes {bare_us:.0f} us of CPU time:")
    for place, side in enumerate(SIDES[1:], start=1):
        ratios = [statistics.median(spent[place] / spent[0] for spent in each) for each in measured]
        more = [
            statistics.median(spent[place] - spent[0] for spent in each) / batches * 1e6
            for each in measured
        ]
        low, high = mean_interval(ratios)
        least, most = mean_interval(more)
        print(
            f"  {side:13} {statistics.fmean(ratios):.3f} x [{low:.3f}, {high:.3f}], "
            f"{statistics.fmean(more):+.0f} us [{least:+.0f}, {most:+.0f}] for each batch",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sets", type=int, default=8, help="sets of fresh processes")
    parser.add_argument("--turns", type=int, default=6, help="epochs of each process")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--loaders", nargs="+", choices=list(MAKERS), default=list(MAKERS))
    flags = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [*sys.orig_argv], os.environ | MALLOC)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as data:
        for number in range(FILES):
            (Path(data) / f"{number:04}.jpg").write_bytes(os.urandom(SAMPLE))
        print(f"{flags.sets} sets of processes, {flags.turns} epochs each")
        for maker in flags.loaders:
            for workers in flags.workers:
                cost(maker, data, workers, flags.sets, flags.turns)


if __name__ == "__main__":
    main()
