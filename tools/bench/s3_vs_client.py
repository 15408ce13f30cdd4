"""S3 reads against the plain client library, interleaved A B A B in one run:
``python -m tools.bench.s3_vs_client [--case NAME]``.

A real S3 server (rclone) on loopback, from the page cache. Both sides get the same objects with the
same number of requests in flight, in one process. The server shares the cores, so that bandwidths
are its own limit: what counts are requests for small objects and the client's CPU for large ones.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import S3Store

from iobench.base import buffers
from iobench.load.engines.base import Extent, ReadEngine
from iobench.load.engines.event_loop import EventLoopEngine
from iobench.load.engines.threads import ThreadEngine
from iobench.storage import open_storage
from iobench.storage.base import Storage
from tests.servers.s3 import ENVIRONMENT, KEY, SECRET, S3Server, rclone_server
from tools.bench.sides import MIB, SCRATCH, Case, Figure, compare, flags_of, timed


def objects(storage: Storage, count: int, size: int) -> list[str]:
    """The keys of ``count`` objects of ``size`` bytes each, made where they are not there yet."""
    keys = [f"{size}/{number:05d}" for number in range(count)]
    data = np.random.default_rng(1).bytes(size)
    there = {entry.key for entry in storage.list(f"{size}")}
    for key in keys:
        if key not in there:  # else made for another case
            with storage.create(key, size_hint=size) as sink:
                sink.write(data)
    return keys


def gets(
    server: S3Server,
    *,
    count: int,
    size: int,
    concurrency: int,
    block: int,
    name: str,
    target: str,
    engine: type[ReadEngine] = ThreadEngine,
) -> Case:
    """The read engine of a worker over S3Storage, into memory that is there, against obstore's own
    get into memory that it makes.
    """
    storage = open_storage(server.url("bench"))
    keys = objects(storage, count, size)
    reading = engine(storage, concurrency=concurrency, block_size=block)
    memory = buffers.private(size * concurrency).array.data

    def ours() -> Figure:
        def work() -> int:
            done = 0
            for first in range(0, count, concurrency * 8):
                extents = [
                    Extent(key, 0, size, number % concurrency * size, size)
                    for number, key in enumerate(keys[first : first + concurrency * 8])
                ]
                done += reading.read(extents, memory)
            return done

        return timed(work)

    store = S3Store(
        "iobench-tests",
        endpoint=server.endpoint,
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

        return timed(lambda: sum(pool.map(get, keys)))

    return Case(name, target, ours, peer, f"obstore.get in {concurrency} threads")


large = {"count": 8, "size": 64 * MIB, "concurrency": 4}
small = {"count": 1500, "size": 100_000, "concurrency": 16, "block": 4 * MIB}
by_loop = {"engine": EventLoopEngine, "target": "CPU 0.8 x"}

CASES: dict[str, dict[str, Any]] = {
    "large": {
        **large,
        "block": 64 * MIB,
        "name": "S3: GET of 64 MiB objects, 4 in flight",
        "target": "CPU 1.3 x",
    },
    "ranges": {
        **large,
        "block": 8 * MIB,
        "name": "S3: the same in ranges of 8 MiB",
        "target": "CPU 1.3 x",
    },
    "ranges-loop": {
        **large,
        **by_loop,
        "block": 8 * MIB,
        "name": "S3: ranges of 8 MiB by `engine=event_loop`",
    },
    "small": {**small, "name": "S3: GET of 100 kB objects, 16 in flight", "target": "0.90 x"},
    "small-loop": {**small, **by_loop, "name": "S3: the same by `engine=event_loop`"},
}
"""The parameters of ``gets`` for each case."""


def main() -> int:
    args = flags_of(__doc__, CASES).parse_args()
    os.environ.update(ENVIRONMENT)
    with (
        tempfile.TemporaryDirectory(prefix=SCRATCH, dir=args.dir) as root,
        rclone_server(Path(root)) as server,
    ):
        compare((gets(server, **CASES[name]) for name in args.case or CASES), args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
