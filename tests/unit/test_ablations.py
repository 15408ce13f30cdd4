"""Gains of ablations, from planted events; and how the time for them is divided."""

from __future__ import annotations

from typing import Any

import pytest

from iobench.judge.figures.ablations import How, gain, round_rates, with_gains
from iobench.judge.rebuild import rebuild
from iobench.record.training import Epoch
from iobench.record.verdict import AblatedStage, Ablation, AblationRound
from tests.unit.conftest import build_events, build_run


def steps(count: int, each_s: float, *, fill_s: float = 0.0, **more: Any) -> list[dict[str, Any]]:
    """Steps of 100 samples, each waiting for ``each_s``; the first waits ``fill_s`` longer."""
    return [
        {
            "step": n,
            "start": n * each_s + (fill_s if n else 0.0),
            "wait": each_s + (0.0 if n else fill_s),
            "samples": 100,
            **more,
        }
        for n in range(count)
    ]


def rounds_of(*ratios: float, complete: bool = True) -> list[AblationRound]:
    return [
        AblationRound(
            repetition=number,
            samples_per_s=ratio * 1000.0 * (number + 1),  # a drift that both sides share
            base_samples_per_s=1000.0 * (number + 1),
            seconds=1.0,
            complete=complete,
        )
        for number, ratio in enumerate(ratios)
    ]


def test_a_gain_is_the_geometric_mean_and_a_drift_of_both_sides_cancels() -> None:
    found = gain(rounds_of(2.0, 2.0, 2.0))
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    uneven = gain(rounds_of(1.0, 4.0))
    assert uneven.value == pytest.approx(2.0)
    assert uneven.low < 1 < 4 < uneven.high


def one_round(
    stage: AblatedStage, rate: float, *, base: float = 100.0, number: int = 0
) -> Ablation:
    one = AblationRound(repetition=number, samples_per_s=rate, base_samples_per_s=base, seconds=1.0)
    return Ablation(stage=stage, rounds=[one])


@pytest.mark.parametrize(
    ("read_s", "prep_s", "other_s"), [(0.006, 0.003, 0.001), (0.0, 0.009, 0.001), (0.009, 0, 0.001)]
)
def test_what_left_out_reading_too_is_as_if_it_had_not(
    read_s: float, prep_s: float, other_s: float
) -> None:
    whole_s = read_s + prep_s + other_s
    storage = one_round("storage", 1 / (prep_s + other_s), base=1 / whole_s)
    both = one_round("prep", 1 / other_s, base=1 / whole_s)
    gains = {each.stage: each.gain for each in with_gains([storage, both], in_one=True)}
    assert gains["storage"].value == pytest.approx(whole_s / (prep_s + other_s))
    assert gains["prep"].value == pytest.approx(whole_s / (read_s + other_s))
    apart = with_gains([storage, both], in_one=False)[1].gain
    assert apart.value == pytest.approx(whole_s / other_s)


def with_head(count: int, **more: Any) -> list[dict[str, Any]]:
    """Steps of 100 samples of a rank with 4 workers, for which 8 batches are in flight.

    The first batch is late by 4 s, and the other seven are ready then. All later ones take 1 s
    each: 100 samples/s.
    """
    ready = [0.0, *(4.0 + 0.1 * n for n in range(8))]
    ends = [*ready, *(ready[-1] + n + 1.0 for n in range(count - 8))]
    return [
        {"step": n, "start": ends[n], "wait": ends[n + 1] - ends[n], "samples": 100, **more}
        for n in range(count)
    ]


@pytest.mark.parametrize(("short", "in_flight"), [(12, 8), (11, 0), (6, 0), (1, 0)])
def test_batches_in_flight_at_the_start_make_no_short_phase_faster(
    short: int, in_flight: int
) -> None:
    """Leaving out a stage that costs nothing brings nothing, however short that phase is."""
    how = How(round_steps=4, together=False, in_flight=8)
    base, without = build_events(with_head(40)), build_events(with_head(short))
    faster, rate, left_out = round_rates(base, without, how, how)
    assert left_out == in_flight
    assert faster == pytest.approx(rate)
    if in_flight:
        assert rate == pytest.approx(100.0)


def test_a_short_phase_shows_what_a_slow_stage_costs() -> None:
    how = How(round_steps=4, together=False, in_flight=8)
    slow, fast = steps(40, 0.4, phase="measure"), steps(9, 0.1, phase="without-prep")
    faster, rate, _ = round_rates(build_events(slow), build_events(fast), how, how)
    assert faster / rate == pytest.approx(4.0)


@pytest.mark.parametrize(("queued", "gain"), [(True, 1.7), (False, 1.525)])
def test_the_first_asynchronous_save_is_not_free_in_a_longer_training(
    queued: bool, gain: float
) -> None:
    """Ten steps take 1 s, and each save after the first one waits for 0.7 s until the one before it
    is written: 1.7 x is what lasts, however few saves there are.
    """
    rows, now = [], 0.0
    for number in range(40):
        save = {9: 0.001, 19: 0.7, 29: 0.7, 39: 0.7}.get(number, 0.0)
        rows.append({"step": number, "start": now, "wait": 0.1, "samples": 100, "checkpoint": save})
        now += 0.1 + save
    how = How(round_steps=1, together=False, in_flight=0, queued=queued)
    with_saves, without = build_events(rows), build_events(steps(40, 0.1, phase="without"))
    faster, rate, _ = round_rates(with_saves, without, how, how)
    assert faster / rate == pytest.approx(gain, rel=0.001)


def test_rebuild_computes_the_gains_from_the_events() -> None:
    rows = []
    for number in range(3):
        more = {"repetition": number}
        rows += steps(20, 0.2, fill_s=0.4, phase="measure", **more)
        rows += steps(20, 0.1, fill_s=9.0, phase="without-storage", **more)
    unknown = [
        AblationRound(
            repetition=n, samples_per_s=1.0, base_samples_per_s=7.0, seconds=2.0, in_flight=3
        )
        for n in range(3)
    ]
    doc = build_run(repetitions=3, workload={"epochs": 1, "loader": {"workers": 2}}).with_job(
        ablations=[
            Ablation(stage="storage", rounds=unknown),
            Ablation(stage="prep", rounds=unknown),  # without events: stays as recorded
            Ablation(stage="fill", rounds=unknown),
        ]
    )
    for repetition in doc.job.repetitions:
        repetition.epochs = [Epoch(epoch=0, startup_s=0.0)]
    again = {each.stage: each for each in rebuild(doc, build_events(rows)).job.ablations}
    gains = {stage: each.gain for stage, each in again.items()}
    assert gains["storage"].value == pytest.approx(2.0)
    assert gains["storage"].n == 3
    assert again["prep"].rounds == unknown
    assert gains["fill"].value == pytest.approx(500 / (2000 / 4.4))
