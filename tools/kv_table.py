"""KV caches on each storage, with one layer of each model: see docs/kv-cache.md.

``python -m tools.kv_table --folder DIR``. The storages are those of tools.budget_table, so NFS and
S3 are servers on this machine, which their page cache may serve.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from iobench.base.units import format_count, format_percent, format_rate
from iobench.judge.kv import factor_text
from iobench.record.run import KvCacheRecord, load_run
from iobench.record.serving import KvTraffic
from tools.budget_table import STORAGES, served
from tools.serving_table import run

SECONDS = {"kv-chat-llama3-8b": 5, "kv-agent-llama3-70b": 3, "kv-deepseek-v3": 5}
"""Length of a window, whose chunks have less than 1 GB."""

BUDGET = "85s"
"""For each row, so that all nine take less than 15 minutes: fewer repetitions where it is short."""

HEAD = (
    *("scenario", "storage", "worth it", "a load is", "from tokens", "load", "break-even"),
    *("repetitions", "of plain reads", "in memory", "on storage", "accelerators freed"),
    *("needed without it", "INVALID by"),
)


def _cells(doc: KvCacheRecord, storage: str) -> tuple[str, ...]:
    job, verdict = doc.job, doc.job.verdict
    if verdict is None:
        return (job.scenario.name, storage, doc.error)

    def of_traffic(of: Callable[[KvTraffic], float]) -> float:
        return median(of(one.traffic) for one in job.repetitions if one.traffic is not None)

    even, load, freed = verdict.break_even_bytes_per_s, verdict.load_bytes_per_s, verdict.freed
    low, high = verdict.crossover or (0, 0)
    return (
        job.scenario.name,
        storage,
        {True: "yes", False: "no", None: "inconclusive"}[verdict.worth],
        f"{factor_text(verdict.factor)} as fast" if verdict.factor else "",
        f"{low:,} to {high:,}" if verdict.crossover else "none up to 131,072",
        format_rate(load.value) if load else "",
        format_rate(even.value) if even else "",
        str(len(job.repetitions)),
        format_percent(verdict.of_plain.value) if verdict.of_plain else "",
        format_percent(of_traffic(lambda each: each.memory_tokens / each.prompt_tokens)),
        format_percent(of_traffic(lambda each: each.loaded_tokens / each.prompt_tokens)),
        format_count(freed.value) if freed else "",
        format_count(of_traffic(lambda each: each.accelerators_without_storage)),
        ", ".join(each.rule for each in doc.findings if each.level == "invalid"),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description="KV caches on each storage.")
    parser.add_argument("--only", action="append", choices=tuple(SECONDS), metavar="NAME")
    parser.add_argument("--storage", action="append", choices=STORAGES)
    parser.add_argument("--repeat", default="3", metavar="N")
    parser.add_argument("--budget", default=BUDGET, metavar="TIME", help="for each row")
    parser.add_argument("--folder", type=Path, required=True, help="where the chunks lie")
    args = parser.parse_args(words)
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    results = args.folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    for storage in args.storage or STORAGES:
        for name in args.only or SECONDS:
            with (
                tempfile.TemporaryDirectory(prefix="iobench-table-", dir=args.folder) as folder,
                served(storage, Path(folder)) as url,
            ):
                asked = ["kv", name, "--to", url("kv")]
                asked += ["--set", "layers=1", "--set", "tensor_parallel=1"]
                window = ["--duration", f"{SECONDS[name]}s", "--repeat", args.repeat]
                window += ["--budget", args.budget]
                found = run([*asked, *window], results)
                doc = load_run(found) if found is not None else None
            if isinstance(doc, KvCacheRecord):
                print(f"| {' | '.join(_cells(doc, storage))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
