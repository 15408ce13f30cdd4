"""How often to save, and what that costs: closed forms against what was published and against
simulations, a study carried over, and what one host measured for a training of many hosts.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.judge.checkpoint import summaries_of, with_figures
from iobench.judge.checkpoint_meaning import (
    availability_s,
    best_s,
    daly_s,
    longest_save_at_best_s,
    longest_save_s,
    meaning,
    needed_write_bytes_per_s,
    not_told,
    overhead,
    published_mtbf_s,
    waste,
    young_s,
)
from iobench.record.checkpoint import Meaning, Restore, Save, Study, Training
from iobench.record.host import JobHost


@pytest.mark.parametrize(("mtbf_min", "printed"), [(24 * 60, "117"), (6 * 60, "57"), (15, "9.1")])
def test_dalys_own_examples(mtbf_min: float, printed: str) -> None:
    """Figures 3 to 5 of his paper: dumps of 5 minutes, restarts of 10, M of 24 h, 6 h and 15 min:
    117, 57 and 9.1 minutes.
    """
    found = daly_s(5 * 60, mtbf_min * 60) / 60
    assert f"{found:.{printed.count('.')}f}" == printed


def test_a_published_example_of_the_availability() -> None:
    """changlan.org: interrupted every 6,000 s, 600 s to recover, 10 s to save, steps of 15 s: save
    every 24 steps.
    """
    assert round(availability_s(10, 6000, 600) / 15) == 24


@given(mtbf=st.floats(60, 1e7), save=st.floats(1e-5, 2), restart=st.floats(0, 2))
def test_the_interval_of_largest_availability(mtbf: float, save: float, restart: float) -> None:
    """No interval near it has a larger availability, by the function that the docstring states."""
    blocked, down = save * mtbf, restart * mtbf

    def availability(interval: float) -> float:
        period = interval + blocked
        return interval / period * mtbf / (mtbf + down + period / 2)

    best = availability_s(blocked, mtbf, down)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert availability(best) >= availability(best * factor)
    assert availability(best) > max(availability(best / 1.5), availability(best * 1.5))


@given(mtbf=st.floats(60, 1e7), save=st.floats(1e-5, 0.5))
def test_waste_at_dalys_interval_is_within_a_percent_of_the_least(mtbf: float, save: float) -> None:
    """Of the training's whole time, up to a save of half the time between interruptions; Young's
    costs more where saves are long.
    """
    blocked = save * mtbf
    least = min(
        waste(young_s(blocked, mtbf) * 2 ** (step / 64), blocked, mtbf) for step in range(-256, 129)
    )
    found = waste(daly_s(blocked, mtbf), blocked, mtbf)
    assert 1 - found == pytest.approx(1 - least, rel=0.01)
    if save > 0.05:
        assert found < waste(young_s(blocked, mtbf), blocked, mtbf)


def test_waste_is_what_a_simulation_of_failures_finds() -> None:
    """A training of 20,000 saves with exponential failures, played through second by second of its
    own clock.
    """
    interval, blocked, mtbf, restart = 100.0, 10.0, 400.0, 30.0
    generator = random.Random(11)
    clock = 0.0
    for _ in range(20_000):
        while (until := generator.expovariate(1 / mtbf)) < interval + blocked:
            clock += until
            while (again := generator.expovariate(1 / mtbf)) < restart:
                clock += again
            clock += restart
        clock += interval + blocked
    assert waste(interval, blocked, mtbf, restart) == pytest.approx(
        1 - 20_000 * interval / clock, abs=0.01
    )
    assert math.isclose(overhead(interval, blocked), 10 / 110)


def test_published_interruptions() -> None:
    """Llama 3's pre-training: 419 unexpected interruptions in 54 days on 16,384 accelerators, one
    every 3.1 hours.
    """
    assert published_mtbf_s(16_384) / 3600 == pytest.approx(54 * 24 / 419)
    assert published_mtbf_s(1) / 3600 == pytest.approx(50_700, rel=0.001)


# A study

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


def test_a_bandwidth_is_the_median_everywhere() -> None:
    """One slow save of three: the mean of the rates would be 0.7 of the median."""
    found = study(save(1.0), save(1.0), save(10.0), restores=[2.0, 2.0, 20.0])
    assert (found.write_bytes_per_s, found.restore_bytes_per_s) == (GIB, GIB / 2)
    in_metrics = summaries_of(found)
    for name in ("write_bytes_per_s", "restore_bytes_per_s"):
        value, told = getattr(found, name), (in_metrics[name], found.figures[name])
        assert {each.median for each in told} == {value}
        assert [each.min for each in told] == [value / 10] * 2


def test_a_scaled_study_is_carried_over_by_its_bytes() -> None:
    found = meaning(
        study(save(1.0), save(1.0), full=100 * GIB),
        Training(mtbf_s=10**6, accelerators=8, usd_per_accelerator_hour=2.0, samples_per_s=10.0),
    )
    assert found.blocked_s == pytest.approx(100.0)  # 1 s for a hundredth of the bytes
    assert found.interval_s == pytest.approx(daly_s(100.0, 10**6))
    assert found.lost_s_per_day == pytest.approx(found.waste * 86_400)
    assert found.lost_usd_per_day == pytest.approx(found.waste * 24 * 8 * 2.0)
    assert found.lost_samples_per_day == pytest.approx(found.waste * 86_400 * 10)
    assert min(share for _, share in found.curve) == pytest.approx(found.waste, rel=1e-3)
    assert found.fits_notice
    assert "save every" in found.sentence


def told(found: Study, **asked: Any) -> Meaning:
    return meaning(found, Training(**{"accelerators": ACCELERATORS, "restart_s": 0.0, **asked}))


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


def test_hosts_that_saved_together_need_not_get_what_one_got() -> None:
    two = ONE_VM.model_copy(update={"hosts": [JobHost(name="h0"), JobHost(name="h1")]})
    found = told(two)
    assert "2 hosts got together" in found.condition
    assert found.job_write_bytes_per_s == told(ONE_VM).job_write_bytes_per_s
    assert "each of 8 hosts" in told(two, hosts_writing=8).condition
    assert "the whole job gets what one host got" in told(two, hosts_writing=1).condition


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


# Saves of what changes


@pytest.mark.parametrize(("limit", "took_s"), [(None, 4.0 * 100), (1.0, 20 * 100.0)])
def test_a_restore_of_what_changed_reads_the_whole_state_too(
    limit: float | None, took_s: float
) -> None:
    """1 GiB of 19 change, of a hundredth of the model: a restore reads 20 GiB at this scale."""
    found = study(*[save(1.0)] * 10, full=100 * GIB, restores=[4.0] * 10)
    found = found.model_copy(update={"state_bytes": 19 * GIB})
    rate = None if limit is None else limit * GIB
    told_of = told(found, storage_read_bytes_per_s=rate)
    assert told_of.restore_s == pytest.approx(took_s)
    assert told_of.blocked_s == pytest.approx(100.0)
    assert told_of.bytes == 100 * GIB


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
        (0.0, 1.0, 100 / 2.0134),
        (1.0, 0.5, 100 * 0.5 / 1.0134),
        (1.9, 0.0, 100 / 201.34),  # the save before must have ended
        (2.02, 0.1, None),
    ],
)
def test_the_write_rate_for_a_budget(copy_s: float, drag: float, needed: float | None) -> None:
    """1 % of the time at a failure every 10,000 s: saves of 2 s, every 200 s."""
    found = needed_write_bytes_per_s(100, 0.01, 10_000.0, copy_s=copy_s, drag=drag)
    assert found == (None if needed is None else pytest.approx(needed, rel=1e-4))


@pytest.mark.parametrize("budget", [0.001, 0.01, 0.05, 0.2, 0.6, 0.66, 0.67, 0.9])
def test_the_longest_save_of_a_budget_takes_just_that_at_its_interval(budget: float) -> None:
    """At any interval that is stated, too, and a study says the same of such saves."""
    mtbf = 1e6
    longest = longest_save_at_best_s(budget, mtbf)
    interval = best_s(longest, mtbf)
    assert overhead(interval, longest) == pytest.approx(budget)
    assert longest_save_s(budget, interval) == pytest.approx(longest)
    for factor, within in ((0.999, True), (1.001, False)):
        took = longest * factor
        found = told(study(save(took)), mtbf_s=mtbf, stall_budget=budget)
        assert found.within_budget is within
        assert (GIB / took >= found.needed_write_bytes_per_s) is within
