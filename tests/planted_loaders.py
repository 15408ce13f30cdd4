"""Loaders as users write them, each with a property that iobench must find."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    default_collate,
    get_worker_info,
)


def plain(value: Any) -> Any:
    """A batch as plain objects: with its types, and the bytes and types of its arrays."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value)
        return name, str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, dict):
        return name, {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return name, [plain(each) for each in value]
    return name, value


def cpu_ns() -> int:
    """CPU time of this thread, from the kernel's accounts and not from a clock."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return round((used.ru_utime + used.ru_stime) * 1e9)


class Files(Dataset[Any]):
    """The first ``size`` bytes of each file; it sleeps or computes for as long as it is told.

    ``truth``: a file that gets the time and the CPU time of each sample, in nanoseconds.
    """

    def __init__(self, data: str, *, sleep: float, spin: float, size: int, truth: str = "") -> None:
        self.truth = truth
        self.files = [str(path) for path in sorted(Path(data).rglob("*.jpg"))]
        self.sleep, self.spin, self.size = sleep, spin, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not self.truth:
            return self._sample(index)
        began, cpu = time.perf_counter_ns(), cpu_ns()
        sample = self._sample(index)
        with open(self.truth, "a") as file:
            print(time.perf_counter_ns() - began, cpu_ns() - cpu, file=file)
        return sample

    def _sample(self, index: int) -> tuple[torch.Tensor, int]:
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
    truth: str = "",
    **more: Any,
) -> DataLoader[Any]:
    """A DataLoader over the files; ``divide``: each rank gets its share."""
    torch.manual_seed(7)
    dataset = Files(data, sleep=sleep, spin=spin, size=size, truth=truth)
    if divide:
        from os import environ

        more["sampler"] = DistributedSampler(
            dataset, num_replicas=int(environ["WORLD_SIZE"]), rank=int(environ["RANK"])
        )
    else:
        more.setdefault("shuffle", True)
    return DataLoader(dataset, batch_size=batch, num_workers=workers, **more)


class Large(Files):
    """Samples that cost nothing to make, and much to hand over."""

    def __init__(self, data: str, *, size: int) -> None:
        super().__init__(data, sleep=0, spin=0, size=0)
        self.sample = torch.zeros(size, dtype=torch.uint8)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        Path(self.files[index]).read_bytes()
        return self.sample, index


def large(data: str, size: int = 16_000_000) -> DataLoader[Any]:
    """Batches of few files, whose opening would take a large part of the time.

    Its worker stays, since it would take as long to start as an epoch of batches.
    """
    dataset = Large(data, size=size)
    more: dict[str, Any] = {"collate_fn": list, "persistent_workers": True}
    return DataLoader(dataset, batch_size=2, num_workers=1, **more)


class Opens(Dataset[Any]):
    """Samples that say what the open of a new file says, and take no time."""

    opened = 0

    def __init__(self, data: str, count: int) -> None:
        self.data, self.count = data, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.opened += 1
        sys.audit("open", f"{self.data}/{self.opened:08}.jpg", "r", os.O_RDONLY)
        return index


def of_opens(data: str, count: int, batch: int = 64) -> DataLoader[Any]:
    return DataLoader(Opens(data, count), batch_size=batch)


class Payload(Files):
    """Samples of bytes that cost nothing to make, and are copied through a pipe."""

    def __getitem__(self, index: int) -> Any:
        Path(self.files[index]).read_bytes()
        return self.payload

    payload = bytes(2_000_000)


def payload(data: str) -> DataLoader[Any]:
    dataset = Payload(data, sleep=0, spin=0, size=0)
    return DataLoader(dataset, batch_size=8, num_workers=1, collate_fn=list)


class OneSlow(Files):
    """Worker 0 sleeps for each sample, the others do not."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        info = get_worker_info()
        sleep, self.sleep = self.sleep, 0.0
        if info is not None and info.id == 0:
            time.sleep(sleep)
        try:
            return super().__getitem__(index)
        finally:
            self.sleep = sleep


def one_slow_worker(data: str, sleep: float = 0.02, in_order: bool = True) -> DataLoader[Any]:
    dataset = OneSlow(data, sleep=sleep, spin=0, size=1000)
    return DataLoader(dataset, batch_size=8, num_workers=4, in_order=in_order, shuffle=True)


class Mapped(Files):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        whole = np.array(np.memmap(self.files[index], dtype=np.uint8, mode="r"))
        return torch.from_numpy(whole[: self.size]), index


def of_maps(data: str, workers: int = 1) -> DataLoader[Any]:
    return DataLoader(Mapped(data, sleep=0, spin=0, size=1000), batch_size=8, num_workers=workers)


class Listed(Files):
    """Each sample looks at a part of a list of Python objects, as those of annotations are."""

    def __init__(self, data: str, objects: int) -> None:
        super().__init__(data, sleep=0, spin=0, size=1000)
        self.names = [f"annotation number {number}" for number in range(objects)]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        share = len(self.names) // 32
        place = index % 32 * share
        assert all(self.names[place : place + share])
        return super().__getitem__(index)


def of_lists(data: str, objects: int = 3_000_000) -> DataLoader[Any]:
    return DataLoader(Listed(data, objects), batch_size=8, num_workers=2)


def spawned(data: str) -> DataLoader[Any]:
    return of_files(data, workers=2, multiprocessing_context="spawn")


def slow_start(data: str, sleep: float = 3.0) -> DataLoader[Any]:
    """Its workers, which start anew in each epoch, take long until they read."""
    return of_files(data, workers=2, worker_init_fn=lambda _: time.sleep(sleep))


class Batches:
    """An iterable of batches that a generator makes: it sleeps or computes for each sample."""

    def __init__(self, data: str, sleep: float, spin: float) -> None:
        self.files = Files(data, sleep=sleep, spin=spin, size=1000)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for first in range(0, len(self.files), 8):
            yield torch.stack([self.files[number][0] for number in range(first, first + 8)])


def of_generator(data: str, sleep: float = 0.004, spin: float = 0.0) -> Batches:
    return Batches(data, sleep, spin)


class SlowStream(IterableDataset[Any]):
    """Each worker makes its share of the samples, and sleeps for each of them."""

    def __init__(self, data: str, sleep: float) -> None:
        self.files = Files(data, sleep=sleep, spin=0, size=1000)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        return (self.files[number] for number in range(first, len(self.files), step))


def slow_stream(data: str, sleep: float = 0.004) -> DataLoader[Any]:
    return DataLoader(SlowStream(data, sleep), batch_size=8, num_workers=2)


class Shared(IterableDataset[Any]):
    """Each worker delivers all samples, unless they ``share`` them; ``noise``: each differs.

    With ``turned``, each worker begins at another place.
    """

    def __init__(self, data: str, share: bool, noise: bool, turned: bool) -> None:
        self.files = Files(data, sleep=0, spin=0, size=1000)
        self.share, self.noise, self.turned = share, noise, turned

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        step = workers if self.share else 1
        numbers = range(mine if self.share else 0, len(self.files), step)
        if self.turned:
            half = len(numbers) // workers * mine
            numbers = [*numbers[half:], *numbers[:half]]  # type: ignore[assignment]
        for number in numbers:
            sample, index = self.files[number]
            yield (torch.rand(10) if self.noise else sample), (0 if self.noise else index)


def shared(
    data: str,
    share: bool = False,
    noise: bool = False,
    turned: bool = False,
    workers: int = 2,
    **more: Any,
) -> DataLoader[Any]:
    dataset = Shared(data, share, noise, turned)
    return DataLoader(dataset, batch_size=8, num_workers=workers, **more)


class Objects(Dataset[Any]):
    """Objects of an S3 bucket, one GET each; the client is made in each worker."""

    def __init__(self, endpoint: str, bucket: str, keys: list[str]) -> None:
        self.place, self.keys = (endpoint, bucket), keys
        self.client: Any = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.client is None:
            import botocore.session

            self.client = botocore.session.Session().create_client(
                "s3", endpoint_url=self.place[0], region_name="us-east-1"
            )
        body = self.client.get_object(Bucket=self.place[1], Key=self.keys[index])["Body"]
        return torch.frombuffer(bytearray(body.read()[:1000]), dtype=torch.uint8)


def of_objects(endpoint: str, bucket: str, prefix: str, count: int = 256) -> DataLoader[Any]:
    import botocore.session

    client = botocore.session.Session().create_client(
        "s3", endpoint_url=endpoint, region_name="us-east-1"
    )
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/data")["Contents"]
    keys = [each["Key"] for each in listed if each["Key"].endswith(".jpg")]
    return DataLoader(Objects(endpoint, bucket, keys[:count]), batch_size=8, num_workers=1)


def collate_slowly(samples: list[Any], sleep: float) -> Any:
    time.sleep(sleep)
    return default_collate(samples)


def slow_collate(data: str, workers: int = 1, sleep: float = 0.01) -> DataLoader[Any]:
    collate = partial(collate_slowly, sleep=sleep)
    return of_files(data, workers=workers, collate_fn=collate)


def slowly_chosen(count: int, sleep: float) -> Iterator[int]:
    for number in range(count):
        time.sleep(sleep)
        yield number


class SlowSampler(Sampler[int]):
    """It chooses one sample after the other, and takes its time."""

    def __init__(self, count: int, sleep: float) -> None:
        self.count, self.sleep = count, sleep

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return slowly_chosen(self.count, self.sleep)


def slow_sampler(
    workers: int = 1, count: int = 64, sleep: float = 0.005, persistent: bool = False
) -> DataLoader[Any]:
    numbers: Any = torch.arange(count, dtype=torch.float32).reshape(count, 1)
    lasting = persistent and workers > 0
    return DataLoader(
        numbers,
        batch_size=4,
        num_workers=workers,
        sampler=SlowSampler(count, sleep),
        persistent_workers=lasting,
    )


def of_dicts(count: int = 6) -> Iterator[dict[str, Any]]:
    """A generator of dicts: it can be iterated over once."""
    for number in range(count):
        yield {"x": torch.full((4, 10), float(number)), "y": np.arange(4), "name": "text"}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(64, dtype=torch.float32).reshape(16, 4))


def of_stream(workers: int = 1) -> DataLoader[Any]:
    return DataLoader(Stream(), batch_size=4, num_workers=workers)


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


class Kinds(Dataset[Any]):
    """Samples of each kind that a DataLoader can hand over."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        image = torch.arange(6, dtype=torch.float32).reshape(2, 3) * index
        kinds: dict[str, Any] = {
            "tensor": image,
            "dict": {"image": image, "name": f"sample {index}", "deep": {"label": index}},
            "tuple": (image, index),
            "namedtuple": Pair(image, index),
            "list": [image, [index, float(index)]],
            "numpy": np.full((2, 2), index, np.uint16),
            "bytes": bytes([index]) * (index + 1),
            "ragged": torch.arange(index + 1),
        }
        return kinds[self.kind]


def of_kind(kind: str, workers: int = 0) -> DataLoader[Any]:
    collate: Any = list if kind in ("bytes", "ragged") else None
    return DataLoader(Kinds(kind), batch_size=4, num_workers=workers, collate_fn=collate)


class Module:
    """A Lightning DataModule, by the methods that Lightning calls."""

    def __init__(self, data: str) -> None:
        self.data, self.stage = data, ""

    def setup(self, stage: str) -> None:
        self.stage = stage

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.stage == "fit"
        return of_files(self.data, workers=0)


def raises() -> None:
    raise ValueError("no licence\nfor this")


def never_returns() -> None:
    time.sleep(1e6)


def exits_in_a_batch() -> Iterator[torch.Tensor]:
    yield torch.zeros(8, 10)
    sys.exit(3)


def talks_and_leaves(data: str, mark: str) -> DataLoader[Any]:
    """It prints, leaves a process and a thread behind, and changes the working directory."""
    print("TALK")
    left = subprocess.Popen(["sleep", "3600"])
    with Path(mark).open("a") as file:
        print(left.pid, file=file)
    threading.Thread(target=time.sleep, args=(3600,)).start()
    os.chdir("/")
    return of_files(data, workers=0)


def of_lists_of_samples(shape: int = 3) -> DataLoader[Any]:
    """14 samples in batches of 4, which are lists of tensors; the last one has 2."""
    samples: Any = [torch.zeros(shape, number % 2 + 1) for number in range(14)]
    return DataLoader(samples, batch_size=4, collate_fn=list)


def nothing() -> None:
    return None


def a_class() -> type:
    return Pair


def endless() -> Iterator[torch.Tensor]:
    while True:
        yield torch.zeros(8, 100)


def ends_at_once() -> Iterator[Any]:
    return iter(())


def zeros(data: str) -> DataLoader[Any]:
    """It makes its samples from nothing, although it is told where the dataset is."""
    files = Path(data).rglob("*.jpg")
    samples: Any = [torch.zeros(each.stat().st_size, dtype=torch.uint8) for each in files]
    return DataLoader(samples, batch_size=8, num_workers=1, collate_fn=list)


def ragged() -> Iterator[Any]:
    return iter([{"x": torch.zeros(8, 10), "y": torch.zeros(7)}] * 4)


def fails_later() -> DataLoader[Any]:
    """With two workers, of which the second one still works when the first one has failed."""
    return DataLoader(Broken(), batch_size=4, num_workers=2)


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if index:
            return index
        raise RuntimeError("sample is damaged")


def reads_elsewhere(other: str) -> Iterator[torch.Tensor]:
    for _ in range(8):
        yield torch.frombuffer(bytearray(Path(other).read_bytes()), dtype=torch.uint8)[None]
