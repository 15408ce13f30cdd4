"""Sweeps as a user runs them: points take turns, budgets hold, an interruption costs nothing, and
no data stays behind.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main
from iobench.errors import SpecError
from iobench.runner.sweeping.plan import plan_sweep
from iobench.schema.sweep import Sweep, combinations, load_sweep, parse_axis, save_sweep
from tests.processes import completed, in_process

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


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(WORKLOAD)
    (tmp_path / "tiny-data.yaml").write_text(DATASET)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "iobench.cli.main", "sweep", *words]


GIVEN = ("./tiny.yaml", "--to", "data", "--calibration", "0")


def sweep(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return completed("sweep", *GIVEN, *words, cwd=home)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_points_take_turns_and_data_goes(home: Path) -> None:
    axes = ("--sweep", "dataset.format=tar,files", "--sweep", "loader.workers=1,2")
    found = document(sweep(home, *axes, "--repeat", "2", "--json"))
    assert found["status"] == "ok"
    points = found["points"]
    assert [point["settings"] for point in points] == [
        {"dataset.format": form, "loader.workers": workers}
        for form in ("tar", "files")
        for workers in (1, 2)
    ]
    assert found["default"] == {"dataset.format": "tar", "loader.workers": 1}
    assert {len(point["runs"]) for point in points} == {2}
    assert len({point["data"] for point in points}) == 2  # workers do not change the data
    runs = {
        run: json.loads((home / found["directory"] / run / "run.json").read_text())
        for point in points
        for run in point["runs"]
    }
    order = sorted(
        runs,
        key=lambda run: (
            runs[run]["created"],
            (home / found["directory"] / run).stat().st_ctime_ns,
        ),
    )
    rounds = [
        [run for point in points for run in point["runs"][visit : visit + 1]] for visit in range(2)
    ]
    assert set(order[:4]) == set(rounds[0])
    for visit, those in enumerate(rounds):
        assert {runs[run]["job"]["repetitions"][0]["seed"] for run in those} == {42 + visit}
    for point in points:
        doc = runs[point["runs"][0]]
        assert doc["job"]["workload"]["loader"]["workers"] == point["settings"]["loader.workers"]
        assert doc["job"]["dataset"]["spec"]["format"] == point["settings"]["dataset.format"]
        assert doc["job"]["repetitions"][0]["samples"] == 48
    assert list((home / "data").rglob("*")) == []


def test_equal_points_are_one_and_it_is_said(home: Path) -> None:
    axes = ("--sweep", "dataset.format=tar,files", "--sweep", "dataset.shard_size=200kB,400kB")
    found = document(sweep(home, *axes, "--repeat", "1", "--json"))
    assert (
        len(found["points"]) == 4
    )  # files have no shards to cut; and today's settings, which are none of these
    assert len(found["left_out"]) == 2  # a point that equals another, and the added one
    assert (
        found["points"][0]["settings"]
        == found["default"]
        == {"dataset.format": "tar", "dataset.shard_size": None}
    )


def test_two_ways_to_write_todays_settings_are_one_point() -> None:
    axes = dict(
        parse_axis(text) for text in ("loader.kind=torch,iobench", "reader.crop=147KiB,4kB")
    )
    made = Sweep(
        created="", command=[], workload="demo", data_root="data", seed=1, repetitions=1,
        calibration_s=0, axes=axes,
    )  # fmt: skip
    now = {"loader.kind": "torch", "reader.crop": "147KiB"}
    for one_at_a_time in (False, True):
        planned = plan_sweep(made, one_at_a_time=one_at_a_time)
        assert len(planned.points) == 2
        assert planned.points[0].settings == planned.default
    assert plan_sweep(made, one_at_a_time=False).default == now


def test_a_storage_option_that_the_workload_does_not_set_is_swept() -> None:
    axes = dict([parse_axis("storage.client=boto3,obstore")])
    made = Sweep(
        created="", command=[], workload="demo", data_root="data", seed=1, repetitions=1,
        calibration_s=0, axes=axes,
    )  # fmt: skip
    points = plan_sweep(made, one_at_a_time=False).points
    assert [point.settings["storage.client"] for point in points] == [None, "boto3", "obstore"]


def test_one_at_a_time_keeps_todays_settings_in(home: Path) -> None:
    axes = ("--sweep", "loader.workers=1,2", "--sweep", "reader.concurrency=2,4")
    found = document(sweep(home, *axes, "--one-at-a-time", "--repeat", "1", "--json"))
    assert [tuple(point["settings"].values()) for point in found["points"]] == [
        (1, 4),
        (2, 4),
        (1, 2),
    ]
    assert found["default"] == {"loader.workers": 1, "reader.concurrency": 4}


def test_the_byte_budget_holds(home: Path) -> None:
    axes = ("--sweep", "dataset.samples=40,48,400")
    found = document(sweep(home, *axes, "--repeat", "2", "--data-budget", "4MB", "--json"))
    counts = {point["settings"]["dataset.samples"]: len(point["runs"]) for point in found["points"]}
    assert counts == {40: 2, 48: 2, 400: 0}
    text = " ".join(found["left_out"])
    assert "--data-budget" in text
    assert "samples=400" in text


def test_the_time_budget_ends_it_and_names_what_is_left_out(home: Path) -> None:
    found = document(
        sweep(
            home,
            "--sweep",
            "loader.workers=1,2",
            "--repeat",
            "500",
            "--time-budget",
            "6s",
            "--json",
        )
    )
    assert found["status"] == "out of time"
    assert 0 < len(found["points"][0]["runs"]) < 500
    assert any(" of 500 " in text for text in found["left_out"])
    assert list((home / "data").rglob("*")) == []


def test_interrupted_and_resumed(home: Path) -> None:
    words = (
        "./tiny.yaml",
        "--to",
        "data",
        "--calibration",
        "0",
        "--sweep",
        "loader.workers=1,2",
        "--repeat",
        "3",
    )
    process = subprocess.Popen(
        command(*words), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    directory = None
    deadline = time.monotonic() + 240
    while True:
        assert time.monotonic() < deadline
        directory = (
            next(iter((home / "results").glob("sweep-*")), None)
            if (home / "results").exists()
            else None
        )
        if (
            directory
            and (directory / "sweep.json").exists()
            and any(point.runs for point in load_sweep(directory).points)
        ):
            break
        time.sleep(0.05)
    assert directory is not None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    before = load_sweep(directory)
    assert before.status == "interrupted"
    kept = [list(point.runs) for point in before.points]
    done = completed("sweep", "--resume", directory, "--json", cwd=home)
    found = document(done)
    assert found["status"] == "ok"
    # A neighbour can slow one point so much that the sweep drops it, which it says.
    assert all(len(point["runs"]) == 3 or point["dropped"] for point in found["points"])
    assert len(found["points"][0]["runs"]) == 3  # today's settings are never dropped
    assert [
        point["runs"][: len(runs)] for point, runs in zip(found["points"], kept, strict=True)
    ] == kept
    assert list((home / "data").rglob("*")) == []


def test_what_an_earlier_run_had_no_room_for_is_not_told_once_it_was_done(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    axes = ["--sweep", "dataset.samples=40,48", "--repeat", "1"]
    begin = ["sweep", "./tiny.yaml", "--to", "data", "--calibration", "0", *axes, "--json"]

    def call(words: list[str], code: int) -> dict[str, Any]:
        assert main(words) == code
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    late = call([*begin, "--time-budget", "1us"], 1)
    assert sum("0 of 1 " in text for text in late["left_out"]) == 2
    big = call([*begin, "--data-budget", "2.5MB"], 0)
    assert sum("--data-budget" in text for text in big["left_out"]) == 1
    for found in (late, big):
        done = call(["sweep", "--resume", found["directory"], "--json"], 0)
        assert (done["status"], done["left_out"]) == ("ok", [])
        assert [(len(point["runs"]), point["failed"]) for point in done["points"]] == [
            (1, ""),
            (1, ""),
        ]


def test_a_point_that_fails_is_named_and_the_others_go_on(home: Path) -> None:
    found = document(
        sweep(
            home,
            "--sweep",
            "loader.slot_size=4096,8MiB",
            "--set",
            "batch_size=48",
            "--repeat",
            "1",
            "--json",
        )
    )
    today, failed, good = found["points"]
    assert "slot" in failed["failed"]
    assert [len(good["runs"]), len(today["runs"])] == [1, 1]


@pytest.mark.parametrize(
    "words",
    [
        ("--sweep", "loader.wokers=1,2"),
        ("--sweep", "dataset.formt=tar"),
        ("--sweep", "dataset.format=tar,zip"),
        ("--sweep", "loader.workers"),
        ("--sweep", "loader.workers=1,1"),
        ("--sweep", "loader.workers=1", "--sweep", "loader.workers=2"),
        ("--sweep", "loader.workers=1,2", "--repeat", "0"),
        ("--sweep", "loader.workers=1,2", "--data-budget", "1kB"),
        ("--sweep", "loader.workers=1,2", "--time-budget", "soon"),
        ("--sweep", "loader.kind=iobench,iobnch"),
        (),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_leaves_nothing(
    home: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    code, out, err = in_process("sweep", *GIVEN, *words)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    assert not (home / "data").exists()
    assert not (home / "results").exists()


def test_no_sweep_to_resume(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    code, _, err = in_process("sweep", "--resume", "nowhere")
    assert (code, err.count("\n")) == (1, 1)


def test_axes_and_their_products() -> None:
    assert parse_axis("dataset.codec=none,zstd:1") == ("dataset.codec", ["none", "zstd:1"])
    assert parse_axis("reader.direct=true,false") == ("reader.direct", [True, False])
    assert parse_axis("accelerator.kind=null,emulated") == (
        "accelerator.kind",
        ["null", "emulated"],
    )
    axes = {"a": [1, 2], "b": ["x", "y", "z"]}
    assert len(combinations(axes, one_at_a_time=False, base={})) == 6
    assert combinations(axes, one_at_a_time=True, base={"a": 2, "b": "x"}) == [
        {"a": 2, "b": "x"}, {"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 2, "b": "z"},
    ]  # fmt: skip
    with pytest.raises(SpecError):
        parse_axis("=1")


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
    (home / "mine.yaml").write_text(WALK)
    assert completed("generate", "./tiny-data.yaml", "--to", "data", "-q", cwd=home).returncode == 0
    asked = ("mine.yaml", "--data", "data", "--repeat", "1", "--json")
    found = document(completed("sweep", *asked, "--instance", "c7i.2xlarge", cwd=home))
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
    last.runs, last.samples_per_s, last.seconds = [], [], []
    save_sweep(place, cut)
    again = document(completed("sweep", "--resume", place, "--json", cwd=home))
    assert again["status"] == "ok"
    assert [len(point["runs"]) for point in again["points"]] == [1] * 4
    assert again["points"][0]["runs"] == found["points"][0]["runs"]


@pytest.mark.parametrize(
    "words",
    [
        ("mine.yaml", "--to", "d", "--data", "data"),
        ("mine.yaml", "--data", "data", "--samples", "3"),
        ("mine.yaml", "--data", "data", "--one-at-a-time"),
        ("./tiny.yaml", "--data", "data", "--sweep", "dataset.format=files"),
        ("./tiny.yaml", "--data", "data", "--sweep", "loader.workers=1,2", "--time", "3s"),
        ("./tiny.yaml", "--data", "data"),
        ("mine.yaml",),
    ],
    ids=" ".join,
)
def test_data_that_exists_is_not_generated(
    home: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "mine.yaml").write_text(WALK)
    monkeypatch.chdir(home)
    assert in_process("generate", "./tiny-data.yaml", "--to", "data", "-q")[0] == 0
    code, out, err = in_process("sweep", *words)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    assert not (home / "results").exists()
