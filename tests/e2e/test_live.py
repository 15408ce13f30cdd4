"""The progress on a terminal, as an emulator of one draws it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import Emulator

SHOWS = """
import sys, time
from iobench.cli import terminal
from iobench.cli.live import Live
from iobench.runner.counters import Counters

terminal.prepare_streams()
counters = Counters(2)
print("before")
live = Live(quiet="--quiet" in sys.argv)
live.expect(500)

def phase(title):
    live.phase(title)
    live.watch(counters)

def step(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        for rank, took in enumerate((2, 3)):
            counters.add(rank, read=1 << 20, busy_ns=1, wall_ns=took, sync_ns=0, retries=0)

def wait():  # for a key
    while not sys.stdin.readline():
        pass
"""


def shown(script: str, *words: str, columns: int = 80, rows: int = 24, **env: str) -> Emulator:
    return Emulator(["-c", SHOWS + script, *words], columns=columns, rows=rows, **env)


@pytest.mark.parametrize(
    "columns",
    [pytest.param(20, marks=pytest.mark.nightly), pytest.param(34, marks=pytest.mark.nightly), 80],
)
def test_the_lines_are_drawn_in_place_and_removed(columns: int) -> None:
    """Also where they reach the end of the terminal, and what was there before scrolls away."""
    title = (
        "repetition 1 of 6, with a long title of wide 漢字漢字漢字漢字漢字漢字漢字漢字漢字 letters"
    )
    script = f"""
for number in range(20): print("line", number)
phase({title!r})
step(1)
terminal.warn("something happened")
step(1)
terminal.note("a note")
print("a library's own", file=sys.stderr)
step(1)
live.close()
print("after")
"""
    terminal = shown(script, columns=columns, rows=12)
    blocks = {"▇", "█"} if columns > 50 else set()
    seen = terminal.until(
        lambda text: "data" in text.partition("happened")[2] and (not blocks or blocks & {*text})
    )
    assert "repetition 1 of 6" in seen
    assert seen.count("passed") == 1
    assert bool({"▇", "█"} & {*seen}) == (columns > 50)
    assert terminal.end() == 0
    lines = terminal.lines()
    told = "iobench: something happened"
    folded = [told] if columns > 30 else ["iobench: something", "  happened"]
    numbers = [f"line {number}" for number in range(20)]
    assert lines == ["before", *numbers, *folded, "a note", "a library's own", "after"]
    assert terminal.screen.cursor.x == 0


@pytest.mark.nightly
def test_the_lines_tell_how_the_run_goes() -> None:
    terminal = shown("phase('measuring'); step(60)")
    seen = terminal.until(lambda text: "slowest" in text and "█" in text and "left" in text)
    for part in ("measuring", "about 8 min", "MB/s", "% busy", "slowest rank 1: 1.20 x"):
        assert part in seen
    assert terminal.screen.cursor.x == 0
    assert terminal.screen.display[terminal.screen.cursor.y].strip() == ""
    terminal.press(b"\x03")
    assert terminal.end() != 0


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        pytest.param((), {"TERM": "dumb"}, id="dumb"),
        pytest.param((), {"TERM": ""}, id="no TERM", marks=pytest.mark.nightly),
        pytest.param(("--quiet",), {}, id="quiet", marks=pytest.mark.nightly),
    ],
)
def test_where_nothing_is_drawn(words: tuple[str, ...], environment: dict[str, str]) -> None:
    terminal = shown("phase('measuring'); step(1); live.close()", *words, **environment)
    assert terminal.end() == 0
    assert terminal.data == b"before\r\n"


@pytest.mark.nightly
def test_lines_of_forked_processes_stay() -> None:
    script = """
import os
phase('measuring')
step(2)
for number in range(3):
    child = os.fork()
    if not child:
        sys.stderr.write(f"the first line of {number}\\nthe second\\n")
        os._exit(0)
    os.waitpid(child, 0)
    step(1)
live.close()
print("after")
"""
    terminal = shown(script)
    assert terminal.end() == 0
    told = [line for number in range(3) for line in (f"the first line of {number}", "the second")]
    assert terminal.lines() == ["before", *told, "after"]


@pytest.mark.nightly
def test_a_stopped_terminal_stops_nothing(tmp_path: Path) -> None:
    """After Ctrl-S, the work goes on; what is told then comes after Ctrl-Q."""
    script = """
from pathlib import Path
phase('measuring')
wait()
step(3)
Path(sys.argv[1]).touch()
for number in range(300):
    terminal.note(f"note {number} " + "x" * 60)
wait()
live.close()
print("after")
"""
    terminal = shown(script, str(tmp_path / "done"))
    terminal.until(lambda text: "measuring" in text)
    terminal.press(b"\x13")  # Ctrl-S
    terminal.press(b"\n")
    stopped = threading.Event()
    for _ in range(600):
        if (tmp_path / "done").exists():
            break
        stopped.wait(0.2)
    assert (tmp_path / "done").exists()
    assert not any(f"note {number} " in terminal.text() for number in range(300))
    terminal.press(b"\x11")  # Ctrl-Q
    terminal.press(b"\n")
    assert terminal.end() == 0
    notes = [line.split()[1] for line in terminal.lines() if line.startswith("note ")]
    assert notes == [str(number) for number in range(300)]
    assert terminal.lines()[-1] == "after"


@pytest.mark.nightly
def test_ctrl_c_in_a_run_leaves_nothing(make_dataset: Any, tmp_path: Path) -> None:
    _, dataset = make_dataset()
    words = ["run", "demo", "--data", f"throttled+{dataset}?bandwidth=100kB"]
    words += ["--calibration", "0s", "--no-ablations", "--set", "batch_size=4"]
    words += ["--results", str(tmp_path)]
    terminal = Emulator(["-m", "iobench", *words])
    terminal.until(lambda text: "repetition 1 of 6" in text and "busy" in text)
    terminal.press(b"\x03")
    assert terminal.end() == 128 + signal.SIGINT
    (record,) = tmp_path.iterdir()
    told = "".join(terminal.text().split())
    assert told.endswith(record.name)
    assert "passed" not in terminal.text()
    assert "Traceback" not in terminal.text()
