"""The GitHub Action measures, shows, keeps and decides: its steps are run as GitHub runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.actions import ACTION, Ended, run_action
from tests.conftest import MakeDataset

HERE = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
QUICK = "--repeat 4 --calibration 0s --no-ablations --quiet"


def act(folder: Path, command: str, **inputs: str) -> Ended:
    """The action after its installation, in an empty folder."""
    folder.mkdir(exist_ok=True)
    named = {name.replace("_", "-"): value for name, value in inputs.items()}
    return run_action(
        folder, {"command": command, **named}, skip=("Install iobench",), variables=HERE
    )


@pytest.fixture(scope="module")
def data(make_dataset: MakeDataset) -> Path:
    return make_dataset(samples=200, sample_size={"mean": 20_000})[1]


def test_github_knows_every_key() -> None:
    words = ("-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION))
    checked = subprocess.run([sys.executable, *words], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_a_run_is_shown_kept_and_compared_with_itself(data: Path, tmp_path: Path) -> None:
    first = act(tmp_path / "a", f"run demo --data '{data}' --set batch_size=20 {QUICK}")
    assert first.code == 0, first.printed
    assert json.loads((Path(first.outputs["run"]) / "run.json").read_text())["status"] == "ok"
    assert first.kept == [first.outputs["run"]]
    assert first.summary.startswith("### ")
    again = act(
        *(tmp_path / "b", f"run demo --data '{data}' --set batch_size=20 {QUICK}"),
        baseline=first.outputs["run"],
        fail_on="99%",
        if_inconclusive="pass",  # a busy machine decides nothing here
    )
    assert again.code == 0, again.printed
    assert again.summary.count("### ") == 2


def test_what_became_slower_fails_the_job(data: Path, tmp_path: Path) -> None:
    """Behind storage that gives 200 reads a second, 5 ms each."""
    first = act(tmp_path / "a", f"run demo --data '{data}' --set batch_size=20 {QUICK}")
    slow = f"throttled+{data}?latency=5ms&iops=200"
    second = act(
        *(tmp_path / "b", f"run demo --data '{slow}' --set batch_size=20 {QUICK}"),
        baseline=first.outputs["run"],
    )
    assert second.code == 4, second.printed
    assert second.outputs["exit-code"] == "4"
    assert second.kept == [second.outputs["run"]]
    assert "::error" in second.printed


def test_a_threshold_of_the_command_decides(data: Path, tmp_path: Path) -> None:
    words = f"run demo --data '{data}' {QUICK} --set batch_size=20 --fail-on 'samples_per_s>0'"
    ended = act(tmp_path / "a", words)
    assert ended.code == 4, ended.printed
    assert ended.summary


def test_a_command_that_is_wrong_fails_and_runs_nothing_else(tmp_path: Path) -> None:
    ended = act(tmp_path / "a", "run demo --data $(touch harm) ; touch harm")
    assert ended.code == 2
    assert ended.kept == []
    assert sorted(os.listdir(tmp_path / "a")) == sorted(
        name for name in os.listdir(tmp_path / "a") if name.startswith(("runner-", "iobench-"))
    )
