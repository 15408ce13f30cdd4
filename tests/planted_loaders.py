"""Loaders as users write them, each with a property that iobench must find."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset


class Files(Dataset[Any]):
    """The first ``size`` bytes of each file; it sleeps or computes for as long as it is told."""

    def __init__(self, data: str, *, sleep: float, spin: float, size: int) -> None:
        self.files = [str(path) for path in sorted(Path(data).rglob("*.jpg"))]
        self.sleep, self.spin, self.size = sleep, spin, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raw = Path(self.files[index]).read_bytes()
        if self.sleep:
            time.sleep(self.sleep)
        end = time.thread_time() + self.spin
        while time.thread_time() < end:
            pass
        return torch.frombuffer(bytearray(raw[: self.size]), dtype=torch.uint8), index


def of_files(
    data: str,
    workers: int = 1,
    sleep: float = 0.0,
    spin: float = 0.0,
    batch: int = 8,
    divide: bool = False,
    size: int = 1000,
    **more: Any,
) -> DataLoader[Any]:
    """A DataLoader over the files; ``divide``: each rank gets its share."""
    torch.manual_seed(7)
    dataset = Files(data, sleep=sleep, spin=spin, size=size)
    if divide:
        from os import environ

        more["sampler"] = DistributedSampler(
            dataset, num_replicas=int(environ["WORLD_SIZE"]), rank=int(environ["RANK"])
        )
    else:
        more.setdefault("shuffle", True)
    return DataLoader(dataset, batch_size=batch, num_workers=workers, **more)


def of_dicts(count: int = 6) -> Iterator[dict[str, Any]]:
    """A generator of dicts: it can be iterated over once."""
    for number in range(count):
        yield {"x": torch.full((4, 10), float(number)), "y": np.arange(4), "name": "text"}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(64, dtype=torch.float32).reshape(16, 4))


def of_stream(workers: int = 1) -> DataLoader[Any]:
    return DataLoader(Stream(), batch_size=4, num_workers=workers)


class Module:
    """A Lightning DataModule, by the methods that Lightning calls."""

    def __init__(self, data: str) -> None:
        self.data, self.stage = data, ""

    def setup(self, stage: str) -> None:
        self.stage = stage

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.stage == "fit"
        return of_files(self.data, workers=0)


def a_dataset(data: str) -> Files:
    return Files(data, sleep=0, spin=0, size=100)


def raises() -> None:
    raise ValueError("no licence\nfor this")


def nothing() -> None:
    return None


def endless() -> Iterator[torch.Tensor]:
    while True:
        yield torch.zeros(8, 100)


def ends_at_once() -> Iterator[Any]:
    return iter(())


def without_data() -> Iterator[Any]:
    return iter([{"name": "text"}])


def ragged() -> Iterator[Any]:
    return iter([{"x": torch.zeros(8, 10), "y": torch.zeros(7)}] * 4)


def fails_later() -> DataLoader[Any]:
    return DataLoader(Broken(), batch_size=4, num_workers=1)


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        raise RuntimeError("sample is damaged")


def reads_elsewhere(other: str) -> Iterator[torch.Tensor]:
    for _ in range(8):
        yield torch.frombuffer(bytearray(Path(other).read_bytes()), dtype=torch.uint8)[None]
