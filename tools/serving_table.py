"""Scenarios and offline inference on each storage, with logs and without: docs/serving.md.

``python -m tools.serving_table --folder DIR``. The storages are those of tools.budget_table, so NFS
is best a server that exports DIR, named by ``IOBENCH_NFS``. The page cache of this host holds the
data of servers on it. For each scenario the largest rate is searched, and then each kind of commit
is measured at ``--log-rate``; a workload offline is run without a log and with each kind: some 8
minutes for each storage, on a host that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from iobench.base.units import format_count, format_duration, parse_size
from iobench.data.dataset import load_dataset_spec
from iobench.judge.promise import shown
from iobench.record.run import ServingRecord, TrainingRecord, load_run
from iobench.record.verdict import Estimate
from iobench.settings.scenario import load_scenario
from iobench.settings.workload import load_workload
from tools.budget_table import STORAGES, measured, served, written

SCENARIOS = ("resnet50-server", "bert-server")
WORKLOADS = ("resnet50-offline", "bert-offline")
EVERY = ("record", "group", "rotation")
COMMITS = {
    "resnet50-server": EVERY,
    "bert-server": ("group",),
    "resnet50-offline": EVERY,
    "bert-offline": ("group",),
}

HEAD = (
    *("job", "storage", "log", "rate", "p99", "the log adds to p99", "records/s", "commit, p99"),
    *("a crash loses", "objects an hour", "verdict"),
)


def _interval(found: Estimate | None) -> str:
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return format_duration(found.value)
    ends = f"[{format_duration(found.low)}, {format_duration(found.high)}]"
    return f"{format_duration(found.value)} {ends}"


def _median(doc: ServingRecord, name: str) -> float | None:
    return doc.metrics[name].median if name in doc.metrics else None


def of_requests(doc: ServingRecord, storage: str, log: str) -> tuple[str, ...]:
    """The cells of one run of serve."""
    job = doc.job
    broken = ", ".join(each.rule for each in doc.findings if each.level == "invalid")
    verdict = job.verdict.bottleneck if job.verdict is not None else doc.error or "none"

    def cell(name: str, show: object = format_count) -> str:
        value = _median(doc, name)
        if log == "none" and name.startswith("log_"):
            return ""
        return "unknown" if value is None else str(show(value))  # type: ignore[operator]

    rate = f"{format_count(job.rate)}/s" if job.rate else "none"
    if job.found is not None and job.found.low is not None:
        held = {True: "", False: ", not held when repeated", None: ", inconclusive when repeated"}
        rate += ", the largest" if job.found.high is not None else ", the largest tried"
        rate += held[job.verdict.holds if job.verdict is not None else None]
    return (
        job.scenario.name,
        storage,
        log,
        rate,
        cell("latency_p99_s", format_duration),
        _interval(job.verdict.log_adds_s if job.verdict is not None else None),
        cell("log_records_per_s"),
        cell("log_commit_p99_s", format_duration),
        cell("log_at_risk"),
        cell("log_objects_per_hour"),
        f"INVALID: {broken}" if broken else verdict,
    )


def of_offline(doc: TrainingRecord, storage: str, log: str) -> tuple[str, ...]:
    """The cells of passes over the data. What the log costs is a factor on samples/s."""
    verdict = doc.job.verdict
    rate = doc.metrics["samples_per_s"].median if "samples_per_s" in doc.metrics else 0.0
    name = doc.job.workload.name
    broken = ", ".join(each.rule for each in doc.findings if each.level == "invalid")
    told = verdict.bottleneck if verdict is not None else doc.error or "none"
    cells = [name, storage, log, f"{format_count(rate)}/s", "", "", "", "", "", ""]
    logs = [one.log for one in doc.job.repetitions if one.log is not None]
    if logs and verdict is not None:

        def cell(key: str, show: Callable[[float], str] = format_count) -> str:
            known = [each for each in (getattr(one, key) for one in logs) if each is not None]
            return show(median(known)) if len(known) == len(logs) else "unknown"

        gain = verdict.gains.get("log")
        costs = "not measured" if gain is None else f"{shown(gain)} samples/s without it"
        cells[5:] = [costs, cell("records_per_s"), cell("commit_p99_s", format_duration)]
        cells += [cell("at_risk"), cell("objects_per_hour")]
    return (*cells, f"INVALID: {broken}" if broken else told)


def run(words: Sequence[str], results: Path) -> Path | None:
    """The directory of a run; None, with a line on stderr, if there is none."""
    with tempfile.TemporaryDirectory(prefix="iobench-table-", dir=results) as place:
        code, _, error, directory = measured(words, Path(place))
        if directory is None or code not in (0, 3):
            print(f"{' '.join(words)}: {code}, {error}", file=sys.stderr)
            return None
        return directory.rename(results / directory.name)


def log_words(place: str, commit: str, *, rotate: str = "4MB") -> list[str]:
    """The flags of a log there; a file or an object ends after ``rotate`` bytes."""
    rotation = ["--set", f"log.rotate_bytes={rotate}"] if commit == "rotation" else []
    return ["--log", place, "--set", f"log.commit={commit}", *rotation]


def rows(
    name: str, storage: str, folder: Path, results: Path, *, data: int, log_rate: str, budget: str
) -> Iterator[tuple[str, ...]]:
    """The rows of a scenario or of a workload on one storage."""
    offline = name in WORKLOADS
    dataset = load_dataset_spec((load_workload if offline else load_scenario)(name).dataset)
    samples = str(max(1000, int(data / dataset.sample_size.mean_bytes)))
    with served(storage, folder) as url:
        place, made_in = url("data"), str(written(storage, folder, "data"))
        words = ["generate", dataset.name, "--to", made_in, "--samples", samples, "--quiet"]
        subprocess.run([sys.executable, "-m", "iobench", *words], check=True)
        if offline:
            for commit in ("none", *COMMITS[name]):
                asked = ["run", name, "--data", place, "--budget", budget]
                asked += [] if commit == "none" else log_words(url(f"log-{commit}"), commit)
                found = run(asked, results)
                offline_doc = load_run(found) if found is not None else None
                if isinstance(offline_doc, TrainingRecord):
                    yield of_offline(offline_doc, storage, commit)
            return
        asked = ["serve", name, "--data", place]
        search = ["--find-max", "--duration", "1500ms", "--repeat", "2"]
        found = run([*asked, *search], results)
        doc = load_run(found) if found is not None else None
        if not isinstance(doc, ServingRecord):
            return
        yield of_requests(doc, storage, "none")
        for commit in COMMITS[name]:
            log = log_words(url(f"log-{commit}"), commit, rotate="20kB")
            rate = ["--rate", log_rate, "--duration", "2s", "--repeat", "3"]
            found = run([*asked, *rate, *log], results)
            logged = load_run(found) if found is not None else None
            if isinstance(logged, ServingRecord):
                yield of_requests(logged, storage, commit)


def main(words: Sequence[str] | None = None) -> int:
    """Print the table in Markdown."""
    usual = (*SCENARIOS, *WORKLOADS)
    parser = argparse.ArgumentParser(description="Scenarios on each storage, with logs.")
    parser.add_argument("--only", action="append", choices=usual, metavar="NAME")
    parser.add_argument("--storage", action="append", choices=STORAGES)
    parser.add_argument("--log-rate", default="100", metavar="REQUESTS/S", help="with a log")
    parser.add_argument("--budget", default="30s", metavar="TIME", help="of an offline run")
    parser.add_argument("--data", default="100MB", metavar="SIZE")
    parser.add_argument("--folder", type=Path, required=True, help="where the data lies")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows in this file, too")
    args = parser.parse_args(words)
    kept: list[tuple[str, ...]] = []
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    results = args.folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    for storage in args.storage or STORAGES:
        for name in args.only or usual:
            with tempfile.TemporaryDirectory(prefix="iobench-table-", dir=args.folder) as folder:
                for row in rows(
                    name,
                    storage,
                    Path(folder),
                    results,
                    data=parse_size(args.data),
                    log_rate=args.log_rate,
                    budget=args.budget,
                ):
                    print(f"| {' | '.join(row)} |", flush=True)
                    kept.append(row)
                    if args.json is not None:
                        args.json.write_text(json.dumps(kept, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
