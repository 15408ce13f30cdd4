"""An oracle that fails on a busy machine is inconclusive, and wrong on a quiet one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.oracle.others import cores_of_others, cpu_now, too_busy
from tests.processes import wait_until

ORACLES = """
import pytest
from tests.oracle import others

TRIES = {
    "busy": [9, 9, 9],
    "quiet": [0, 0, 0],
    "quiet-once": [9, 0, 9],
    "right-at-last": [9, 9, None],
    "broken": [9, 9, 9],
}
pytestmark = pytest.mark.flaky(reruns=2)

def fail(name, monkeypatch):
    cores = TRIES[name].pop(0)
    monkeypatch.setattr(others, "cores_of_others", lambda since: others.CORES * cores)
    if name == "broken":
        raise TypeError
    assert cores is None

@pytest.mark.alone
@pytest.mark.parametrize("name", list(TRIES))
def test_alone(name, monkeypatch):
    fail(name, monkeypatch)

def test_beside_other_tests(monkeypatch):
    TRIES["beside"] = [9]
    fail("beside", monkeypatch)
"""


@pytest.mark.nightly
def test_only_what_others_disturbed_in_each_try_is_inconclusive(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(ORACLES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone: an oracle\n")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, "--junitxml=found.xml"]
    environment = {**os.environ, "IOBENCH_RERUNS": "2", "PYTEST_ADDOPTS": ""}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    ended = subprocess.run(
        [*command, "-p", "tests.oracle.conftest", "test_planted.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    found = {
        str(case.get("name")): [result.tag for result in case]
        for case in ElementTree.parse(tmp_path / "found.xml").iter("testcase")
    }
    assert found == {
        "test_alone[busy]": ["skipped"],
        "test_alone[quiet]": ["failure"],
        "test_alone[quiet-once]": ["failure"],
        "test_alone[right-at-last]": [],
        "test_alone[broken]": ["failure"],
        "test_beside_other_tests": ["failure"],
    }


def used_s(pid: int) -> float:
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def test_the_cpu_of_children_is_ours() -> None:
    before = cpu_now()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    wait_until(lambda: used_s(child.pid) > 0.5, "a child got no CPU")
    assert cpu_now().own_s >= before.own_s + 0.5
    child.kill()
    child.wait()


def test_a_time_too_short_to_tell_says_nothing() -> None:
    assert cores_of_others(cpu_now()) == 0.0
    assert not too_busy(0.0)
