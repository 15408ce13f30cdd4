"""Storage paths against fio and plain peers, interleaved A B A B in one run:
``python tests/bench/storage.py [--case NAME] [--repeat N]``.

Each case reads or writes the same bytes on both sides, with the same block size, direct flag and
concurrency. What counts are the ratios: the disk may be noisy, the two sides take turns on it. One
JSON file with every repetition goes to ``results/bench/``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fio_peer
import numpy as np
from torch.utils.data import DataLoader, Dataset

from iobench import buffers
from iobench.analyse.figures.windows import ceiling_from_events
from iobench.generator import generate
from iobench.load import build_loader
from iobench.load.reader import BatchReader
from iobench.measure import fio, host
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.manifest import Manifest
from iobench.schema.training import Repetition
from iobench.schema.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from iobench.storage.local import uring
from iobench.storage.local.storage import LocalStorage

MIB = 1 << 20
ENGINES = ("psync", "io_uring", "libaio")


class Figure(NamedTuple):
    bytes_per_s: float
    cpu_s_per_gb: float | None


class Case(NamedTuple):
    name: str
    target: str
    ours: Callable[[], Figure]
    peer: Callable[[], Figure]
    peer_name: str


class Data:
    """The datasets of all cases, generated once in a directory that is removed at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[str, Manifest] = {}

    def dataset(self, name: str, **spec: Any) -> tuple[Manifest, Path]:
        path = self.root / name
        if name not in self._made:
            self._made[name] = generate(
                build(DatasetSpec, {"name": name, **spec}, where=name), LocalStorage(path)
            ).manifest
        return self._made[name], path

    def drop(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)
        self._made.pop(name, None)


def through_loader(
    manifest: Manifest,
    path: Path,
    *,
    direct: bool,
    transport: str,
    workers: int,
    concurrency: int,
    batch: int,
    seconds: float,
    access: str,
    engine: str = "threads",
) -> Figure:
    """A whole loader (rank, workers, transport) over the dataset for some seconds, with an
    accelerator that never waits.
    """
    reading = ReaderSpec(
        decode=False,
        concurrency=concurrency,
        access=access,  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
    )
    loading = LoaderSpec(workers=workers, transport=transport)  # type: ignore[arg-type]
    reader = BatchReader(manifest, LocalStorage(path, direct=direct), reading)
    phase = Phase(
        name="bench",
        reader=reader,
        reading=reading,
        loading=loading,
        accelerator=AcceleratorSpec(kind="null"),
        accelerators=1,
        batch_size=batch,
        seed=int(time.time()),
        epochs=0,
        limit_s=seconds,
    )
    outcome = run_phase(phase)
    events = outcome.events()
    _, rate = ceiling_from_events(events, Repetition(seed=0, accelerators=1, epochs=outcome.epochs))
    return Figure(rate or 0.0, outcome.cpu_s / (float(events["sample_bytes"].sum()) / 1e9))


def raw(
    manifest: Manifest,
    path: Path,
    run_dir: Path,
    *,
    concurrency: int,
    seconds: float,
    engine: str,
    sequential: bool,
) -> Figure:
    files = [
        (path / key, int(size))
        for key, size in zip(manifest.keys(), manifest.shards["size"].tolist(), strict=True)
    ]
    result = fio_peer.raw_read(
        files,
        block_size=4 * MIB,
        concurrency=concurrency,
        direct=True,
        seconds=seconds,
        run_dir=run_dir,
        sequential=sequential,
        engines=(engine,),
    )
    return Figure(result.bytes_per_s, result.cpu_s_per_gb)


def timed(work: Callable[[], int]) -> Figure:
    """Bytes of ``work`` over its wall and CPU time, children included."""
    before = _cpu()
    started = time.perf_counter()
    done = work()
    wall, cpu = time.perf_counter() - started, _cpu() - before
    return Figure(done / wall, cpu / (done / 1e9))


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def fetch_large(data: Data, seconds: float) -> Case:
    manifest, path = data.dataset(
        "large", samples=16, sample_size={"mean": 64 * MIB}, format="tar", samples_per_shard=1
    )
    run_dir = data.root / "fio-large"
    probes = {
        e: raw(manifest, path, run_dir, concurrency=4, seconds=seconds, engine=e, sequential=True)
        for e in ENGINES
    }
    engine = max(probes, key=lambda name: probes[name].bytes_per_s)
    settings = {
        (w, c): _fetch(manifest, path, w, c, seconds) for w, c in ((1, 1), (1, 2), (1, 4), (2, 2))
    }
    workers, concurrency = max(settings, key=lambda key: settings[key].bytes_per_s)
    return Case(
        f"fetch 64 MiB shards, O_DIRECT, {workers} x {concurrency} threads",
        "0.95 x, CPU 2 x",
        lambda: _fetch(manifest, path, workers, concurrency, seconds),
        lambda: raw(
            manifest, path, run_dir, concurrency=4, seconds=seconds, engine=engine, sequential=True
        ),
        f"fio {engine} 4 MiB, 4 in flight",
    )


def _fetch(
    manifest: Manifest, path: Path, workers: int, concurrency: int, seconds: float
) -> Figure:
    return through_loader(
        manifest,
        path,
        direct=True,
        transport="null",
        workers=workers,
        concurrency=concurrency,
        batch=4,
        seconds=seconds,
        access="sequential",
    )


def fetch_large_ring(data: Data, seconds: float) -> Case:
    """The same shards by io_uring, against the engine of fio that costs the least CPU time.

    Four times as long as other rows, so that the start of the worker is a small part of the CPU
    time.
    """
    seconds *= 4
    manifest, path = data.dataset(
        "large", samples=16, sample_size={"mean": 64 * MIB}, format="tar", samples_per_shard=1
    )

    def ours() -> Figure:
        return through_loader(
            manifest,
            path,
            direct=True,
            transport="null",
            workers=1,
            concurrency=4,
            batch=4,
            seconds=seconds,
            access="sequential",
            engine="io_uring",
        )

    return Case(
        "fetch 64 MiB shards, O_DIRECT, engine io_uring",
        "0.95 x, CPU 1.5 x",
        ours,
        lambda: raw(
            manifest,
            path,
            data.root / "fio-large",
            concurrency=4,
            seconds=seconds,
            engine="libaio",
            sequential=True,
        ),
        "fio libaio 4 MiB, 4 in flight",
    )


def fetch_large_bare(data: Data, seconds: float) -> Case:
    """A loop that only hands requests to the kernel and takes completions: the least in Python."""
    manifest, path = data.dataset(
        "large", samples=16, sample_size={"mean": 64 * MIB}, format="tar", samples_per_shard=1
    )
    depth, block = 4, 4 * MIB
    files = [path / key for key in manifest.keys()]  # noqa: SIM118
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

    return Case(
        "4 MiB blocks of them, O_DIRECT, by io_uring in a bare loop",
        "the limit",
        ours,
        fetch.peer,
        fetch.peer_name,
    )


def windows(
    data: Data,
    seconds: float,
    *,
    direct: bool,
    engine: str,
    workers: int = 1,
    in_flight: int = 64,
    size: int = 4096,
) -> Case:
    """Random windows of 4 or 8 KiB, as of tokens or vectors."""
    windows_in_all = 512 * MIB // size
    manifest, path = data.dataset(
        f"windows-{size}",
        samples=windows_in_all,
        sample_size={"mean": size},
        format="tokens",
        samples_per_shard=windows_in_all // 4,
    )
    files = [path / key for key in manifest.keys()]  # noqa: SIM118
    if not direct:
        in_memory(files)

    def ours() -> Figure:
        return through_loader(
            manifest,
            path,
            direct=direct,
            transport="null",
            workers=workers,
            concurrency=in_flight,
            batch=1024,
            seconds=seconds,
            access="random",
            engine=engine,
        )

    place = "O_DIRECT" if direct else "from the page cache"
    kib = size // 1024
    return Case(
        f"random {kib} KiB, {place}, {in_flight} in flight, engine {engine}, {workers} workers",
        "0.9 x",
        ours,
        lambda: fio_random(files, seconds, direct=direct, in_flight=in_flight, size=size),
        f"fio io_uring {kib} KiB, {in_flight} in flight, one job",
    )


def in_memory(files: Iterable[Path]) -> None:
    """Have the page cache hold these files."""
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.read(8 * MIB):
                pass


def fio_random(
    files: list[Path], seconds: float, *, direct: bool, in_flight: int, size: int
) -> Figure:
    """fio's random reads by io_uring; it drops no page cache, and keeps no map of what it read."""
    names = ":".join(map(str, files))
    words = [
        *("fio", "--name=random", f"--filename={names}", "--rw=randread", f"--bs={size}"),
        *("--ioengine=io_uring", f"--iodepth={in_flight}", f"--direct={int(direct)}"),
        *("--readonly", "--iomem_align=4096", "--output-format=json"),
        *("--time_based", f"--runtime={seconds}", "--norandommap", "--randrepeat=0"),
        *("--invalidate=0", "--thread", "--file_service_type=random"),
    ]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    job = json.loads(ended.stdout)["jobs"][0]
    read, busy = job["read"], (job["usr_cpu"] + job["sys_cpu"]) / 100
    cpu_s = busy * read["runtime"] / 1e3
    return Figure(read["bw_bytes"], cpu_s / (read["io_bytes"] / 1e9))


class Bare(Dataset[int]):
    """Files that are opened, read into the same memory, and closed: nothing else."""

    def __init__(self, files: list[Path], largest: int) -> None:
        self.files = [str(file) for file in files]
        self.memory = [bytearray(largest)]

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]

    def __getitem__(self, index: int) -> int:
        opened = os.open(self.files[index], os.O_RDONLY)
        try:
            return os.readv(opened, self.memory)
        finally:
            os.close(opened)


def small_warm(data: Data, seconds: float, *, workers: int) -> Case:
    """ResNet-50's files of 115 kB in batches of 400, from the page cache."""
    manifest, path = data.dataset(
        "resnet", samples=4800, sample_size={"mean": 114_660}, format="files"
    )
    files = [path / key for key in manifest.keys()]  # noqa: SIM118
    largest = int(manifest.shards["size"].max())
    in_memory(files)

    def ours() -> Figure:
        return through_loader(
            manifest,
            path,
            direct=False,
            transport="null",
            workers=workers,
            concurrency=1,
            batch=400,
            seconds=seconds,
            access="random",
        )

    def bare() -> Figure:
        loader = DataLoader(
            Bare(files, largest), batch_size=400, shuffle=True, num_workers=workers, collate_fn=sum
        )
        done, rates = 0, []
        before, began = _cpu(), time.perf_counter()
        while time.perf_counter() - began < seconds:
            batches = iter(loader)
            epoch = next(batches)  # as ours: the start of the workers is not counted
            started, counted = time.perf_counter(), 0
            for size in batches:
                counted += size
            rates.append(counted / (time.perf_counter() - started))
            done += epoch + counted
            del batches
        return Figure(statistics.median(rates), (_cpu() - before) / (done / 1e9))

    return Case(
        f"115 kB files, warm, {workers} workers, nothing delivered",
        "0.85 x",
        ours,
        bare,
        "open, readv, close in a DataLoader",
    )


def fetch_small(data: Data, seconds: float) -> Case:
    manifest, path = data.dataset(
        "small", samples=4000, sample_size={"mean": 102_400}, format="files"
    )
    run_dir = data.root / "fio-small"

    def ours(workers: int, concurrency: int) -> Figure:
        return through_loader(
            manifest,
            path,
            direct=True,
            transport="null",
            workers=workers,
            concurrency=concurrency,
            batch=400,
            seconds=seconds,
            access="random",
        )

    settings = {(w, c): ours(w, c) for w, c in ((0, 8), (1, 8), (2, 4), (2, 8))}
    workers, concurrency = max(settings, key=lambda key: settings[key].bytes_per_s)
    return Case(
        f"fetch 100 KiB files, random, O_DIRECT, {workers} x {concurrency}",
        "1.0 x",
        lambda: ours(workers, concurrency),
        lambda: raw(
            manifest,
            path,
            run_dir,
            concurrency=4,
            seconds=seconds,
            engine="psync",
            sequential=False,
        ),
        "fio psync, 4 jobs, open/read/close",
    )


def ring(data: Data, seconds: float, *, against: str, target: str) -> Case:
    manifest, path = data.dataset(
        "large", samples=16, sample_size={"mean": 64 * MIB}, format="tar", samples_per_shard=1
    )

    def through(transport: str) -> Figure:
        return through_loader(
            manifest,
            path,
            direct=True,
            transport=transport,
            workers=2 if transport != "thread" else 1,
            concurrency=2,
            batch=4,
            seconds=seconds,
            access="sequential",
        )

    return Case(
        "ring: 4 x 64 MiB delivered, O_DIRECT, 2 workers",
        target,
        lambda: through("ring"),
        lambda: through(against),
        against,
    )


def ring_small(data: Data, seconds: float, *, against: str, target: str) -> Case:
    manifest, path = data.dataset(
        "small", samples=4000, sample_size={"mean": 102_400}, format="files"
    )

    def through(transport: str) -> Figure:
        return through_loader(
            manifest,
            path,
            direct=True,
            transport=transport,
            workers=2,
            concurrency=8,
            batch=400,
            seconds=seconds,
            access="random",
        )

    return Case(
        "ring: 400 x 100 KiB files delivered, O_DIRECT",
        target,
        lambda: through("ring"),
        lambda: through(against),
        against,
    )


def write_large(data: Data, seconds: float) -> Case:
    spec = {
        "samples": 1536,
        "sample_size": {"mean": MIB},
        "format": "tar",
        "samples_per_shard": 256,
    }

    def ours() -> Figure:
        data.drop("written")
        return timed(lambda: int(data.dataset("written", **spec)[0].header.stored_bytes))

    def peer() -> Figure:
        data.drop("written")
        result = fio_peer.seq_write(
            data.root,
            bytes=1536 * MIB,
            block_size=8 * MIB,
            jobs=2,
            direct=True,
            run_dir=data.root / "fio-write",
        )
        return Figure(result.bytes_per_s, result.cpu_s_per_gb)

    return Case(
        "generate 256 MiB shards, durable, 2 workers",
        "0.90 x",
        ours,
        peer,
        "fio psync 8 MiB direct, 2 jobs, fsync",
    )


def in_process(
    manifest: Manifest,
    path: Path,
    *,
    check: str = "none",
    decode: bool = False,
    batch: int = 1,
    block: int = 4 * MIB,
) -> Callable[[], int]:
    """Read everything once in this process, warm, with a thread for each core: there is no latency
    to hide.
    """
    threads = len(os.sched_getaffinity(0))
    reading = ReaderSpec(
        decode=decode,
        check=check,
        shuffle=False,
        direct=False,
        block_size=block,
        concurrency=threads,
    )  # type: ignore[arg-type]
    loader = build_loader(
        BatchReader(manifest, LocalStorage(path), reading),
        LoaderSpec(workers=0),
        reading,
        batch_size=batch,
    )

    def work() -> int:
        return sum(int(batch.lengths.sum()) for batch in loader)

    return work


def npz(data: Data, seconds: float) -> Case:
    manifest, path = data.dataset(
        "npz", samples=12, sample_size={"mean": 32 * MIB}, format="files", content="npz"
    )
    ours = in_process(manifest, path, decode=True)
    files = [path / key for key in manifest.keys()]  # noqa: SIM118

    def peer() -> int:
        total = 0
        for file in files:
            with np.load(file) as arrays:
                total += int(arrays["x"].nbytes)
        return total

    return Case(
        "npz (stored), 32 MiB, warm, in process",
        "2 x",
        lambda: timed(ours),
        lambda: timed(peer),
        "np.load",
    )


def tar(data: Data, seconds: float, *, batch: int) -> Case:
    import webdataset

    manifest, path = data.dataset(
        "tar", samples=3500, sample_size={"mean": 115_000}, format="tar", shard_size=64 * MIB
    )
    ours = in_process(manifest, path, batch=batch, block=MIB)
    urls = [str(path / key) for key in manifest.keys()]  # noqa: SIM118

    def peer() -> int:
        return sum(
            len(sample["bin"])
            for sample in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)
        )

    name = f"tar shards of 115 KB samples in batches of {batch}, warm"
    return Case(name, "4 x", lambda: timed(ours), lambda: timed(peer), "webdataset, in no batches")


def tfrecord(data: Data, seconds: float, *, check: bool) -> Case:
    from crc32c import crc32c
    from tfrecord.reader import tfrecord_iterator, tfrecord_loader

    manifest, path = data.dataset(
        "tfrecord",
        samples=3500,
        sample_size={"mean": 115_000},
        format="tfrecord",
        shard_size=64 * MIB,
    )
    ours = in_process(manifest, path, check="format", batch=128, block=MIB)
    files = [str(path / key) for key in manifest.keys()]  # noqa: SIM118

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

    name = (
        "tfrecord package + CRC + a batch of 128" if check else "tfrecord package: no CRC, no batch"
    )
    return Case(
        "TFRecord with CRC check, 115 KB, warm, in process",
        "1 x",
        lambda: timed(ours),
        lambda: timed(checked if check else unchecked),
        name,
    )


CASES = {
    "fetch-large": fetch_large,
    "fetch-large-io_uring": fetch_large_ring,
    "fetch-large-bare": fetch_large_bare,
    "fetch-small": fetch_small,
    "random-direct": partial(windows, direct=True, engine="io_uring"),
    "random-direct-threads": partial(windows, direct=True, engine="threads"),
    "random-warm": partial(windows, direct=False, engine="io_uring"),
    "random-warm-alone": partial(windows, direct=False, engine="io_uring", workers=0),
    "random-warm-8k-alone": partial(windows, direct=False, engine="io_uring", workers=0, size=8192),
    "random-direct-8k": partial(windows, direct=True, engine="io_uring", size=8192),
    "random-warm-8k": partial(windows, direct=False, engine="io_uring", size=8192),
    "random-warm-threads": partial(windows, direct=False, engine="threads"),
    "small-warm": partial(small_warm, workers=1),
    "small-warm-2": partial(small_warm, workers=2),
    "small-warm-4": partial(small_warm, workers=4),
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


def spread(values: list[float]) -> str:
    places = 2 if max(values) >= 0.1 else 3
    middle, low, high = (
        f"{v:.{places}f}" for v in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} [{low}, {high}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--case", action="append", choices=sorted(CASES), help="only these; repeatable"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each timed read")
    parser.add_argument(
        "--dir", type=Path, default=Path("."), help="a directory on the disk to measure"
    )
    args = parser.parse_args()
    if not fio.available():
        print(f"fio is not installed: {fio.install_hint()}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix=".iobench-bench-", dir=args.dir) as root:
        data = Data(Path(root))
        rows = compare(
            (CASES[name](data, args.seconds) for name in args.case or CASES), args.repeat
        )
    keep(rows)
    return 0


def compare(cases: Iterable[Case], repeat: int, *, warm_up: bool = True) -> list[dict[str, Any]]:
    """Both sides of each case in turn; prints the ratios as they come."""
    rows = []
    print(
        f"{'case':<58} {'ratio':<20} {'GB/s ours':<20} {'GB/s peer':<20} "
        f"{'CPU s/GB ours, peer':<20} target"
    )
    for case in cases:
        if warm_up:  # page cache, memory, code: the first of each is not counted
            case.ours(), case.peer()
        pairs = [(case.ours(), case.peer()) for _ in range(repeat)]
        row = {
            "case": case.name,
            "peer": case.peer_name,
            "target": case.target,
            "ours": [figure._asdict() for figure, _ in pairs],
            "theirs": [figure._asdict() for _, figure in pairs],
            "ratios": [a.bytes_per_s / b.bytes_per_s for a, b in pairs],
        }
        rows.append(row)
        cpu = [cpu_cost(side) for side in zip(*pairs, strict=True)]
        gb = [spread([f.bytes_per_s / 1e9 for f in side]) for side in zip(*pairs, strict=True)]
        print(
            f"{case.name:<58} {spread(row['ratios']):<20} {gb[0]:<20} {gb[1]:<20} "
            f"{', '.join(cpu):<20} {case.target}"
        )
        print(f"{'':<58} against {case.peer_name}", flush=True)
    return rows


def cpu_cost(figures: Iterable[Figure]) -> str:
    known = [figure.cpu_s_per_gb for figure in figures if figure.cpu_s_per_gb is not None]
    return f"{statistics.median(known):.3f}" if known else "not told"


def keep(rows: list[dict[str, Any]]) -> None:
    folder = Path("results/bench")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.write_text(
        json.dumps({"host": host.fingerprint(), "load": os.getloadavg(), "rows": rows}, indent=1),
        encoding="utf-8",
    )
    print(f"every repetition: {path}")


if __name__ == "__main__":
    sys.exit(main())
