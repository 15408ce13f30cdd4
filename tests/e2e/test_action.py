"""The GitHub Action measures, shows, keeps and decides: its steps are run as GitHub runs them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.actions import ACTION, Ended, run_action
from tests.conftest import MakeDataset
from tests.processes import in_process

HERE = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
QUICK = "--repeat 4 --calibration 0s --no-ablations --quiet --set batch_size=20"
# On a busy machine, processes that start would be most of the time of such a short run.
QUICK += " --set loader.workers=0"


def act(folder: Path, command: str, **inputs: str) -> Ended:
    """The action after its installation, in an empty folder."""
    folder.mkdir(exist_ok=True)
    named = {name.replace("_", "-"): value for name, value in inputs.items()}
    return run_action(
        folder, {"command": command, **named}, skip=("Install iobench",), variables=HERE
    )


@pytest.fixture(scope="module")
def data(make_dataset: MakeDataset) -> Path:
    return make_dataset(samples=100, sample_size={"mean": 20_000})[1]


def test_github_knows_every_key() -> None:
    words = ("-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION))
    checked = subprocess.run([sys.executable, *words], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout


def baseline(data: Path, results: Path) -> str:
    """A directory of four runs: with fewer, one more run can't be told from them."""
    command = ("run", "demo", "--data", data, *shlex.split(QUICK))
    for _ in range(4):
        assert in_process(*command, "--results", results)[0] == 0
    return str(results)


def test_a_run_is_compared_with_a_baseline(data: Path, tmp_path: Path) -> None:
    """The same again passes; behind storage that gives 1 MB a second, it fails the job."""
    before = baseline(data, tmp_path / "before")
    words = f"run demo --data '{data}' {QUICK}"
    # What other processes take meanwhile may leave it open.
    lenient = {"fail_on": "95%", "if_inconclusive": "pass"}
    again = act(tmp_path / "b", words, baseline=before, **lenient)
    assert again.code == 0, again.printed
    assert again.summary.count("### ") == 2
    words = words.replace(str(data), f"throttled+{data}?bandwidth=1MB/s")
    second = act(tmp_path / "c", words, baseline=before)
    assert second.code == 4, second.printed
    assert "WORSE" in second.summary
    assert second.outputs["exit-code"] == "4"
    assert second.kept == [second.outputs["run"]]
    assert "::error" in second.printed


def test_a_run_is_shown_and_kept_and_its_threshold_decides(data: Path, tmp_path: Path) -> None:
    words = f"run demo --data '{data}' {QUICK} --fail-on 'samples_per_s>0'"
    ended = act(tmp_path / "a", words)
    assert ended.code == 4, ended.printed
    assert json.loads((Path(ended.outputs["run"]) / "run.json").read_text())["status"] == "ok"
    assert ended.kept == [ended.outputs["run"]]
    assert ended.summary.startswith("### ")


def test_a_command_that_is_wrong_fails_and_runs_nothing_else(tmp_path: Path) -> None:
    ended = act(tmp_path / "a", "run demo --data $(touch harm) ; touch harm")
    assert ended.code == 2
    assert ended.kept == []
    assert sorted(os.listdir(tmp_path / "a")) == sorted(
        name for name in os.listdir(tmp_path / "a") if name.startswith(("runner-", "iobench-"))
    )
