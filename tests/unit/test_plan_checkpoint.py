"""``iobench plan MODEL``: bytes, ranks, room, and the write bandwidth that a stall budget asks
for.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import document, printed, refused


def test_room_for_two(tmp_path: Path) -> None:
    """The checkpoint before stays until the next one is complete."""
    small = document("plan llama3-8b --scale 1/4096 --to", tmp_path / "ckpt")
    assert small["needed_bytes"] == 2 * small["bytes"]
    space = os.statvfs(tmp_path)
    assert small["fits"] is (small["needed_bytes"] <= space.f_bavail * space.f_frsize)
    assert not (tmp_path / "ckpt").exists()
    assert document("plan llama3-1t")["fits"] is None
    large = document("plan llama3-1t --to", tmp_path)
    assert large["fits"] is (large["needed_bytes"] <= space.f_bavail * space.f_frsize)
    text = " ".join(printed("plan llama3-1t --to", tmp_path).split())  # a long path wraps the line
    assert ("NOT ENOUGH" in text) is not large["fits"]
    assert "1,024" in text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("llama3-45b", "llama3-405b"),
        ("llama3-8b --mtbf 0", "--mtbf"),
        ("llama3-8b --interval 0s", "--interval"),
        ("llama3-8b --stall-budget 100%", "--stall-budget"),
        ("llama3-8b --accelerators 0", "--accelerators"),
        ("llama3-8b --ranks 0", "'ranks'"),
    ],
)
def test_what_makes_no_sense_is_one_line(asked: str, words: str) -> None:
    assert words in refused(f"plan {asked}")


def test_the_rate_is_that_of_all_hosts_and_held_against_the_limit() -> None:
    base = "plan llama3-405b --stall-budget 1% --interval 30min"
    plain = document(base)
    (row,) = plain["budgets"]
    assert (row["write_bytes_per_s_of_host"], row["within_limit"]) == (None, None)
    assert plain["restore_s"] is None
    needed = row["write_bytes_per_s"]
    limits = f"--storage-write-limit {needed * 0.9:.0f} --storage-read-limit 100GB/s"
    found = document(f"{base} --hosts-writing 64 --hosts-restoring 128 {limits}")
    (told,) = found["budgets"]
    assert told["write_bytes_per_s"] == needed
    assert told["write_bytes_per_s_of_host"] == pytest.approx(needed / 64)
    assert told["within_limit"] is False
    assert found["restore_s"] == pytest.approx(2 * found["full_bytes"] / 100e9)
    assert told["waste"] > row["waste"]  # a restore was not known before, and is not free
    assert "host" in refused(f"{base} --hosts-writing 0")
    assert "--storage-read-limit" in refused(f"{base} --storage-read-limit 0GB/s")
