"""Each workload within a budget, on each storage: ``python -m tools.budget_table --budget 2min``.

For each workload of ``workloads/`` and each storage (the disk below ``--folder``, NFS and S3 by the
servers of the tests on this host), ``iobench check`` and ``iobench run --budget`` are run, and a
row says what the verdict was, how sure it is, and how long it took. The dataset of ``run`` is made
by ``iobench generate``, as large as ``--data`` says, and removed afterwards.

``--only`` and ``--storage`` choose, and may be repeated; ``--by`` chooses the verb. The NFS server
of the tests writes slowly, so that ``check`` has no time to make its data. Name another one, which
exports ``--folder``, by ``IOBENCH_NFS='nfs://HOST/{}?OPTIONS'``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iobench.base.units import parse_duration, parse_size
from iobench.data.dataset import load_dataset_spec
from iobench.record.run import load_run
from iobench.record.training import TrainingRun
from iobench.settings.base import known_specs
from iobench.settings.workload import load_workload

STORAGES = ("disk", "nfs", "s3")
VERBS = ("check", "run")
SLACK, SLACK_S = 0.1, 5.0
"""A budget is kept if it is exceeded by no more than this share, or these seconds."""

_MODEL = "cpu-training"  # trains a real model, which is not a matter of the storage


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one command told. ``answer``: the bottleneck; empty: there was no verdict."""

    workload: str
    storage: str
    verb: str
    code: int
    seconds: float
    answer: str = ""
    basis: str = ""
    gain: str = ""  # of the bottleneck, with its interval
    repetitions: int = 0
    steps: int = 0
    error: str = ""

    def kept(self, budget_s: float) -> bool:
        return self.seconds <= max((1 + SLACK) * budget_s, budget_s + SLACK_S)

    def __str__(self) -> str:
        what = f"{self.answer} ({self.basis})" if self.answer else self.error
        cells = (
            f"{self.workload:15} {self.storage:5} {self.verb:6} {self.seconds:6.1f} s",
            f"{self.repetitions:3} x {self.steps:<6}",
            f"{what} {self.gain}",
        )
        return " ".join(cells).rstrip()


@contextmanager
def served(storage: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Where a name lies on a storage, whose data is below ``folder``."""
    server = os.environ.get("IOBENCH_NFS")
    if storage == "nfs" and server:
        (folder / "data").mkdir()
        yield lambda name: server.format(folder / "data" / name)
    elif storage == "nfs":
        from tests.servers.nfs import rclone_nfs

        with rclone_nfs(folder) as nfs:
            yield nfs.url
    elif storage == "s3":
        from tests.servers.s3 import ENVIRONMENT, rclone_server

        os.environ.update(ENVIRONMENT)
        with rclone_server(folder) as s3:
            yield s3.url
    else:
        yield lambda name: str(folder / name)


def written(storage: str, folder: Path, name: str) -> Path:
    """Where the server finds what it is to deliver under a name: to write through it is slow."""
    from tests.servers.s3 import BUCKET

    return folder / {"disk": "", "nfs": "data", "s3": f"data/{BUCKET}"}[storage] / name


def measured(words: Sequence[str], results: Path) -> tuple[int, float, str, Path | None]:
    """(exit code, seconds, last line of the errors, the run directory) of a command."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "iobench", *words, "--results", str(results), "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted(results.glob("*/run.json"))
    error = done.stderr.strip().splitlines()[-1:] or [""]
    return done.returncode, time.monotonic() - began, error[0], found[-1].parent if found else None


def row_of(workload: str, storage: str, verb: str, words: Sequence[str]) -> Row:
    """Run a command, and read what its record says."""
    with tempfile.TemporaryDirectory(prefix="iobench-table-") as results:
        code, seconds, error, directory = measured(words, Path(results))
        plain = Row(
            workload=workload, storage=storage, verb=verb, code=code, seconds=seconds, error=error
        )
        if code or directory is None:
            return plain
        job = load_run(directory).job
    if not isinstance(job, TrainingRun) or job.verdict is None:
        return plain
    gain = next((each.gain for each in job.ablations if each.stage == job.verdict.bottleneck), None)
    interval = "" if gain is None or gain.low is None else f" [{gain.low:.2f}, {gain.high:.2f}]"
    return Row(
        workload=workload,
        storage=storage,
        verb=verb,
        code=code,
        seconds=seconds,
        answer=job.verdict.bottleneck,
        basis=str(job.verdict.basis),
        gain="" if gain is None else f"{gain.value:.2f} x{interval}",
        repetitions=len(job.repetitions),
        steps=min((each.steps for each in job.repetitions), default=0),
    )


def rows(
    workload: str, storage: str, verbs: Sequence[str], folder: Path, *, budget: str, data: int
) -> Iterator[Row]:
    """The rows of one workload on one storage."""
    with served(storage, folder) as url:
        if "check" in verbs:
            place = url("checked")
            if storage != "s3":
                (folder / "data" if storage == "nfs" else folder).joinpath("checked").mkdir()
            words = ["check", place, "--workload", workload, "--budget", budget]
            yield row_of(workload, storage, "check", words)
        if "run" not in verbs:
            return
        spec = load_workload(workload)
        dataset = load_dataset_spec(spec.dataset)
        most = max(2 * spec.batch_size, int(data / dataset.sample_size.mean_bytes))
        name = f"data-{workload}"
        place, made_in = url(name), str(written(storage, folder, name))
        words = ["generate", dataset.name, "--to", made_in, "--samples", str(most), "--quiet"]
        made = subprocess.run(
            [sys.executable, "-m", "iobench", *words], capture_output=True, text=True, check=False
        )
        if made.returncode:
            error = made.stderr.strip()
            yield Row(
                workload=workload,
                storage=storage,
                verb="run",
                code=made.returncode,
                seconds=0.0,
                error=error,
            )
        else:
            yield row_of(
                workload, storage, "run", ["run", workload, "--data", place, "--budget", budget]
            )
        subprocess.run(
            [sys.executable, "-m", "iobench", "clean", made_in, "--quiet"],
            capture_output=True,
            check=False,
        )


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; exit with 1 if a row has no answer, or did not keep its budget."""
    usual = sorted(set(known_specs("workload")) - {_MODEL})
    parser = argparse.ArgumentParser(description="Each workload within a budget, on each storage.")
    parser.add_argument("--only", action="append", choices=usual, metavar="WORKLOAD")
    parser.add_argument("--storage", action="append", choices=STORAGES)
    parser.add_argument("--by", action="append", choices=VERBS)
    parser.add_argument("--budget", default="2min", metavar="TIME")
    parser.add_argument("--data", default="4GiB", metavar="SIZE", help="data of a run")
    parser.add_argument("--folder", type=Path, help="where the data lies (default: a new one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows in this file, too")
    args = parser.parse_args(words)
    budget_s, kept = parse_duration(args.budget), []
    with tempfile.TemporaryDirectory(prefix="iobench-table-", dir=args.folder) as folder:
        for storage in args.storage or STORAGES:
            for workload in args.only or usual:
                place = Path(folder) / f"{storage}-{workload}"
                place.mkdir()
                verbs = args.by or VERBS
                size = parse_size(args.data)
                for row in rows(workload, storage, verbs, place, budget=args.budget, data=size):
                    late = "" if row.kept(budget_s) else "  LATE"
                    print(f"{row}{late}", flush=True)
                    kept.append(row)
                    if args.json is not None:
                        args.json.write_text(json.dumps([vars(each) for each in kept], indent=1))
    answered = all(row.answer not in ("", "undecided") and row.kept(budget_s) for row in kept)
    return 0 if answered else 1


if __name__ == "__main__":
    raise SystemExit(main())
