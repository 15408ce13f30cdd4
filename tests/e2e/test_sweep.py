"""Sweeps as a user runs them: points take turns, budgets hold, an interruption costs nothing, and
no data stays behind.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import StorageError
from iobench.data.generator.engine import generate
from iobench.record.run import Finding
from iobench.record.sweep import Sweep, load_sweep, parse_axis, save_sweep
from iobench.report.walk import best_command
from iobench.runner.sweeping import run as sweeping
from iobench.runner.sweeping.plan import plan_sweep, plan_walk
from iobench.runner.sweeping.trial import MeasuredTrial, Trial, measure
from iobench.settings.dataset import DatasetSpec
from iobench.settings.walk import find_walk
from tests.processes import (
    PATIENCE_S,
    completed,
    document,
    in_process,
    printed,
    refused,
    running,
    wait_until,
)
from tests.small_models import small_weights
from tests.unit.conftest import build_sweep

WORKLOAD = """
name: tiny
dataset: ./tiny-data.yaml
batch_size: 8
accelerator: {kind: "null"}
loader: {workers: 1}
"""
DATASET = (
    "{name: tiny-data, samples: 48, sample_size: {mean: 60kB}, format: tar, samples_per_shard: "
    "12}\n"
)
SWEEP = "sweep ./tiny.yaml --to data --calibration 0"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(WORKLOAD)
    (tmp_path / "tiny-data.yaml").write_text(DATASET)
    return tmp_path


def runs_of(found: dict[str, Any]) -> list[int]:
    return [len(point["runs"]) for point in found["points"]]


def test_points_take_turns_and_data_goes(home: Path) -> None:
    found = document(
        f"{SWEEP} --sweep dataset.format=tar,files --sweep loader.workers=1,2 --repeat 2"
    )
    assert found["status"] == "ok"
    points = found["points"]
    assert [point["settings"] for point in points] == [
        {"dataset.format": form, "loader.workers": workers}
        for form in ("tar", "files")
        for workers in (1, 2)
    ]
    assert found["default"] == {"dataset.format": "tar", "loader.workers": 1}
    assert runs_of(found) == [2] * 4
    assert len({point["data"] for point in points}) == 2  # workers do not change the data
    place = home / found["directory"]
    runs = {
        run: json.loads((place / run / "run.json").read_text())
        for point in points
        for run in point["runs"]
    }
    order = sorted(runs, key=lambda run: (runs[run]["created"], (place / run).stat().st_ctime_ns))
    rounds = [[point["runs"][trial] for point in points] for trial in range(2)]
    assert set(order[:4]) == set(rounds[0])
    for trial, those in enumerate(rounds):
        assert {runs[run]["job"]["repetitions"][0]["seed"] for run in those} == {42 + trial}
    for point in points:
        job = runs[point["runs"][0]]["job"]
        assert job["workload"]["loader"]["workers"] == point["settings"]["loader.workers"]
        assert job["dataset"]["spec"]["format"] == point["settings"]["dataset.format"]
        assert job["repetitions"][0]["samples"] == 48
    assert list((home / "data").rglob("*")) == []


@pytest.mark.parametrize(
    ("axes", "one_at_a_time", "points", "left_out"),
    [
        # Two ways to write one setting.
        ("reader.block_size=4MiB,4194304 reader.crop=147KiB,4kB", False, 2, 2),
        ("reader.block_size=4MiB,4194304 reader.crop=147KiB,4kB", True, 2, 2),
        # Files have no shards to cut; and today's settings, which are none of these.
        ("dataset.format=tar,files dataset.shard_size=200kB,400kB", False, 4, 2),
        ("loader.workers=1,2 reader.concurrency=2,4", True, 3, 0),
        # An option that the workload does not set.
        ("storage.client=boto3,obstore", False, 3, 1),
    ],
)
def test_equal_points_are_one_and_todays_settings_are_the_first(
    axes: str, one_at_a_time: bool, points: int, left_out: int
) -> None:
    asked = build_sweep(axes=dict(map(parse_axis, axes.split())))
    planned = plan_sweep(asked, one_at_a_time=one_at_a_time)
    assert len(planned.points) == points
    assert len(planned.left_out) == left_out
    assert planned.points[0].settings == planned.default


def test_the_byte_budget_holds(home: Path) -> None:
    found = document(f"{SWEEP} --sweep dataset.samples=40,48,400 --repeat 1 --data-budget 4MB")
    counts = {point["settings"]["dataset.samples"]: len(point["runs"]) for point in found["points"]}
    assert counts == {40: 1, 48: 1, 400: 0}
    text = " ".join(found["left_out"])
    assert "--data-budget" in text
    assert "samples=400" in text


def test_interrupted_and_resumed(home: Path) -> None:
    def begun() -> bool:
        return any(point.runs for each in found() for point in load_sweep(each).points)

    def found() -> list[Path]:
        return [path.parent for path in (home / "results").glob("sweep-*/sweep.json")]

    def wait_after_a_trial() -> None:
        waits = iter([PATIENCE_S])

        def saved(directory: Path, sweep: Sweep) -> None:
            # Ctrl-C may come while the file is written: the sweep then saves once more, at once.
            wait_s = next(waits, 0) if any(point.runs for point in sweep.points) else 0
            save_sweep(directory, sweep)
            time.sleep(wait_s)

        sweeping.save_sweep = saved  # type: ignore[attr-defined]

    asked = f"{SWEEP} --sweep loader.workers=1,2 --repeat 3"
    with running(asked, folder=home, before=wait_after_a_trial) as process:
        wait_until(begun, "no run of the sweep ended")
        process.signal(signal.SIGINT)
        ended = process.wait()
    assert ended.code == 130
    assert "--resume" in ended.err
    assert "Traceback" not in ended.err
    (directory,) = found()
    before = load_sweep(directory)
    assert before.status == "interrupted"
    after = document(f"sweep --resume {directory}")
    assert after["status"] == "ok"
    # A neighbour can slow one point so much that the sweep drops it, which it says.
    assert all(len(point["runs"]) == 3 or point["dropped"] for point in after["points"])
    assert runs_of(after)[0] == 3  # today's settings are never dropped
    for point, kept in zip(after["points"], before.points, strict=True):
        assert point["runs"][: len(kept.runs)] == kept.runs
    assert list((home / "data").rglob("*")) == []


def test_data_that_an_interruption_leaves_unfinished_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    def begin(*given: Any, **more: Any) -> Any:
        return generate(*given, **more | {"progress": stop})

    monkeypatch.setattr(sweeping, "generate", begin)
    code, out, err = in_process(*shlex.split(f"{SWEEP} --sweep loader.workers=1,2 --repeat 1"))
    assert (code, out) == (130, "")
    remove = shlex.split(err.splitlines()[-1].rpartition("its unfinished data: iobench ")[2])
    assert in_process(*remove)[0] == 0
    assert list((home / "data").iterdir()) == []


def test_a_point_whose_data_could_not_be_generated_is_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of it is named, and continued. Another point is not concerned."""

    def full(done: int, total: int) -> None:
        raise StorageError("No space left on device")

    def begin(spec: DatasetSpec, *given: Any, **more: Any) -> Any:
        return generate(spec, *given, **more | ({"progress": full} if spec.format == "tar" else {}))

    with monkeypatch.context() as patched:
        patched.setattr(sweeping, "generate", begin)
        found = document(f"{SWEEP} --sweep dataset.format=tar,files --repeat 1")
    assert runs_of(found) == [0, 1]
    told, _, remove = found["points"][0]["failed"].rpartition("remove its unfinished data: iobench")
    assert "No space left on device" in told
    assert in_process(*shlex.split(remove), "--dry-run")[0] == 0
    again = document(f"sweep --resume {found['directory']}")
    assert [point["failed"] for point in again["points"]] == ["", ""]
    assert runs_of(again) == [1, 1]
    assert again["points"][1]["runs"] == found["points"][1]["runs"]
    assert list((home / "data").iterdir()) == []


def test_what_an_earlier_run_had_no_room_for_is_not_told_once_it_was_done(home: Path) -> None:
    late = document(f"{SWEEP} --sweep loader.workers=1,2 --repeat 1 --budget 1us", code=1)
    assert late["status"] == "out of time"
    assert sum("0 of 1 " in text for text in late["left_out"]) == 2
    done = document(f"sweep --resume {late['directory']}")
    assert (done["status"], done["left_out"]) == ("ok", [])
    assert runs_of(done) == [1, 1]
    assert not any(point["failed"] for point in done["points"])


def test_a_point_that_fails_is_named_and_the_others_go_on(home: Path) -> None:
    found = document(f"{SWEEP} --sweep loader.slot_size=4096,8MiB --set batch_size=48 --repeat 1")
    assert [bool(point["failed"]) for point in found["points"]] == [False, True, False]
    assert "slot" in found["points"][1]["failed"]
    assert runs_of(found) == [1, 0, 1]


def test_a_point_that_a_cache_served_tells_nothing(home: Path) -> None:
    """Files in memory are never cold, and O_DIRECT reads them from there."""
    memory = Path("/dev/shm") / f"iobench-{os.getpid()}-{home.name}"
    one = "--sweep loader.workers=1 --repeat 1"
    (found,) = document(f"sweep ./tiny.yaml --to {memory} --calibration 0 {one}", code=1)["points"]
    memory.rmdir()
    assert "INVALID: cache." in found["failed"]
    assert found["figures"] == []


@pytest.mark.parametrize(("bad", "figures"), [((0, 2), 3), ((1, 2), 1)])
def test_a_point_is_judged_by_its_valid_trials(
    home: Path, monkeypatch: pytest.MonkeyPatch, bad: tuple[int, ...], figures: int
) -> None:
    """``bad``: the rounds in which something else read the data; two in a row end the point."""
    tried = []

    def disturbed(trial: Trial, *more: Any) -> MeasuredTrial:
        found = measure(trial, *more)
        if trial.workload.model_dump()["loader"]["workers"] == 1:
            return found
        tried.append(trial.seed)
        if len(tried) - 1 not in bad:
            return found
        broken = Finding(rule="cache.cold-fetch", level="invalid", evidence="")
        return found._replace(document=found.document.model_copy(update={"findings": [broken]}))

    monkeypatch.setattr(sweeping, "measure", disturbed)
    monkeypatch.setattr(sweeping, "HOPELESS", 0)
    found = document(f"{SWEEP} --sweep loader.workers=1,0 --repeat 3")
    today, other = found["points"]
    assert (found["status"], len(today["figures"])) == ("ok", 3)
    assert len(set(tried)) == len(tried) == figures + len(bad)
    assert (len(other["figures"]), bool(other["failed"])) == (figures, figures < 3)


def test_the_advice_of_trials_with_a_number_of_samples_is_confirmed(home: Path) -> None:
    """Larger batches are fewer steps, which are no other work."""
    steps = "--set accelerator.kind=emulated --set accelerator.step_time=40ms --set batch_size=2"
    found = document(f"{SWEEP} --sweep batch_size=2,12 {steps} --repeat 1")
    sweep = load_sweep(home / found["directory"])
    save_sweep(home / found["directory"], sweep.model_copy(update={"samples_per_trial": 48}))
    code, out, err = in_process("sweep", "--confirm", found["directory"], "--json", "--quiet")
    assert code in (0, 4), err
    (row,) = [row for row in json.loads(out)["comparison"] if row["metric"] == "samples_per_s"]
    assert row["claim"]["better"]


def test_flags_that_nothing_would_heed_are_refused(home: Path) -> None:
    (home / "asked.yaml").write_text(SCENARIO)
    (home / "mine.yaml").write_text(WALK)
    printed("generate ./tiny-data.yaml --to data")
    asks = "sweep ./asked.yaml --data data --sweep step_time=1ms,2ms"
    assert "--accelerators is for" in refused(f"{asks} --accelerators 2")
    assert "--calibration is for" in refused(f"{asks} --calibration 1s")
    assert "--accelerators is for" in refused("ab data --workload ./asked.yaml --accelerators 2")
    assert "--time can't be used" in refused("sweep mine.yaml --data data --time 1s")
    assert not (home / "results").exists()
    walk = plan_walk(build_sweep(data_root="data"), find_walk("mine.yaml"))
    save_sweep(home, walk)
    assert "--data-budget can't be used" in refused(f"sweep --resume {home} --data-budget 1MB")


WALK = """
name: mine
workload: ./tiny.yaml
set: {loader.workers: 0}
walk:
  - {name: batch size, key: batch_size, values: [16]}
  - {name: reads in flight, key: reader.concurrency, values: [8]}
  - {name: an old one, not_measured: ended with 2.8}
"""


def test_a_walk_goes_on_where_its_time_ended(home: Path) -> None:
    """And the command of what was found best can be given."""
    (home / "mine.yaml").write_text(WALK)
    printed("generate ./tiny-data.yaml --to data")
    found = document("sweep mine.yaml --data data --repeat 1 --instance c7i.2xlarge")
    assert found["status"] == "ok"
    assert {point["data"] for point in found["points"]} == {"data"}
    steps = [row["step"] for row in found["steps"]]
    assert steps == ["baseline", "batch size", "reads in flight", "an old one"]
    assert all(row["samples_per_usd"] for row in found["steps"][:3])
    assert found["steps"][3]["not_measured"] == "ended with 2.8"
    assert (home / "data" / "manifest.json").is_file()
    place = home / found["directory"]
    assert (place / "report.html").is_file()
    cut = load_sweep(place)
    cut.points, cut.walked, cut.status = cut.points[:2], 1, "interrupted"
    last = cut.points[1]
    last.runs, last.figures, last.seconds = [], [], []
    save_sweep(place, cut)
    again = document(f"sweep --resume {place}")
    assert again["status"] == "ok"
    assert runs_of(again) == [1] * 4
    assert again["points"][0]["runs"] == found["points"][0]["runs"]
    for point in (sweep := load_sweep(place)).points:  # as if each trial had shown this
        fast = point.settings["batch_size"] == 16
        point.figures = [1000.0 + 500 * fast + trial for trial in range(4)]
    _, *best = shlex.split(best_command(sweep))
    job = document("", *best, "-n", 1, "--calibration", "0s", "--no-ablations")["job"]
    assert job["workload"]["batch_size"] == 16
    assert job["workload"]["loader"]["workers"] == 0
    assert job["dataset"]["samples"] == 48


SCENARIO = """
name: asked
dataset: ./tiny-data.yaml
limit: 20s
step_time: 1ms
cache: any
duration: 300ms
arrivals: {rate: 40}
"""


def test_requests_are_swept_over_steps_and_generated_data(home: Path) -> None:
    """Each latency holds a step, so that of 400 ms is known to be the slowest."""
    (home / "asked.yaml").write_text(SCENARIO)
    found = document(
        "sweep ./asked.yaml --to data --sweep step_time=1ms,400ms --sweep dataset.format=tar,files "
        "--repeat 1"
    )
    assert (found["status"], found["metric"]) == ("ok", "latency_p99_s")
    slow = {
        (point["settings"]["step_time"], point["settings"]["dataset.format"]): point["figures"][0]
        for point in found["points"]
    }
    assert all((figure >= 0.4) == (step == "400ms") for (step, _), figure in slow.items())
    assert found["default"] == {"step_time": "1ms", "dataset.format": "tar"}
    place = home / found["directory"]
    shown = printed(f"report {place} --format csv").splitlines()
    assert "latency_p99_s" in shown[0]
    assert "400ms" not in shown[1]  # the fastest first
    jobs = [json.loads((each / "run.json").read_text())["job"] for each in place.glob("asked-*")]
    assert {job["kind"] for job in jobs} == {"serving"}
    assert not list(home.glob("data/*"))


@pytest.mark.nightly
def test_a_rate_that_does_not_last_fails_its_point(home: Path) -> None:
    """One read of 50 ms at a time can't answer 2,000 requests/s."""
    (home / "asked.yaml").write_text(SCENARIO)
    printed("generate ./tiny-data.yaml --to ready --quiet")
    found = document(
        "sweep ./asked.yaml --data throttled+ready?latency=50ms --set reader.concurrency=1 "
        "--sweep arrivals.rate=5,2000 --set duration=1s --set limit=1s --repeat 1"
    )
    points = {point["settings"]["arrivals.rate"]: point for point in found["points"]}
    assert points[5]["figures"][0] > 0.05
    assert "serve." in points[2000]["failed"]
    assert points[2000]["figures"] == []


def test_loads_of_a_model_are_swept_over_reads_in_flight(home: Path) -> None:
    """Of reads of 30 ms, sixteen at a time are faster than one."""
    small_weights(home / "model")
    found = document(
        "sweep model-load --data throttled+model?latency=30ms --set block_size=256KiB "
        "--sweep concurrency=1,16 --repeat 2"
    )
    assert (found["status"], found["metric"]) == ("ok", "ready_s")
    figures = {point["settings"]["concurrency"]: point["figures"] for point in found["points"]}
    assert max(figures[16]) < min(figures[1])
    assert found["default"] == {"concurrency": None}
    text = printed(f"report {home / found['directory']} --format text")
    assert "concurrency=16" in text
    code = completed(*f"advise {home / found['directory']}".split())
    assert (code.returncode, code.stdout) == (2, "")
