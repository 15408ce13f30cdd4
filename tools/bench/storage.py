"""Storage paths against fio and plain peers, interleaved A B A B in one run:
``python -m tools.bench.storage [--case NAME] [--repeat N]``.

Each case reads or writes the same bytes on both sides, with the same block size, direct flag and
concurrency. What counts are the ratios: the disk may be noisy, the two sides take turns on it. One
JSON file with every repetition goes to ``results/bench/``.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader, Dataset

from iobench.base import buffers
from iobench.judge.figures.windows import ceiling_from_events
from iobench.load.build import build_loader
from iobench.load.reader import BatchReader
from iobench.record.training import Repetition
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase
from iobench.settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from iobench.storage.local import uring
from iobench.storage.local.storage import LocalStorage
from tools.bench import fio_peer
from tools.bench.sides import (
    MIB,
    SCRATCH,
    Case,
    Data,
    Figure,
    Made,
    compare,
    cpu_s,
    fio_is_missing,
    flags_of,
    in_memory,
    timed,
)

ENGINES = ("psync", "io_uring", "libaio")


def through_loader(
    made: Made,
    seconds: float,
    *,
    workers: int,
    concurrency: int,
    batch: int,
    access: str,
    direct: bool = True,
    transport: str = "null",
    engine: str = "threads",
    decode: bool = False,
    crop: int | None = None,
) -> Figure:
    """A whole loader (rank, workers, transport) over the dataset for some seconds, with an
    accelerator that never waits.
    """
    reading = ReaderSpec(
        decode=decode,
        crop=crop,
        concurrency=concurrency,
        access=access,  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
    )
    loading = LoaderSpec(workers=workers, transport=transport)  # type: ignore[arg-type]
    phase = Phase(
        name="bench",
        reader=BatchReader(made.manifest, LocalStorage(made.root, direct=direct), reading),
        reading=reading,
        loading=loading,
        accelerator=AcceleratorSpec(kind="null"),
        accelerators=1,
        batch_size=batch,
        seed=int(time.time()),
        epochs=None,
        limit_s=seconds,
    )
    outcome = run_phase(phase)
    events = outcome.events()
    _, rate = ceiling_from_events(events, Repetition(seed=0, accelerators=1, epochs=outcome.epochs))
    return Figure(rate or 0.0, outcome.cpu_s / (float(events["sample_bytes"].sum()) / 1e9))


# Large shards


def large(data: Data) -> Made:
    """16 shards of 64 MiB."""
    size = {"mean": 64 * MIB}
    return data.dataset("large", samples=16, sample_size=size, format="tar", samples_per_shard=1)


def of_large(
    made: Made,
    seconds: float,
    workers: int,
    concurrency: int,
    *,
    transport: str = "null",
    engine: str = "threads",
) -> Figure:
    return through_loader(
        made,
        seconds,
        workers=workers,
        concurrency=concurrency,
        batch=4,
        access="sequential",
        transport=transport,
        engine=engine,
    )


def fio_of_large(data: Data, seconds: float, engine: str) -> Figure:
    return fio_peer.raw_read(
        large(data).files,
        block_size=4 * MIB,
        seconds=seconds,
        run_dir=data.root / "fio-large",
        engine=engine,
    )


def fetch_large(data: Data, seconds: float) -> Case:
    made = large(data)
    probes = {engine: fio_of_large(data, seconds, engine) for engine in ENGINES}
    engine = max(probes, key=lambda name: probes[name].bytes_per_s)
    settings = {(w, c): of_large(made, seconds, w, c) for w, c in ((1, 1), (1, 2), (1, 4), (2, 2))}
    workers, concurrency = max(settings, key=lambda key: settings[key].bytes_per_s)
    return Case(
        f"fetch 64 MiB shards, O_DIRECT, {workers} x {concurrency} threads",
        "0.95 x, CPU 2 x",
        lambda: of_large(made, seconds, workers, concurrency),
        lambda: fio_of_large(data, seconds, engine),
        f"fio {engine} 4 MiB, 4 in flight",
    )


def fetch_large_ring(data: Data, seconds: float) -> Case:
    """The same shards by io_uring, against the engine of fio that costs the least CPU time.

    Four times as long as other rows, so that the start of the worker is a small part of the CPU
    time.
    """
    seconds *= 4
    made = large(data)
    return Case(
        "fetch 64 MiB shards, O_DIRECT, engine io_uring",
        "0.95 x, CPU 1.5 x",
        lambda: of_large(made, seconds, 1, 4, engine="io_uring"),
        lambda: fio_of_large(data, seconds, "libaio"),
        "fio libaio 4 MiB, 4 in flight",
    )


def fetch_large_bare(data: Data, seconds: float) -> Case:
    """A loop that only hands requests to the kernel and takes completions: the least in Python."""
    depth, block = 4, 4 * MIB
    files = large(data).files
    fetch = fetch_large_ring(data, seconds)
    seconds *= 4  # as there

    def ours() -> Figure:
        memory = buffers.private(depth * block).array
        opened = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
        ring = uring.Ring(4 * depth)
        requests = np.zeros(len(files) * 16, uring.REQUEST)
        requests["opcode"], requests["length"] = uring.READ, block
        requests["fd"] = np.repeat(opened, 16)
        requests["offset"] = np.tile(np.arange(16) * block, len(files))
        requests["address"] = memory.ctypes.data + np.arange(len(requests)) % depth * block

        def work() -> int:
            done = following = busy = 0
            until = time.monotonic() + seconds
            while busy or time.monotonic() < until:
                few = min(depth - busy, len(requests) - following)
                if time.monotonic() < until and few:
                    ring.put(requests[following : following + few])
                    following, busy = (following + few) % len(requests), busy + few
                ring.enter(1)
                for _, result in ring.few_completions():
                    busy, done = busy - 1, done + result
                ring.drop()
            return done

        figure = timed(work)
        ring.close()
        for fd in opened:
            os.close(fd)
        return figure

    return fetch._replace(
        name="4 MiB blocks of them, O_DIRECT, by io_uring in a bare loop",
        target="the limit",
        ours=ours,
    )


def ring(data: Data, seconds: float, *, against: str, target: str) -> Case:
    made = large(data)

    def through(transport: str) -> Figure:
        workers = 2 if transport != "thread" else 1
        return of_large(made, seconds, workers, 2, transport=transport)

    return Case(
        "ring: 4 x 64 MiB delivered, O_DIRECT, 2 workers",
        target,
        lambda: through("ring"),
        lambda: through(against),
        against,
    )


# Small files


def small(data: Data) -> Made:
    return data.dataset("small", samples=4000, sample_size={"mean": 102_400}, format="files")


def of_small(
    made: Made, seconds: float, workers: int, concurrency: int, *, transport: str = "null"
) -> Figure:
    return through_loader(
        made,
        seconds,
        workers=workers,
        concurrency=concurrency,
        batch=400,
        access="random",
        transport=transport,
    )


def fetch_small(data: Data, seconds: float) -> Case:
    made = small(data)
    settings = {(w, c): of_small(made, seconds, w, c) for w, c in ((0, 8), (1, 8), (2, 4), (2, 8))}
    workers, concurrency = max(settings, key=lambda key: settings[key].bytes_per_s)
    run_dir = data.root / "fio-small"
    return Case(
        f"fetch 100 KiB files, random, O_DIRECT, {workers} x {concurrency}",
        "1.0 x",
        lambda: of_small(made, seconds, workers, concurrency),
        lambda: fio_peer.raw_read(made.files, block_size=4 * MIB, seconds=seconds, run_dir=run_dir),
        "fio psync, 4 jobs, open/read/close",
    )


def ring_small(data: Data, seconds: float, *, against: str, target: str) -> Case:
    made = small(data)
    return Case(
        "ring: 400 x 100 KiB files delivered, O_DIRECT",
        target,
        lambda: of_small(made, seconds, 2, 8, transport="ring"),
        lambda: of_small(made, seconds, 2, 8, transport=against),
        against,
    )


class Bare(Dataset[int]):
    """Files that are opened, read into the same memory, and closed: nothing else.

    ``places``: how many files the memory has room for. One stays in the cache of the CPU; as many
    as the batches that wait in a ring have are written to the memory behind it.
    """

    def __init__(self, files: list[Path], largest: int, places: int = 1) -> None:
        self.files = [str(file) for file in files]
        self.largest, self.places = largest, places
        self.memory: Iterator[memoryview] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> list[int]:
        if self.memory is None:  # in the worker, with its first batch
            whole = buffers.private(self.places * self.largest).array.data
            starts = range(0, self.places * self.largest, self.largest)
            self.memory = itertools.cycle([whole[start : start + self.largest] for start in starts])
        return [self[index] for index in indices]

    def __getitem__(self, index: int) -> int:
        assert self.memory is not None
        opened = os.open(self.files[index], os.O_RDONLY)
        try:
            return os.readv(opened, (next(self.memory),))
        finally:
            os.close(opened)


def bare(files: list[Path], seconds: float, *, workers: int, places: int = 1) -> Figure:
    """A DataLoader over ``Bare``, whose workers start anew for each epoch, as ours do."""
    largest = max(file.stat().st_size for file in files)
    loader = DataLoader(
        Bare(files, largest, places),
        batch_size=400,
        shuffle=True,
        num_workers=workers,
        collate_fn=sum,
    )
    done, rates = 0, []
    before, began = cpu_s(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        batches = iter(loader)
        epoch = next(batches)  # as ours: the start of the workers is not counted
        started, counted = time.perf_counter(), 0
        for size in batches:
            counted += size
        rates.append(counted / (time.perf_counter() - started))
        done += epoch + counted
        del batches
    return Figure(statistics.median(rates), (cpu_s() - before) / (done / 1e9))


def small_warm(
    data: Data, seconds: float, *, workers: int, delivered: str = "", crop: int | None = None
) -> Case:
    """ResNet-50's files of 115 kB in batches of 400, from the page cache.

    ``delivered``: what reaches the training process through the ring: "bytes", or the arrays of
    "npz", of which ``crop`` bytes are passed on.
    """
    content = "npz" if delivered == "npz" else "raw"
    name = f"resnet-{content}"
    size = {"mean": 114_660}
    made = data.dataset(name, samples=4800, sample_size=size, format="files", content=content)
    in_memory(made.files)

    def ours() -> Figure:
        return through_loader(
            made,
            seconds,
            workers=workers,
            concurrency=1,
            batch=400,
            access="random",
            direct=False,
            transport="ring" if delivered else "null",
            decode=content == "npz",
            crop=crop,
        )

    what = f"{delivered or 'nothing'} delivered" + (f", {crop} bytes of each" if crop else "")
    return Case(
        f"115 kB files, warm, {workers} workers, {what}",
        "0.85 x",
        ours,
        partial(bare, made.files, seconds, workers=workers),
        "open, readv, close in a DataLoader",
    )


def small_warm_bare(data: Data, seconds: float) -> Case:
    """The bare loop itself, into the memory of four batches instead of one file's."""
    case = small_warm(data, seconds, workers=1)
    made = data.dataset(
        "resnet-raw", samples=4800, sample_size={"mean": 114_660}, format="files", content="raw"
    )
    return case._replace(
        name="115 kB files, warm, 1 worker, a bare loop into the memory of 4 batches",
        target="the limit",
        ours=partial(bare, made.files, seconds, workers=1, places=1600),
    )


# Random windows, and writes


def windows(
    data: Data,
    seconds: float,
    *,
    direct: bool,
    engine: str = "io_uring",
    workers: int = 1,
    size: int = 4096,
) -> Case:
    """Random windows of 4 or 8 KiB, as of tokens or vectors."""
    count, in_flight = 512 * MIB // size, 64
    made = data.dataset(
        f"windows-{size}",
        samples=count,
        sample_size={"mean": size},
        format="tokens",
        samples_per_shard=count // 4,
    )
    files = made.files
    if not direct:
        in_memory(files)

    def ours() -> Figure:
        return through_loader(
            made,
            seconds,
            workers=workers,
            concurrency=in_flight,
            batch=1024,
            access="random",
            direct=direct,
            engine=engine,
        )

    place = "O_DIRECT" if direct else "from the page cache"
    kib = size // 1024
    return Case(
        f"random {kib} KiB, {place}, {in_flight} in flight, engine {engine}, {workers} workers",
        "0.9 x",
        ours,
        partial(
            fio_peer.random_reads, files, seconds, direct=direct, in_flight=in_flight, size=size
        ),
        f"fio io_uring {kib} KiB, {in_flight} in flight, one job",
    )


def write_large(data: Data, seconds: float) -> Case:
    spec = {"samples": 1536, "sample_size": {"mean": MIB}, "format": "tar"}

    def generated() -> int:
        made = data.dataset("written", samples_per_shard=256, **spec)
        return int(made.manifest.header.stored_bytes)

    def ours() -> Figure:
        data.drop("written")
        return timed(generated)

    def peer() -> Figure:
        data.drop("written")
        return fio_peer.seq_write(
            data.root,
            bytes=1536 * MIB,
            block_size=8 * MIB,
            jobs=2,
            run_dir=data.root / "fio-write",
        )

    return Case(
        "generate 256 MiB shards, durable, 2 workers",
        "0.90 x",
        ours,
        peer,
        "fio psync 8 MiB direct, 2 jobs, fsync",
    )


# Formats


def in_process(
    made: Made, *, check: str = "none", decode: bool = False, batch: int = 1, block: int = 4 * MIB
) -> Callable[[], int]:
    """Read everything once in this process, warm, with a thread for each core: there is no latency
    to hide.
    """
    reading = ReaderSpec(
        decode=decode,
        check=check,  # type: ignore[arg-type]
        shuffle=False,
        direct=False,
        block_size=block,
        concurrency=len(os.sched_getaffinity(0)),
    )
    reader = BatchReader(made.manifest, LocalStorage(made.root), reading)
    loader = build_loader(reader, LoaderSpec(workers=0), reading, batch_size=batch)
    return lambda: sum(int(batch.lengths.sum()) for batch in loader)


def npz(data: Data, seconds: float) -> Case:
    size = {"mean": 32 * MIB}
    made = data.dataset("npz", samples=12, sample_size=size, format="files", content="npz")

    def peer() -> int:
        total = 0
        for file in made.files:
            with np.load(file) as arrays:
                total += int(arrays["x"].nbytes)
        return total

    return Case(
        "npz (stored), 32 MiB, warm, in process",
        "2 x",
        partial(timed, in_process(made, decode=True)),
        partial(timed, peer),
        "np.load",
    )


def packed(data: Data, form: str) -> Made:
    """3,500 samples of 115 kB in shards of 64 MiB."""
    size = {"mean": 115_000}
    return data.dataset(form, samples=3500, sample_size=size, format=form, shard_size=64 * MIB)


def tar(data: Data, seconds: float, *, batch: int) -> Case:
    import webdataset

    made = packed(data, "tar")
    urls = [str(file) for file in made.files]

    def peer() -> int:
        samples = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)
        return sum(len(sample["bin"]) for sample in samples)

    return Case(
        f"tar shards of 115 KB samples in batches of {batch}, warm",
        "4 x",
        partial(timed, in_process(made, batch=batch, block=MIB)),
        partial(timed, peer),
        "webdataset, in no batches",
    )


def tfrecord(data: Data, seconds: float, *, check: bool) -> Case:
    from crc32c import crc32c
    from tfrecord.reader import tfrecord_iterator, tfrecord_loader

    made = packed(data, "tfrecord")
    files = [str(file) for file in made.files]

    def unchecked() -> int:
        return sum(
            len(record["data"])
            for file in files
            for record in tfrecord_loader(file, None, {"data": "byte"})
        )

    batch = np.zeros((128, 120_000), dtype=np.uint8)

    def checked() -> int:
        """The same work: each record's CRC computed, and the record delivered in a batch of 128."""
        total = 0
        for file in files:
            for number, record in enumerate(tfrecord_iterator(file)):
                view = np.frombuffer(record, dtype=np.uint8)
                crc32c(record)
                batch[number % 128, : len(view)] = view
                total += len(view)
        return total

    return Case(
        "TFRecord with CRC check, 115 KB, warm, in process",
        "1 x",
        partial(timed, in_process(made, check="format", batch=128, block=MIB)),
        partial(timed, checked if check else unchecked),
        f"tfrecord package{' + CRC + a batch of 128' if check else ': no CRC, no batch'}",
    )


CASES = {
    "fetch-large": fetch_large,
    "fetch-large-io_uring": fetch_large_ring,
    "fetch-large-bare": fetch_large_bare,
    "fetch-small": fetch_small,
    "random-direct": partial(windows, direct=True),
    "random-direct-threads": partial(windows, direct=True, engine="threads"),
    "random-warm": partial(windows, direct=False),
    "random-warm-alone": partial(windows, direct=False, workers=0),
    "random-warm-8k-alone": partial(windows, direct=False, workers=0, size=8192),
    "random-direct-8k": partial(windows, direct=True, size=8192),
    "random-warm-8k": partial(windows, direct=False, size=8192),
    "random-warm-threads": partial(windows, direct=False, engine="threads"),
    "small-warm": partial(small_warm, workers=1),
    "small-warm-2": partial(small_warm, workers=2),
    "small-warm-4": partial(small_warm, workers=4),
    **{
        f"small-warm-{name}-{workers}": partial(
            small_warm, workers=workers, delivered=content, crop=crop
        )
        for name, content, crop in (
            ("bytes", "bytes", None),
            ("npz", "npz", None),
            ("crop", "npz", 100_000),
        )
        for workers in (1, 2, 4)
    },
    "small-warm-bare": small_warm_bare,
    "ring-tensor": partial(ring, against="tensor", target="4 x, or 0.85 x fetch"),
    "ring-fetch": partial(ring, against="null", target="0.85 x"),
    "ring-thread": partial(ring, against="thread", target="-"),
    "ring-small": partial(ring_small, against="tensor", target="4 x, or 0.85 x fetch"),
    "ring-small-fetch": partial(ring_small, against="null", target="0.85 x"),
    "write": write_large,
    "npz": npz,
    "tar": partial(tar, batch=400),  # resnet50-h100's own
    "tar-128": partial(tar, batch=128),
    "tfrecord": partial(tfrecord, check=True),
    "tfrecord-unchecked": partial(tfrecord, check=False),
}


def main() -> int:
    parser = flags_of(__doc__, CASES)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each timed read")
    args = parser.parse_args()
    if fio_is_missing():
        return 1
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=args.dir) as root:
        data = Data(Path(root))
        compare((CASES[name](data, args.seconds) for name in args.case or CASES), args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
