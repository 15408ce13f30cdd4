"""Jobs of torchrun that end early: a host is killed in each phase, or the user gives up.

The hosts are network namespaces, so whoever is left on a host is seen, whichever process started
it. Nothing is measured here; but torchrun takes so long that only ``make oracles`` runs these.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.record.run import RunRecord, load_run
from tests.oracle.test_hosts_oracle import PLAIN, make
from tests.processes import wait_until
from tests.servers.namespaces import Hosts, Job, hosts

LONG = ("--repeat", "1", "--set", "loader.workers=1")
ENDLESS = ("--calibration", "0s", "--no-ablations", "--set", "epochs=1000000")
STEPS = ("--set", "accelerator.kind=emulated", "--set", "accelerator.step_time=20ms")
SAVES = ("--checkpoint", "llama3-8b", "--checkpoint-scale", "1/8192", "--checkpoint-every", "2")

PHASES = {
    "meeting": ("--calibration", "0s", "--join-within", "20s"),
    "calibration": ("--calibration", "60s"),
    "ablations": (*STEPS, "--calibration", "0.3s", "--set", "epochs=60"),
    "epoch": ENDLESS,
    "saves": (*ENDLESS, *SAVES),
    "search": (*STEPS, "--calibration", "0s", "--no-ablations", "--find-max"),
}
"""Words with which a run stays in its phase until it is ended."""

TOLD = {"ablations": ", without ", "search": "trying "}
"""What the first host says in its phase; in the others, its ranks have begun."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Hosts]:
    make(tmp_path / "data", samples=80)
    with hosts(2, tmp_path) as found:
        yield found


def begun(net: Hosts, folder: Path, phase: str) -> Job:
    """A job in this phase. In the first one, its processes have only begun."""
    words = ("run", "demo", "--data", folder / "data", "--results", folder / "r", *LONG, *PLAIN)
    to = ("--checkpoint-to", folder / "ckpt") if phase == "saves" else ()
    job = net.torchrun(*words, *PHASES[phase], *to)
    if phase == "meeting":
        wait_until(lambda: all(each.iobench() for each in job.launched), "iobench did not begin")
    elif told := TOLD.get(phase):
        wait_until(lambda: told in job.launched[0].err.read_text(), f"nobody said{told}")
    elif phase == "saves":  # the first ones are saved alone, and have small numbers
        steps = folder / "ckpt"
        wait_until(lambda: any(steps.glob("*1000*")), "no checkpoint was saved between steps")
    else:
        wait_until(lambda: all(ranks_of(each.iobench()) for each in job.launched), "no rank began")
    return job


def ranks_of(processes: list[int]) -> list[int]:
    """The children of iobench on one host."""
    found = []
    for pid in processes:
        try:
            found += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
    return [int(each) for each in found]


def record(folder: Path) -> RunRecord | None:
    """That of the first host; another one may keep its own part of the run."""
    runs = (folder / "r").glob("*/run.json")
    found = [path for path in runs if "-host-" not in path.parent.name]
    assert len(found) <= 1
    return load_run(found[0].parent) if found else None


def check_failed(net: Hosts, folder: Path, job: Job, name: str) -> None:
    """The job has failed, somebody names the host, and nobody is left on any host."""
    ended = job.wait()
    assert all(each.code for each in ended)
    assert any(name in each.err for each in ended), [each.err[-1500:] for each in ended]
    wait_until(lambda: not net.left(), "processes are left on a host")
    doc = record(folder)
    assert doc is None or (doc.status, name in doc.error) == ("failed", True)


@pytest.mark.parametrize("phase", list(PHASES))
def test_iobench_is_killed_on_one_host(net: Hosts, tmp_path: Path, phase: str) -> None:
    job = begun(net, tmp_path, phase)
    os.kill(job.launched[1].iobench()[0], signal.SIGKILL)
    check_failed(net, tmp_path, job, "number 1" if phase == "meeting" else "host 1 (h1)")


def check_interrupted(net: Hosts, folder: Path, job: Job) -> None:
    ended = job.wait()
    assert all(each.code for each in ended)
    wait_until(lambda: not net.left(), "processes are left on a host")
    doc = record(folder)
    assert doc.status == "interrupted", [each.err[-1500:] for each in ended]


@pytest.mark.parametrize("where", [0, 1])
def test_torchrun_is_killed_on_one_host(net: Hosts, tmp_path: Path, where: int) -> None:
    """It can't end its iobench any more, which ends on its own, as with Ctrl-C."""
    job = begun(net, tmp_path, "epoch")
    os.kill(job.launched[where].process.pid, signal.SIGKILL)
    check_interrupted(net, tmp_path, job)


@pytest.mark.parametrize("where", [0, 1])
def test_ctrl_c_at_one_torchrun_ends_all(net: Hosts, tmp_path: Path, where: int) -> None:
    job = begun(net, tmp_path, "epoch")
    os.kill(job.launched[where].process.pid, signal.SIGINT)
    check_interrupted(net, tmp_path, job)
