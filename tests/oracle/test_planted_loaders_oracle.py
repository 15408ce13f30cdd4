"""A planted loader for each cause, run from the command line: the verdict names it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main
from tests.servers.faultproxy import Fault, FaultProxy
from tests.servers.s3 import BUCKET, S3Server, rclone_s3, s3_environment

pytestmark = pytest.mark.filterwarnings("ignore")

__all__ = ["rclone_s3", "s3_environment"]

PLANTED = "tests.planted_loaders"
SIZE = ("--set", "samples=512", "--set", "sample_size.mean=20kB", "--set", "format=files")

Found = tuple[Mapping[str, Any], set[str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("planted") / "data"
    assert main(["generate", "demo", "--to", str(place), *SIZE, "--quiet"]) == 0
    return place


@pytest.fixture
def measure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Found]:
    """The record's job, and the rules of its findings."""

    def call(loader: str, place: str, *flags: str) -> Found:
        where = ("--data", place, "--results", str(tmp_path), "--quiet", "--json")
        how = ("--repeat", "3", "--calibration", "1s", "--loader", f"{PLANTED}:{loader}")
        capfd.readouterr()  # what an earlier command has printed
        code = main(["run", "demo", *where, *how, *flags])
        out, err = capfd.readouterr()
        assert code in (0, 3), err
        doc = json.loads(out)
        return doc["job"], {each["rule"] for each in doc["findings"]}

    return call


@pytest.mark.parametrize(
    ("loader", "flags", "binds", "finding"),
    [
        ("of_files", ("sleep=0.004",), {"prep"}, "user.workers_wait"),
        ("of_files", ("spin=0.004",), {"prep", "cpu"}, "user.workers_are_cpu_bound"),
        ("of_files", ("spin=0.004", "workers=0"), {"prep", "cpu"}, None),
        ("one_slow_worker", (), {"prep"}, "user.out_of_order_wait"),
        ("of_generator", (), {"prep"}, "user.workers_wait"),
        ("of_generator", ("sleep=0", "spin=0.004"), {"prep"}, None),
        ("large", (), {"harness"}, None),
        ("payload", (), {"harness"}, None),
        ("slow_collate", (), {"harness"}, "user.collate_share"),
    ],
)
def test_the_verdict_names_what_was_planted(
    data: Path,
    measure: Callable[..., Found],
    loader: str,
    flags: tuple[str, ...],
    binds: set[str],
    finding: str | None,
) -> None:
    given = [part for flag in flags for part in ("--loader-args", flag)]
    job, rules = measure(loader, str(data), *given)
    assert job["verdict"]["binds"] in binds, job["verdict"]["sentence"]
    assert finding is None or finding in rules
    user = job["loader"]["user"]
    if loader in ("large", "payload"):
        assert user["hand_over_s"] > 0.5 * user["wait_s"]
    if loader == "one_slow_worker":
        assert user["out_of_order_s"] > 0.5 * user["wait_s"]
        assert "in_order=False" in job["verdict"]["advice"][0]["change"]


ALONE = ("--repeat", "1", "--calibration", "0s", "--no-knockouts")
"""Options of a run in which only the loader's trial comes before the repetition."""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("planted", ["sleep=0.004", "spin=0.004"])
def test_the_time_of_batches_is_what_the_loader_took(
    data: Path, measure: Callable[..., Found], tmp_path: Path, planted: str, workers: int
) -> None:
    """The loader keeps its own accounts: a sleep of 4 ms ends late, and reading takes time."""
    truth = tmp_path / "truth.txt"
    given = (planted, f"workers={workers}", f"truth={truth}")
    flags = [part for each in given for part in ("--loader-args", each)]
    job, _ = measure("of_files", str(data), *ALONE, *flags)
    user = job["loader"]["user"]
    # The trial comes first.
    samples = [line.split() for line in truth.read_text().splitlines()[-user["samples"] :]]
    wall, cpu = (sum(int(each[place]) for each in samples) / 1e9 for place in (0, 1))
    assert len(samples) == user["samples"] == 1024
    assert user["fetch_wall_s"] == pytest.approx(wall, rel=0.05)
    if planted.startswith("spin"):
        assert user["fetch_cpu_s"] == pytest.approx(cpu, rel=0.05)
    waits = user["fetch_wall_s"] - user["fetch_cpu_s"] - user["fetch_queued_s"]
    assert waits == pytest.approx(wall - cpu - user["fetch_queued_s"], abs=0.05 * wall)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_bytes_of_read_calls_are_those_that_strace_counts(data: Path, tmp_path: Path) -> None:
    calls = ("--seccomp-bpf", "-e", "trace=read,pread64")
    tracing = ("strace", "-f", "-ff", "-y", *calls, "-o", str(tmp_path / "trace"))
    where = ("--data", str(data), "--results", str(tmp_path), "--quiet", "--json")
    how = (*ALONE, "--set", "epochs=1", "--loader", f"{PLANTED}:of_files")
    command = [*tracing, sys.executable, "-m", "iobench", "run", "demo", *where, *how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    user = json.loads(done.stdout)["job"]["loader"]["user"]
    of_data = re.compile(rf"^\w+\(\d+<{re.escape(str(data))}/.*\.jpg>.* = (\d+)$", re.MULTILINE)
    # The one worker of the only epoch read most: the trial had only some batches.
    counted = max(
        sum(map(int, of_data.findall(trace.read_text(errors="replace"))))
        for trace in tmp_path.glob("trace.*")
    )
    assert counted == pytest.approx(512 * 20_000, rel=0.01)
    # Its queue of indices and its counters are read by calls, too.
    assert counted <= user["process_bytes"] <= 1.01 * counted


@pytest.mark.parametrize(
    ("loader", "finding"), [("of_lists", "user.dataset_copied"), ("spawned", "user.spawn_cost")]
)
def test_the_cost_of_workers_is_found(
    data: Path, measure: Callable[..., Found], loader: str, finding: str
) -> None:
    job, rules = measure(loader, str(data), "--calibration", "0s", "--no-knockouts")
    assert finding in rules, job["loader"]["user"]


def test_bytes_of_memory_maps_are_those_of_devices(
    data: Path, measure: Callable[..., Found]
) -> None:
    job, _ = measure("of_maps", str(data), "--calibration", "0s", "--no-knockouts")
    user = job["loader"]["user"]
    stored = job["dataset"]["stored_bytes"] * job["workload"]["epochs"]
    assert user["device_bytes"] >= 0.98 * stored
    assert user["process_bytes"] < 0.1 * stored


class Far(FaultProxy):
    """Each answer comes 20 ms later than the server gives it."""

    def fault(self, line: str = "") -> Fault:
        return Fault(stall_after=1, stall_s=0.02)


def test_a_reader_of_objects_waits_for_their_storage(
    rclone_s3: S3Server, s3_environment: object, measure: Callable[..., Found]
) -> None:
    """The page cache holds no objects, so storage can't be left out: the times tell."""
    assert main(["generate", "demo", "--to", rclone_s3.url("own"), *SIZE, "--quiet"]) == 0
    with Far(rclone_s3.port) as far:
        endpoint = f"http://127.0.0.1:{far.port}"
        flags = [f"endpoint={endpoint}", f"bucket={BUCKET}", "prefix=own", "count=96"]
        given = [part for flag in flags for part in ("--loader-args", flag)]
        job, rules = measure("of_objects", rclone_s3.url("own"), *given)
    assert job["verdict"]["binds"] == "storage", job["verdict"]["sentence"]
    assert "user.workers_wait" in rules
    stages = {each["stage"]: each for each in job["knock_outs"]}
    assert stages["storage"]["gain"] is None
    assert stages["storage"]["not_measured"]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_headspace_is_what_the_loader_takes(
    data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    workers: int,
) -> None:
    """A step takes as long as its batch: without workers the run could be twice as fast.

    With one, a batch is made during a step of twice its time, and nothing is to be gained.
    """
    flags = ["--data", str(data), "--results", str(tmp_path), "--quiet", "--json", "--headspace"]
    given = ["--loader-args", "sleep=0.01", "--loader-args", f"workers={workers}"]
    # For the workload's 64 samples: 80 ms for 8 of them, or 160 ms.
    step = ["--set", f"accelerator.step_time={1280 if workers else 640}ms"]
    loader = ["--loader", f"{PLANTED}:of_files", *given, *step]
    how = ["--repeat", "3", "--calibration", "4s"]
    assert main(["run", "demo", *flags, *loader, *how]) == 0
    found = json.loads(capfd.readouterr().out)["headspace"]
    assert found["value"] == pytest.approx(1.0 if workers else 2.0, rel=0.05)
