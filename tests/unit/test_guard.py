"""What a rank has started ends with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from iobench.base.errors import WorkerError
from iobench.runner.conductor import last_messages
from iobench.runner.crew import ForkedCrew
from iobench.runner.messages import Ended, Link
from tests.processes import wait_until


class StartsOthers:
    """Its rank starts a process that nobody ends, writes its number, and goes on for ever."""

    others_code = True

    def __init__(self, note: Path, *, dies: bool) -> None:
        self.note, self.dies = note, dies

    def run(self, link: Link) -> None:
        started = subprocess.Popen(["sleep", "1000"])
        self.note.with_suffix(".new").write_text(str(started.pid))
        self.note.with_suffix(".new").rename(self.note)
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        while not self.dies:
            time.sleep(1.0)
        link.send(Ended())


def gone(note: Path) -> bool:
    try:
        stat = Path(f"/proc/{note.read_text()}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_what_a_killed_rank_has_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(WorkerError, match="SIGKILL"):
        last_messages(ForkedCrew(1, StartsOthers(note, dies=True)), Ended)
    wait_until(lambda: gone(note), "the process goes on")


def test_it_ends_as_well_if_the_parent_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    parent = os.fork()
    if not parent:
        try:
            last_messages(ForkedCrew(1, StartsOthers(note, dies=False)), Ended)
        finally:
            os._exit(0)
    wait_until(note.exists, "no rank began")
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: gone(note), "the process goes on")
