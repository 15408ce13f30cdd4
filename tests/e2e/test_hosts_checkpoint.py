"""Checkpoints over several hosts, which here are processes of this machine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from iobench.checkpoint.catalog import CheckpointRoot
from iobench.record.run import CheckpointRecord
from tests.hosts import ended, job, record_of
from tests.processes import Command, in_process, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

WORDS = ("checkpoint", "llama3-8b", "--scale", "1/8192", "--quiet")


def start(tmp_path: Path, to: str, *words: object, **others: object) -> list[Command]:
    usual = [*WORDS, "--results", str(tmp_path / "r"), "--to", to]
    usual += [] if "--repeat" in words else ["--repeat", "1"]
    return job(tmp_path, *usual, *words, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("writer", "changed"), [("stream", "1"), ("dcp", "1"), ("stream", "20%"), ("dcp", "20%")]
)
def test_two_hosts_with_unequal_ranks_save_and_restore_one_checkpoint(
    tmp_path: Path, writer: str, changed: str
) -> None:
    to = tmp_path / "ckpt"
    of: dict[int, list[object]] = {0: ["--ranks-per-host", 1], 1: ["--ranks-per-host", 2]}
    words = ("--writer", writer, "--changed", changed, "--keep-data", "--details")
    found = ended(start(tmp_path, str(to), *words, of=of))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path, CheckpointRecord)
    assert [(each.first_rank, each.ranks) for each in doc.job.hosts] == [(0, 1), (1, 2)]
    assert len(doc.hosts) == 2
    (save,), (restore,) = doc.job.saves, doc.job.restores
    assert len(save.ranks) == len(restore.rank_s) == 3
    assert save.blocked_s == max(part.blocked_s for part in save.ranks)
    assert restore.verified
    assert len(restore.residencies) == 2
    latest = CheckpointRoot.open(str(to)).latest()
    whole = [] if changed == "1" else [1]
    assert [target.number for target in latest.sources()] == [*whole, save.step]
    assert {target.manifest().world for target in latest.sources()} == {3}
    assert "host 1 (" in found[0].out
    assert "Measured on 2 hosts" in found[0].out


@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_is_killed_during_a_save_leaves_no_checkpoint_that_looks_whole(
    tmp_path: Path, victim: int
) -> None:
    to = tmp_path / "ckpt"
    commands = start(tmp_path, f"throttled+{to}?bandwidth=1MB", "--ranks-per-host", 2)
    wait_until(
        lambda: any(to.glob("step-*/*.tensors*")) or any(each.ended() for each in commands),
        "no save began",
    )
    commands[victim].signal(signal.SIGKILL)
    found = ended(commands)
    assert found[victim].code == -signal.SIGKILL
    assert found[1 - victim].code == 1
    assert f"host {victim} (" in found[1 - victim].err
    root = CheckpointRoot.open(str(to))
    assert root.complete() == []
    if victim == 1:
        doc = record_of(tmp_path, CheckpointRecord)
        assert (doc.status, doc.job.saves) == ("failed", [])
        assert "host 1 (" in doc.error
    cleaned = in_process("clean", to)
    assert (cleaned[0], list(to.rglob("*"))) == (0, [])


def own_mount(at: Path) -> Callable[[], None]:
    """In a process of its own: another file system at this place, which nobody else sees."""

    def act() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x20000) != 0:  # CLONE_NEWNS, linux/sched.h
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(at)], check=True)

    return act


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_place_that_one_host_does_not_share_is_refused_by_name(tmp_path: Path) -> None:
    to = tmp_path / "ckpt"
    to.mkdir()
    found = ended(start(tmp_path, str(to), before={1: own_mount(to)}))
    assert [each.code for each in found] == [2, 2], [each.err for each in found]
    assert all("host 1 (" in each.err for each in found)
    assert all("does not see what host 0 (" in each.err for each in found)
    assert not list(to.glob("step-*"))


def test_hosts_with_other_settings_are_refused(tmp_path: Path) -> None:
    of: dict[int, list[object]] = {1: ["--set", "fsync=false"]}
    found = ended(start(tmp_path, str(tmp_path / "ckpt"), of=of))
    assert [each.code for each in found] == [2, 2]
    assert all("host 1 (" in each.err for each in found)
    assert not (tmp_path / "ckpt").exists()
