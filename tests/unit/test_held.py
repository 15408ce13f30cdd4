"""Whether a place is still held is asked again whenever a suspension may have ended the lock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from iobench.base.errors import StorageError, TargetLostError
from iobench.checkpoint import place
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.runner.cache import Others
from iobench.storage import open_storage
from iobench.storage.base import Storage
from iobench.storage.locks import object_lock
from iobench.storage.locks.held import FRESH_S, Held, Witness
from iobench.storage.locks.holder import Holder
from iobench.storage.locks.object_lease import HEARTBEAT_S
from iobench.storage.locks.objects import LOCK
from tests.checkpoints import make_state, save


@dataclass
class Clock:
    """The clock since the boot, which goes on while a process is suspended."""

    now_s: float = 1e6

    def read(self, clock: int) -> float:
        assert clock == time.CLOCK_BOOTTIME
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "clock_gettime", made.read)
    return made


@dataclass
class Lease:
    clock: Clock
    answer_s: float = 0.0  # how long an answer takes
    ours: bool = True
    asked: int = 0

    def check(self) -> None:
        pass

    def confirm(self) -> None:
        self.asked += 1
        self.clock.now_s += self.answer_s
        if not self.ours:
            raise TargetLostError("it is another's")


def test_the_waits_fit_together() -> None:
    """A lock can be broken at the earliest when its holder has missed a heartbeat for this long,
    and whoever breaks it waits until its holder has to ask again."""
    assert FRESH_S < object_lock.WATCH_S - HEARTBEAT_S
    assert FRESH_S < object_lock.SETTLE_S


def test_it_asks_again_after_a_gap_and_not_each_time(clock: Clock) -> None:
    lease = Lease(clock)
    held = Held(lease)
    for _ in range(100):
        held()
        clock.now_s += FRESH_S / 200
    assert lease.asked == 1
    clock.now_s += FRESH_S
    lease.ours = False
    for _ in range(3):
        with pytest.raises(TargetLostError):
            held()
    assert lease.asked == 2  # what is lost stays lost


def test_an_answer_that_took_too_long_does_not_count(clock: Clock) -> None:
    """The process may have been suspended between the question and the answer."""
    lease = Lease(clock, answer_s=2 * FRESH_S)
    with pytest.raises(StorageError) as caught:
        Held(lease)()
    assert not isinstance(caught.value, TargetLostError)
    assert lease.asked > 1
    lease.answer_s = FRESH_S / 2
    Held(lease)()


@pytest.mark.parametrize("url", ["PATH", "memory://bucket/held"])
def test_who_works_in_anothers_place_notices_a_change(url: str, tmp_path: Path) -> None:
    storage: Storage = open_storage(url.replace("PATH", str(tmp_path)))
    with storage.create("marker") as sink:
        sink.write(b"x")
    witness = Witness(storage, "marker")
    witness.confirm()
    if url == "PATH":
        (tmp_path / "marker").rename(tmp_path / "other")
        (tmp_path / "marker").write_bytes(b"x")
    else:
        storage.replace(LOCK, Holder.this_process("generate").dump())  # type: ignore[attr-defined]
    with pytest.raises(TargetLostError):
        witness.confirm()
    for entry in list(storage.list()):
        storage.delete(entry.key)
    storage.close()


@pytest.mark.parametrize("url", ["PATH", "memory://bucket/held"])
def test_checkpoints_of_another_process_are_not_removed(url: str, tmp_path: Path) -> None:
    """The newest goes first. The place is lost after that."""
    root = CheckpointRoot.open(url.replace("PATH", str(tmp_path / "root")))
    root.claim()
    for number in (1, 2):
        save("stream", root, number, make_state(large=1000))
    steps = [{entry.key for entry in root.storage.list(f"step-0000000{n}")} for n in (1, 2)]

    def held() -> None:
        if not {entry.key for entry in root.storage.list("step-00000002")}:
            raise TargetLostError("it is another's")

    with pytest.raises(TargetLostError):
        place.clean(root.storage, held=held)
    assert {entry.key for entry in root.storage.list("step-00000001")} == steps[0]
    assert root.latest() == root.step(1)
    root.clean()
    root.storage.close()


# Other processes at the data of a run


class SharedLease:
    unregistered = ""

    def __init__(self, *seen: list[str] | Exception) -> None:
        self.seen = list(seen)

    def others(self) -> list[str]:
        found = self.seen.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def check(self) -> None:
        if not self.seen:
            raise TargetLostError("somebody has removed it")

    def confirm(self) -> None:
        self.check()


def test_nobody_is_no_finding() -> None:
    others = Others(SharedLease([], [], StorageError("the server is away")))
    others.look()
    others.look()
    assert others.findings() == []


def test_who_can_not_be_seen_is_said() -> None:
    lease = SharedLease([])
    lease.unregistered = "access denied"
    (finding,) = Others(lease).findings()
    assert (finding.rule, finding.level) == ("storage.unlocked", "info")
    assert "access denied" in finding.evidence


def test_a_dataset_that_is_taken_away_ends_the_run() -> None:
    others = Others(SharedLease([]))
    with pytest.raises(TargetLostError):
        others.look()
