"""Loads of a model by ``direct`` beside fio and ``load_file``, loads of the chunks of a KV cache
beside fio, and what requests cost their client.

``python -m tools.bench.serving --folder DIR`` makes 0.9 GB of weights, 0.3 GB of chunks and 30 MB
of samples in DIR, and prints rows for docs/performance.md: median [min, max] over the rounds, in
which all take turns. CPU times change less than rates do where other work runs on the cores.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from iobench.base.units import format_count
from iobench.judge.model_load import trials_of
from iobench.record.model_load import LoadTrial
from iobench.record.run import (
    KvCacheRecord,
    ModelLoadRecord,
    RunRecord,
    ServingRecord,
    load_run,
)
from iobench.storage import open_storage
from iobench.storage.base import OwnReader, ReadByThreads
from tests.servers.s3 import BUCKET, ENVIRONMENT, rclone_server
from tools.bench.sides import MIB

WEIGHTS = ("qwen3-0.6b-weights", "--layers", "10")
RATE = 5_000
"""Requests/s at which the client's CPU time is measured."""


def row(what: str, unit: str, values: Sequence[float], target: str) -> str:
    low, middle, high = (format_count(each(values)) for each in (min, median, max))
    return f"| {what} | {middle} [{low}, {high}] {unit} | {target} |"


def ran(words: Sequence[object], results: Path) -> RunRecord:
    """The record of a command. Raises CalledProcessError where it failed; INVALID is no failure."""
    command = [sys.executable, "-m", "iobench", *map(str, words), "--results", str(results)]
    done = subprocess.run([*command, "--quiet"], stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 3):
        raise subprocess.CalledProcessError(done.returncode, command)
    [found] = results.iterdir()
    return load_run(found)


def of_rounds(trials: Sequence[LoadTrial]) -> dict[int, LoadTrial]:
    return {each.round: each for each in trials}


def loads(doc: ModelLoadRecord) -> Iterator[str]:
    job, size = doc.job, doc.job.bytes
    direct, eager = (of_rounds(trials_of(job, name, 1)) for name in ("direct", "eager"))
    alone = trials_of(job, "direct", 1, without="storage")
    plain = {each.round: each.bytes_per_s for each in job.plain}
    ratios = [size / each.ready_s / plain[at] for at, each in direct.items() if at in plain]
    yield row(f"`direct`, cold, over plain reads ({job.plain_how})", "x", ratios, "0.95")
    over = [eager[at].ready_s / each.ready_s for at, each in direct.items() if at in eager]
    yield row("`direct`, cold, over `load_file` (`eager`)", "x", over, "2")
    for name, trials in (("direct", direct), ("eager", eager)):
        cpu = [each.cpu_s / (size / 1e9) for each in trials.values()]
        yield row(f"`{name}`, cold", "CPU s/GB", cpu, "0.03" if name == "direct" else "-")
    tensors = [1e6 * sum(each.class_s.values()) / job.tensors for each in alone]
    yield row("`direct`, assembly of a tensor", "microseconds", tensors, "20")


def requests(doc: ServingRecord) -> Iterator[str]:
    for kind, where in (("without-storage", "in memory"), ("repetition", "on the disk")):
        shares = [one.cpu_share for one in doc.job.trials if one.kind == kind]
        each = [1e6 * share / RATE for share in shares if share is not None]
        what = f"a request for 2.5 kB {where}, at {RATE:,}/s"
        yield row(what, "microseconds of CPU", each, "50" if kind == "without-storage" else "-")


CHUNKS = {
    "layers": "1",
    "dram": "0",
    "arrivals": "{kind: constant}",
    "prompts": "{shared_tokens: 65536, new_tokens: 300, new_tokens_p90: 400}",
}
"""Each request loads the same 256 chunks of 1 MiB, and no two loads overlap."""


def chunks(doc: KvCacheRecord) -> Iterator[str]:
    job = doc.job
    each = [
        one.fetch_bytes_per_s / one.plain_bytes_per_s
        for one in job.repetitions
        if one.fetch_bytes_per_s and one.plain_bytes_per_s
    ]
    what = f"loads of chunks as {job.scenario.layout}, by {job.engine.replace('_', ' ')}"
    if each:
        yield row(f"{what}, over plain reads ({job.plain_how})", "x", each, "0.9")


def small_reads(place: Path, threads: int = 64, reads: int = 512) -> tuple[float, float]:
    """CPU seconds of a read of 115 kB within an object of an S3 server on loopback: by the client
    library, and by a connection of each thread's own.
    """
    os.environ.update(ENVIRONMENT)
    with rclone_server(place) as server:
        folder = place / "data" / BUCKET / "bench"
        folder.mkdir()
        (folder / "large").write_bytes(os.urandom(100 * MIB))
        storage = open_storage(f"s3://{BUCKET}/bench?endpoint={server.endpoint}")
        assert isinstance(storage, ReadByThreads)
        own = [storage.own_reader() for _ in range(threads)]

        def cpu_s(readers: Sequence[OwnReader]) -> float:
            def work(reader: OwnReader, seed: int) -> None:
                memory, chance = memoryview(bytearray(114_660)), random.Random(seed)
                for _ in range(reads // threads):
                    reader.read_into("large", chance.randrange(1, 99 * MIB), memory)
                    time.sleep(0.02)

            began = time.process_time()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, readers, range(threads)))
            return (time.process_time() - began) / reads

        cpu_s(own), cpu_s([storage] * threads)  # connections are open from here on
        found = cpu_s([storage] * threads), cpu_s(own)
        for one in own:
            one.close()
        storage.close()
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="on the disk to measure")
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="iobench-serving-", dir=asked.folder) as place:
        home = Path(place)
        generate = [sys.executable, "-m", "iobench", "generate"]
        for made in ((*WEIGHTS, "--to", "model"), ("bert", "--samples", "12000", "--to", "data")):
            subprocess.run([*generate, *made, "--quiet"], cwd=home, check=True, env=_here())
        words = ("load", home / "model", "--loader", "direct,eager", "--repeat", asked.repeat)
        found = ran(words, home / "loads")
        print("| work | figure | target |\n|---|---|---|")
        assert isinstance(found, ModelLoadRecord)
        print(*loads(found), sep="\n")
        serve = ("serve", "bert-server", "--data", home / "data", "--rate", RATE)
        more = ("--duration", "2s", "--repeat", asked.repeat, "--set", "cache=any")
        found = ran((*serve, *more), home / "served")
        assert isinstance(found, ServingRecord)
        print(*requests(found), sep="\n")
        settings = [word for each in CHUNKS.items() for word in ("--set", "=".join(each))]
        for layout in ("files", "extents"):
            kv = ("kv", "kv-chat-llama3-8b", "--to", home / "kv", *settings, "--rate", "2")
            more = ("--duration", "3s", "--repeat", asked.repeat, "--set", f"layout={layout}")
            found = ran((*kv, *more), home / f"kv-{layout}")
            assert isinstance(found, KvCacheRecord)
            print(*chunks(found), sep="\n")
        both = [small_reads(home / f"s3-{turn}") for turn in range(asked.repeat)]
        what = "a read of 115 kB within an object on S3, 64 threads,"
        for place_in, how in enumerate(("by the client library", "by own connections")):
            each = [1e6 * pair[place_in] for pair in both]
            print(row(f"{what} {how}", "microseconds of CPU", each, "-"))
    return 0


def _here() -> dict[str, str]:
    """The environment, in which this iobench is found from another directory."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


if __name__ == "__main__":
    sys.exit(main())
