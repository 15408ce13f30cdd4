"""What one host measured, for a training of many hosts: rates, limits, notices, slower steps."""

from __future__ import annotations

from typing import Any

import pytest

from iobench.analyse.checkpoint.interval import (
    daly_s,
    needed_write_bytes_per_s,
    published_mtbf_s,
)
from iobench.analyse.checkpoint.meaning import meaning, not_told
from iobench.analyse.checkpoint.study import with_figures
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


# The largest of few, the p95 of many


def test_one_save_in_twenty_may_exceed_the_notice() -> None:
    rare = [*(save(100.0) for _ in range(19)), save(300.0)]
    many = told(study(*rare))
    assert (many.fits_notice, many.over_notice) == (True, 1)
    assert not_told(many.times["committed_s"]) is None
    few = told(study(*rare[1:]))
    assert not few.fits_notice
    assert not_told(few.times["committed_s"]) == pytest.approx(1 - 0.05 ** (1 / 19))


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
