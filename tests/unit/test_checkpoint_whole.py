"""What one host measured, for a training of many hosts: rates, limits, notices, slower steps."""

from __future__ import annotations

from typing import Any

import pytest

from iobench.analyse.checkpoint.interval import (
    daly_s,
    needed_write_bytes_per_s,
    overhead,
    published_mtbf_s,
    waste,
)
from iobench.analyse.checkpoint.meaning import meaning, not_told
from iobench.analyse.checkpoint.study import duration_s, with_figures
from iobench.schema.checkpoint import Meaning, Restore, Save, Study, Training

GIB = 1 << 30
ACCELERATORS = 1024


def save(blocked: float, end: float | None = None, **more: Any) -> Save:
    end = blocked if end is None else end
    times = {"blocked_s": blocked, "accepted_s": end, "durable_s": end, **more}
    return Save.model_validate({"step": 1, "bytes": GIB, "files": 1, **times})


def study(*saves: Save, full: int = GIB, restores: list[float] | None = None) -> Study:
    return with_figures(
        Study(
            model="llama3-8b",
            writer="stream",
            ranks=1,
            bytes=GIB,
            full_bytes=full,
            files=1,
            tensors=5,
            saves=list(saves),
            restores=[Restore(step=1, wall_s=took, bytes=GIB) for took in restores or []],
        )
    )


def told(found: Study, **asked: Any) -> Meaning:
    return meaning(found, Training(**{"accelerators": ACCELERATORS, **asked}))


def behind(blocked: float, end: float, *, slower: float | None = None, **more: Any) -> Save:
    """A save of an asynchronous writer, whose steps took ``slower`` x as long meanwhile."""
    steps = {} if slower is None else {"step_overlapped_s": slower, "step_alone_s": 1.0}
    return save(blocked, end, staged_s=blocked, **steps, **more)


# Many hosts

ONE_VM = study(*(save(1 / 2.3) for _ in range(10)), full=105 * GIB)
"""1 GiB at 2.3 GiB/s, of a checkpoint of 105 GiB."""


def test_one_machine_does_not_stand_for_1024_accelerators() -> None:
    """A whole model at one machine's rate takes 45 s and loses 2.2 %. If 128 hosts write at that
    rate at the same time, it takes 0.35 s and loses 0.2 %.
    """
    one = told(ONE_VM)
    assert one.blocked_s == pytest.approx(45.65, abs=0.01)
    assert one.waste == pytest.approx(0.022, abs=0.0005)
    assert not one.within_budget
    assert one.job_write_bytes_per_s == pytest.approx(2.3 * GIB)
    many = told(ONE_VM, hosts_writing=128)
    assert many.blocked_s == pytest.approx(0.357, abs=0.001)
    assert many.waste == pytest.approx(0.002, abs=0.0001)
    assert many.within_budget
    assert many.job_write_bytes_per_s == pytest.approx(128 * 2.3 * GIB)
    assert one.condition != many.condition


@pytest.mark.parametrize(
    ("hosts", "limit", "took_s", "reached"),
    [
        (None, None, 105 / 2.3, False),
        (8, None, 105 / 2.3 / 8, False),
        (8, 100.0, 105 / 2.3 / 8, False),  # 8 hosts get 18.4 GiB/s
        (8, 10.0, 10.5, True),
        (128, 10.0, 10.5, True),
        (None, 1.0, 105.0, True),
    ],
)
def test_no_save_is_faster_than_the_stated_limit_of_the_storage(
    hosts: int | None, limit: float | None, took_s: float, reached: bool
) -> None:
    rate = None if limit is None else limit * GIB
    found = told(ONE_VM, hosts_writing=hosts, storage_write_bytes_per_s=rate)
    assert found.blocked_s == pytest.approx(took_s)
    assert found.committed_s == pytest.approx(took_s)
    assert found.at_write_limit is reached
    assert found.needed_write_bytes_per_s == told(ONE_VM).needed_write_bytes_per_s


def test_the_limit_does_not_slow_the_copy_of_an_asynchronous_save() -> None:
    found = told(
        study(behind(0.5, 1.5), full=8 * GIB),
        hosts_writing=4,
        storage_write_bytes_per_s=1.0 * GIB,
    )
    assert found.blocked_s == pytest.approx(1.0)  # 2 GiB of each host at 2 GiB/s
    assert found.durable_s == pytest.approx(1.0 + 8.0)


def test_after_an_interruption_all_hosts_read_against_the_limit() -> None:
    """16 hosts, of which 4 save: each reads a quarter of the model."""
    saved = study(save(1.0), full=8 * GIB, restores=[0.5, 0.5])
    alone = told(saved, hosts_writing=4, restart_s=60.0)
    assert (alone.restore_s, alone.restart_s) == (1.0, 61.0)  # 2 GiB of each host at 2 GiB/s
    wide = told(saved, hosts_writing=4, hosts_restoring=16)
    assert wide.restore_s == 1.0
    assert not wide.at_read_limit
    limited = told(saved, hosts_writing=4, hosts_restoring=16, storage_read_bytes_per_s=4.0 * GIB)
    assert limited.restore_s == pytest.approx(8.0)  # 32 GiB
    assert limited.at_read_limit
    assert limited.waste > wide.waste


# The largest of few, the p95 of many


def test_a_notice_goes_by_the_longest_save_and_by_its_commit() -> None:
    """Saves of 100 to 200 s have a median of 116.5 s: 40 % of them exceed a notice of 2 minutes."""
    times = [100.0, 104.0, 108.0, 112.0, 115.0, 118.0, 130.0, 150.0, 175.0, 200.0]
    found = told(study(*(save(each) for each in times)))
    assert found.committed_s == 116.5 < found.notice_s
    assert not found.fits_notice
    assert found.over_notice == 4
    slow_commit = told(study(save(100.0, committed_s=125.0)))
    assert (slow_commit.durable_s, slow_commit.fits_notice) == (100.0, False)


def test_one_save_in_twenty_may_exceed_the_notice() -> None:
    rare = [*(save(100.0) for _ in range(19)), save(300.0)]
    many = told(study(*rare))
    assert (many.fits_notice, many.over_notice) == (True, 1)
    assert not_told(many.times["committed_s"]) is None
    few = told(study(*rare[1:]))
    assert not few.fits_notice
    assert not_told(few.times["committed_s"]) == pytest.approx(1 - 0.05 ** (1 / 19))


def test_the_interval_goes_by_the_slow_saves_and_losses_by_the_mean() -> None:
    found = told(study(*(save(10.0) for _ in range(9)), save(110.0)), mtbf_s=1e5)
    assert found.interval_s == pytest.approx(daly_s(110.0, 1e5))
    assert found.interval_median_s == pytest.approx(daly_s(10.0, 1e5))
    assert found.waste == pytest.approx(waste(found.interval_s, 20.0, 1e5))
    assert found.overhead == pytest.approx(overhead(found.interval_s, 20.0))


# Steps that a save slows down


def test_slower_steps_are_lost_time() -> None:
    """Blocked for 2 s, 300 s behind, 8 % slower: every 14 minutes 0.64 % were lost without them,
    and 22 s of each interval, 2.6 %, in addition.
    """
    mtbf = published_mtbf_s(ACCELERATORS)
    usual = daly_s(2.0, mtbf)
    plain = told(study(behind(2.0, 302.0)), interval_s=usual)
    slowed = told(study(behind(2.0, 302.0, slower=1.08)), interval_s=usual)
    assert plain.today.waste == pytest.approx(0.0064, abs=0.00005)
    lost = 300 * (1 - 1 / 1.08)
    assert slowed.today.waste - plain.today.waste == pytest.approx(lost / (usual + 2), rel=0.01)
    assert slowed.today.overhead == pytest.approx((2 + lost) / (usual + 2))
    assert slowed.slowed_s == pytest.approx(lost)
    # So saves are dearer, and the best interval is longer.
    assert slowed.interval_s == pytest.approx(daly_s(2 + lost, mtbf) + lost)
    assert slowed.waste < slowed.today.waste
    assert (plain.slowdown, plain.slowed_s) == (None, None)  # not measured, which is not 0
    assert plain.needed_write_bytes_per_s > 5 * slowed.needed_write_bytes_per_s


@pytest.mark.parametrize("slower", [0.0, 0.97, 1.0])
def test_a_save_gives_no_time_back(slower: float) -> None:
    found = told(study(behind(2.0, 302.0, slower=slower)))
    assert found.slowed_s == 0
    assert found.waste == pytest.approx(told(study(behind(2.0, 302.0))).waste)


def test_a_save_that_is_not_over_when_the_next_is_due_blocks_it() -> None:
    found = told(study(behind(2.0, 302.0)), interval_s=100.0)
    assert found.today.overhead == pytest.approx(202 / 302)
    assert found.interval_s >= 300


def test_a_wait_for_the_previous_save_is_no_part_of_this_one() -> None:
    """3 s of waiting, 1 s for the copy and 4 s of writing."""
    waiting = behind(1.0, 8.0, waited_s=3.0).model_copy(update={"blocked_s": 4.0})
    assert duration_s(waiting) == 4.0
    found = told(study(waiting))
    assert (found.blocked_s, found.durable_s) == (1.0, 5.0)
    assert found.host_write_bytes_per_s == GIB / 4


@pytest.mark.parametrize(
    ("copy_s", "drag", "needed"),
    [
        (0.0, 1.0, 100 / 2.0),
        (1.0, 0.5, 100 * 0.5 / 1.0),
        (1.9, 0.0, 100 / 200),  # the save before must have ended
        (2.0, 0.1, None),
    ],
)
def test_the_write_rate_for_a_budget(copy_s: float, drag: float, needed: float | None) -> None:
    """1 % of the time at a failure every 10,000 s: saves of 2 s, every 200 s."""
    found = needed_write_bytes_per_s(100, 0.01, 10_000.0, copy_s=copy_s, drag=drag)
    assert found == (None if needed is None else pytest.approx(needed))


# A study as one value of a comparison
