"""A restore takes as many threads as are faster, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.base.errors import StorageError
from iobench.checkpoint import make_writer, stream
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.storage.base import Buffer
from iobench.storage.local.storage import LocalStorage
from tests.contract.test_checkpoint import blank, make_state, same


def reads(climb: stream._Climb, plateau: float, *, blocks: float) -> float:
    """Blocks of a storage that serves ``plateau`` threads; returns the time that they take."""
    now = done = 0.0
    while done < blocks:
        now += 0.025
        done += 0.025 * 1000 * min(climb.threads, plateau)
        if not climb.settled:
            climb.look(int(done), now)
    climb.pause()
    return now


@pytest.mark.parametrize(
    ("plateau", "threads", "restores"),
    [(1, 8, 1), (15, 16, 9), (17, 16, 1), (20, 32, 9), (1000, 64, 1)],
)
def test_threads_are_added_up_to_the_plateau(plateau: int, threads: int, restores: int) -> None:
    climb = stream._Climb(8, settled=False)
    for _ in range(restores):
        reads(climb, plateau, blocks=1e6 / restores)
    assert (climb.threads, climb.settled) == (threads, True)


@pytest.mark.parametrize("gain", [0.0, 1e9])
def test_a_restore_is_complete_while_threads_come_and_go(
    tmp_path: Path, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look adds threads, or gives them up again."""
    monkeypatch.setattr(stream, "_WINDOW_S", 0.0)
    monkeypatch.setattr(stream, "_WINDOW_BLOCKS", 0)
    monkeypatch.setattr(stream, "_GAIN", gain)
    root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state(large=1_000_001)
    root.claim()
    writer = make_writer("stream", options={"block_size": 4096})
    target = root.step(1)
    saved = writer.save(state, target).wait()
    target.publish(saved, rank=0)
    target.commit(writer="stream", world=1)
    counts = []
    for _ in range(4):
        again = blank(state)
        counts.append(writer.restore(again, target).threads)
        assert same(again, state)
    assert set(counts) <= {8, 16, 32, 64}
    writer.close()


def test_a_read_that_fails_ends_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, state = CheckpointRoot.open(str(tmp_path / "c")), make_state(large=1_000_001)
    root.claim()
    writer = make_writer("stream", options={"block_size": 4096})
    target = root.step(1)
    target.publish(writer.save(state, target).wait(), rank=0)
    target.commit(writer="stream", world=1)
    read_into, calls = LocalStorage.read_into, []

    def fails(
        self: LocalStorage, key: str, offset: int, buffer: Buffer, *, once: bool = False
    ) -> int:
        calls.append(offset)
        if len(calls) > 100:
            raise StorageError("cannot read: planted")
        return read_into(self, key, offset, buffer, once=once)

    monkeypatch.setattr(LocalStorage, "read_into", fails)
    with pytest.raises(StorageError, match="planted"):
        writer.restore(blank(state), target)
    writer.close()
