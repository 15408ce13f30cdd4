"""S3 reads against the plain client library, interleaved A B A B in one run:
``python tests/bench/s3_vs_client.py [--case NAME]``.

A real S3 server (rclone) on loopback, from the page cache. Both sides get the same objects with the
same number of requests in flight, in one process. The server shares the cores, so that bandwidths
are its own limit: what counts are requests for small objects and the client's CPU for large ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from storage import MIB, Case, Figure, compare, keep

from iobench import buffers
from iobench.load.engine import Extent, ReadEngine
from iobench.load.event_loop import EventLoopEngine
from iobench.storage import open_storage

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.servers.s3 import ENVIRONMENT, KEY, SECRET, S3Server, rclone_server


class Objects:
    """``count`` objects of ``size`` bytes each, below a prefix of their own."""

    def __init__(self, server: S3Server, name: str, count: int, size: int) -> None:
        self.server, self.size = server, size
        self.keys = [f"{name}/{number:05d}" for number in range(count)]
        self.url = server.url("bench")
        storage = open_storage(self.url)
        data = np.random.default_rng(1).bytes(size)
        there = {entry.key for entry in storage.list(name)}
        for key in self.keys:
            if key in there:
                continue  # made for another case
            with storage.create(key, size_hint=size) as sink:
                sink.write(data)
        storage.close()


def _timed(work: Callable[[], int]) -> Figure:
    started, cpu = time.perf_counter(), time.process_time()
    done = work()
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Figure(done / wall, cpu / (done / 1e9))


def gets(
    objects: Objects,
    *,
    concurrency: int,
    block: int,
    name: str,
    target: str,
    engine: type[ReadEngine] = ReadEngine,
) -> Case:
    """The read engine of a worker over S3Storage, into memory that is there, against obstore's own
    get into memory that it makes.
    """
    storage = open_storage(objects.url)
    reading = engine(storage, concurrency=concurrency, block_size=block)
    memory = buffers.private(objects.size * concurrency).array.data

    def ours() -> Figure:
        def work() -> int:
            done = 0
            for first in range(0, len(objects.keys), concurrency * 8):
                keys = objects.keys[first : first + concurrency * 8]
                extents = [
                    Extent(key, 0, objects.size, n % concurrency * objects.size, objects.size)
                    for n, key in enumerate(keys)
                ]
                done += reading.read(extents, memory)
            return done

        return _timed(work)

    import obstore
    from obstore.store import S3Store

    store = S3Store(
        "iobench-tests",
        endpoint=objects.server.endpoint,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    pool = ThreadPoolExecutor(concurrency)

    def peer() -> Figure:
        def get(key: str) -> int:
            return len(obstore.get(store, f"bench/{key}").bytes())

        return _timed(lambda: sum(pool.map(get, objects.keys)))

    return Case(name, target, ours, peer, f"obstore.get in {concurrency} threads")


def large(server: S3Server, block: int, name: str) -> Case:
    return gets(
        Objects(server, "large", 8, 64 * MIB),
        concurrency=4,
        block=block,
        name=name,
        target="CPU 1.3 x",
    )


def small(server: S3Server) -> Case:
    return gets(
        Objects(server, "small", 1500, 100_000),
        concurrency=16,
        block=4 * MIB,
        name="S3: GET of 100 kB objects, 16 in flight",
        target="0.90 x",
    )


def small_loop(server: S3Server) -> Case:
    return gets(
        Objects(server, "small", 1500, 100_000),
        concurrency=16,
        block=4 * MIB,
        name="S3: the same by `engine=event_loop`",
        target="CPU 0.8 x",
        engine=EventLoopEngine,
    )


def ranges_loop(server: S3Server) -> Case:
    return gets(
        Objects(server, "large", 8, 64 * MIB),
        concurrency=4,
        block=8 * MIB,
        name="S3: ranges of 8 MiB by `engine=event_loop`",
        target="CPU 0.8 x",
        engine=EventLoopEngine,
    )


CASES: dict[str, Callable[[S3Server], Case]] = {
    "large": lambda server: large(server, 64 * MIB, "S3: GET of 64 MiB objects, 4 in flight"),
    "ranges": lambda server: large(server, 8 * MIB, "S3: the same in ranges of 8 MiB"),
    "ranges-loop": ranges_loop,
    "small": small,
    "small-loop": small_loop,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case", action="append", choices=sorted(CASES), help="only these; repeatable"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--dir", type=Path, default=Path("."), help="a directory for the server's data"
    )
    args = parser.parse_args()
    import os

    os.environ.update(ENVIRONMENT)
    with (
        tempfile.TemporaryDirectory(prefix=".iobench-bench-", dir=args.dir) as root,
        rclone_server(Path(root)) as server,
    ):
        rows = compare((CASES[name](server) for name in args.case or CASES), args.repeat)
    keep(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
