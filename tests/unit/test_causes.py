"""The bottleneck where stages were left out in turns with the repetitions. The base run is that of
build_run: demand 2,000, storage 4,000, prep 6,000, loader 8,000.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iobench.judge.figures.ablations import is_told
from iobench.judge.figures.curve import conclude_curve
from iobench.judge.judged import _as_waits_allow, judge
from iobench.judge.verdict import verdict
from iobench.record.curve import Rate, StorageCurve
from iobench.record.training import Ceiling
from iobench.record.verdict import AblatedStage as Stage
from iobench.record.verdict import Ablation, Estimate, RunCurve, Verdict
from tests import curves
from tests.curves import point
from tests.unit.conftest import build_run


def without(**gains: float | tuple[float, float]) -> list[Ablation]:
    """Ablations: (low, high) over three rounds, with the middle as the value, or one round."""
    found = []
    for stage, gain in gains.items():
        estimate = (
            Estimate(value=sum(gain) / 2, low=gain[0], high=gain[1], n=3)
            if isinstance(gain, tuple)
            else Estimate(value=gain)
        )
        found.append(Ablation.model_validate({"stage": stage, "gain": estimate}))
    return found


def curve(*rates: float, size: int = 100_000, order: str = "random") -> StorageCurve:
    """Rates in reads/s with 1, 2, 4, ... reads in flight, each known to 1 %."""

    def told(rate: float) -> Rate:
        return Rate(value=rate, low=0.99 * rate, high=1.01 * rate, windows=5)

    points = [point(2**power, told(rate), size) for power, rate in enumerate(rates)]
    return curves.curve(points, size, order)


def run_curve(mine: StorageCurve, large: StorageCurve | None = None) -> RunCurve:
    large = conclude_curve(large) if large else None
    return RunCurve(curve=conclude_curve(mine, large), large=large)


def verdict_on(**changes: Any) -> Verdict:
    found = build_run(**changes).job.verdict
    assert isinstance(found, Verdict)
    return found


@pytest.mark.parametrize(
    ("gains", "bottleneck", "also"),
    [
        ({"storage": (2.3, 2.5), "prep": (0.98, 1.02)}, "storage", []),
        ({"storage": (1.9, 2.2), "prep": (1.8, 2.0)}, "storage", ["prep"]),
        ({"storage": (1.06, 1.1), "checkpoint": (1.9, 2.1)}, "checkpoint", []),
        # The accelerator is what the others are to feed: it is named last.
        ({"storage": (1.3, 1.4), "accelerator": (3.0, 3.2)}, "storage", []),
        # Wide intervals: nothing is significant.
        ({"storage": (0.8, 1.9), "prep": (0.9, 1.7)}, "undecided", []),
        # One round has no interval.
        ({"storage": 1.16}, "storage", []),
        ({"storage": 1.14}, "undecided", []),
        ({"storage": 2.0, "prep": 1.9}, "storage", ["prep"]),
    ],
)
def test_the_largest_gain_that_is_told_from_noise_binds(
    gains: dict[str, Any], bottleneck: str, also: list[Stage]
) -> None:
    found = verdict_on(measured=1000, au=0.5, ablations=without(**gains))
    assert (found.bottleneck, found.also) == (bottleneck, also)
    assert found.starved is True
    assert found.basis == "tested"
    assert set(found.gains) == set(gains)


@pytest.mark.parametrize(
    ("rates", "bottleneck", "also"),
    [
        ({"fetch": 600.0}, "storage", []),  # longer epochs: 1.2 x; the rest to the demand: 3.3 x
        ({"fetch": 1000.0}, "storage", ["fill"]),  # 2 x and 2 x
        ({"fetch": 1500.0}, "fill", []),  # 3 x and 1.3 x
        ({"fetch": 300.0}, "fill", []),  # the run was faster, so this is no ceiling
        ({}, "fill", []),  # longer epochs are enough
    ],
)
def test_the_fill_of_short_epochs_hides_no_stage_that_longer_ones_would_show(
    rates: dict[str, Any], bottleneck: str, also: list[Stage]
) -> None:
    """The demand is 2,000 samples/s, and the run has a quarter of it."""
    more = {"measured": 500, "au": 0.25, "ablations": without(fill=3.7, prep=1.02)}
    found = verdict_on(rates=rates, repetition={"steps": 44}, **more)
    assert (found.bottleneck, found.also) == (bottleneck, also)
    bounds = {each.id: each.at_most for each in found.advice}
    assert not also or bounds.get("faster-storage", True)
    # In long epochs most batches come after the fill, so that the run was faster than a ceiling of
    # 600 or 1,000: that was measured on a busier host.
    assert verdict_on(rates=rates, **more).bottleneck == "fill"


@pytest.mark.parametrize(
    ("gains", "rates", "au", "bottleneck", "basis"),
    [
        ({"sync": 1.2}, {"fetch": 420.0}, 0.2, "storage", "inferred"),
        ({"sync": 1.2}, {"fetch": 420.0}, 0.75, "sync", "tested"),  # that is most of what is lost
        ({"sync": 1.2, "storage": 1.01}, {"fetch": 420.0}, 0.2, "sync", "tested"),  # it had a turn
        ({"sync": 1.2}, {"fetch": 800.0}, 0.2, "sync", "tested"),  # the run is far slower
        ({"storage": 1.2}, {"prep": 420.0}, 0.2, "prep", "inferred"),
    ],
)
def test_a_stage_that_had_no_turn_is_the_bottleneck_where_the_others_explain_little(
    gains: dict[str, Any], rates: dict[str, Any], au: float, bottleneck: str, basis: str
) -> None:
    found = verdict_on(measured=400, au=au, rates=rates, ablations=without(**gains))
    assert (found.bottleneck, found.basis) == (bottleneck, basis)


@pytest.mark.parametrize(
    ("rates", "bottleneck"),
    [
        ({"loader": 1100.0}, "loader"),
        # All of them were measured on a busier host, so the run itself is the least of each.
        ({"fetch": 1000.0, "prep": 520.0, "loader": 500.0}, "undecided"),
    ],
)
def test_a_run_is_not_explained_by_a_ceiling_that_it_exceeds(
    rates: dict[str, float | None], bottleneck: str
) -> None:
    gains = without(storage=(0.98, 1.02))
    found = verdict_on(measured=1000, au=0.5, rates=rates, ablations=gains)
    assert found.bottleneck == bottleneck


@pytest.mark.parametrize(
    ("workers", "gains", "au", "prep", "gain"),
    [
        (0, {"accelerator": (2.0, 2.2)}, 0.7, 6000.0, 1.43),  # the demand's share
        (0, {"accelerator": (1.1, 1.3)}, 0.7, None, 1.2),  # without steps
        (0, {}, 0.7, 6000.0, 1.43),  # by the ceilings
        (0, {}, 0.7, None, None),  # of which one is not known
        (0, {}, 0.93, 6000.0, None),  # it is fed
        (1, {"accelerator": (2.0, 2.2)}, 0.7, 6000.0, None),
    ],
)
def test_ranks_without_workers_that_starve_by_no_stage_are_advised_one(
    workers: int, gains: dict[str, Any], au: float, prep: float | None, gain: float | None
) -> None:
    found = verdict_on(
        measured=au * 2000,
        au=au,
        rates={"prep": prep},
        workload={"loader": {"workers": workers}},
        ablations=without(storage=(0.98, 1.02), **gains),
    )
    promised = {each.settings[0]: each.predicted_gain for each in found.advice if each.settings}
    expected = {} if gain is None else {"loader.workers=1": pytest.approx(gain, rel=0.01)}
    assert promised == expected


@pytest.mark.parametrize(
    ("points", "known"),
    [
        ((400.0,), False),  # time for one read in flight alone, of which the run has more
        ((400.0, 800.0), False),
        ((400.0, 400.0, 400.0), True),  # a plateau
        ((1200.0,), True),  # the run got no more
    ],
)
def test_a_storage_is_not_named_by_few_reads_in_flight_where_the_run_got_more(
    points: tuple[float, ...], known: bool
) -> None:
    mine = RunCurve(curve=conclude_curve(curve(*points)))
    rates = dict.fromkeys(("fetch", "prep", "loader"), None) | {"storage_raw": max(points)}
    judged = judge(build_run(curve=mine, measured=1000, au=0.5, rates=rates))
    assert (judged.evidence.raw is not None) == known
    assert known or judged.decision.bottleneck != "storage"


@pytest.mark.parametrize(
    ("fetch", "bottleneck", "more"),
    [
        (None, "storage", True),  # the curve: 800 reads/s with 8 in flight, of which 900 are used
        (3000.0, "prep", False),  # measured: the job's own reader does better
    ],
)
def test_the_curve_says_what_the_storage_delivers_today_where_the_reader_alone_was_not_measured(
    fetch: float | None, bottleneck: str, more: bool
) -> None:
    mine = RunCurve(curve=conclude_curve(curve(100, 200, 400, 800, 1600, 3000)))
    rates = {"fetch": fetch, "storage_raw": 3000.0, "prep": 900.0}
    doc = build_run(curve=mine, measured=350, au=0.35, accelerators=1, rates=rates)
    doc.job.ceilings["storage_raw"].details.read_bytes_per_sample = 100_000.0
    found = verdict(judge(doc))
    assert found.bottleneck == bottleneck
    assert ("concurrency" in {each.id for each in found.advice}) == more


@pytest.mark.parametrize(("workers", "advised"), [(0, True), (1, False)])
def test_a_worker_comes_first_where_ranks_without_one_wait_for_a_stage_that_is_fast_enough(
    workers: int, advised: bool
) -> None:
    found = verdict_on(
        measured=1400,
        au=0.7,
        workload={"loader": {"workers": workers}},
        ablations=without(storage=(1.2, 1.3)),
    )
    assert found.bottleneck == "storage"
    assert (found.advice[0].settings == ["loader.workers=1"]) == advised


RANK = dict.fromkeys(
    ("startup_s", "fill_s", "wait_s", "copy_s", "sync_s", "saves_s", "rest_s"), 0.0
)
RANK |= {"rank": 0, "wall_s": 65.0, "busy_s": 10.0}
READS = {"fetch_s": 50.0, "prep_s": 5.0}
COMPUTES = {"fetch_s": 5.0, "prep_s": 50.0}
HARDLY = {"storage": (1.1, 1.3), "prep": (1.0, 1.2)}


@pytest.mark.parametrize(
    ("times", "gains", "rates", "bottleneck", "basis"),
    [
        # It waits while it makes a batch, but not for the dataset's storage.
        (READS, {"storage": (0.99, 1.02), "prep": (2.0, 2.2)}, {}, "prep", "tested"),
        # Its storage can't be cached: the workers' times tell reading from preparing.
        (READS, {"prep": (2.0, 2.2)}, {}, "storage", "tested"),
        (COMPUTES, {"prep": (2.0, 2.2)}, {}, "prep", "tested"),
        # No round left the storage out, but over the page cache it is as slow.
        (READS, {"prep": (2.0, 2.2)}, {"prep": 1050.0}, "prep", "tested"),
        (READS, {"prep": (2.0, 2.2)}, {"prep": 2000.0}, "storage", "tested"),
        # Its dataset can't be replaced: what remains is inferred, without the storage.
        (READS, {"storage": (0.99, 1.02)}, {"prep": 1050.0, "loader": None}, "prep", "inferred"),
        (READS, {"storage": (0.99, 1.02)}, {"loader": None}, "prep", "inferred"),
        (READS, {"storage": (1.9, 2.2)}, {"loader": None}, "storage", "tested"),
        # Over kept samples it is hardly faster: the bottleneck is to collate and to hand over.
        (COMPUTES, {"prep": (1.08, 1.12)}, {"loader": 1100.0}, "loader", "inferred"),
        (READS, HARDLY, {"loader": 1500.0}, "loader", "inferred"),
        (READS, HARDLY, {"loader": 2500.0}, "storage", "tested"),
    ],
)
def test_a_loader_of_the_users_that_waits_does_not_wait_for_a_storage_that_was_left_out(
    times: dict[str, float],
    gains: dict[str, Any],
    rates: dict[str, Any],
    bottleneck: str,
    basis: str,
) -> None:
    found = verdict_on(
        measured=1000,
        au=0.5,
        rates=rates,
        loader={"kind": "user"},
        repetition={"ranks": [RANK | times]},
        ablations=without(**gains),
    )
    assert (found.bottleneck, found.basis) == (bottleneck, basis)
    if bottleneck == "prep" and times is READS:
        advised = [advice.id for advice in found.advice]
        assert "cores" not in advised  # it waits: cores are not what is missing
        assert "workers" in advised or "prep" not in gains | rates


@pytest.mark.parametrize(("queued_s", "bottleneck"), [(6.0, "storage"), (9.2, "prep")])
def test_waits_for_a_core_are_no_preparing(queued_s: float, bottleneck: str) -> None:
    """Objects can't be cached, and the host is busy: of the batch's time it computes a part."""
    times = {"fetch_s": 25.0, "prep_s": 30.0}
    facts = {"fetches": 10, "fetch_wall_s": 10.0, "fetch_cpu_s": 0.6, "fetch_queued_s": queued_s}
    found = verdict_on(
        measured=1000,
        au=0.5,
        loader={"kind": "user", "user": facts},
        repetition={"ranks": [RANK | times]},
        ablations=without(prep=(1.9, 2.2)),
    )
    assert (found.bottleneck, found.also) == (bottleneck, [])


MADE = {"fetches": 10, "fetch_wall_s": 10.0, "wait_s": 10.0}
LATE = {"fetch_cpu_s": 1.0, "out_of_order_s": 6.0}


@pytest.mark.parametrize(
    ("gains", "bottleneck"),
    [
        # 1 / 0.1 is lost. What the page cache brings is all of it, or little of it.
        ({"storage": (8.0, 9.0)}, "storage"),
        ({"storage": (1.1, 1.2)}, "prep"),
        # Preparing was left out, too: nothing is unseen.
        ({"storage": (1.1, 1.2), "prep": (1.0, 1.01)}, "storage"),
    ],
)
def test_a_small_gain_of_storage_does_not_explain_a_large_loss(
    gains: dict[str, Any], bottleneck: str
) -> None:
    facts = MADE | {"fetch_cpu_s": 9.5}
    loader = {"kind": "user", "user": facts}
    found = verdict_on(measured=200, au=0.1, loader=loader, ablations=without(**gains))
    assert found.bottleneck == bottleneck
    if bottleneck != "prep":
        own = verdict_on(measured=200, au=0.1, ablations=without(**gains))
        assert own.bottleneck == found.bottleneck


@pytest.mark.parametrize(
    ("hand_over_s", "storage", "bottleneck"),
    [
        (7.0, (0.9, 1.1), "loader"),
        # The page cache brings a part of what is lost, or most of it.
        (7.0, (1.1, 1.3), "loader"),
        (3.0, (1.1, 1.3), "storage"),
        (7.0, (1.7, 1.9), "storage"),
    ],
)
def test_batches_that_are_made_and_not_here_are_the_loader(
    hand_over_s: float, storage: tuple[float, float], bottleneck: str
) -> None:
    """The rank receives a batch itself, so that no ceiling without the step explains the rate."""
    loader = {"kind": "user", "user": MADE | {"hand_over_s": hand_over_s, "fetch_cpu_s": 9.5}}
    gains = without(storage=storage, prep=(0.9, 1.1), accelerator=(1.2, 1.6))
    found = verdict_on(measured=1000, au=0.5, loader=loader, ablations=gains)
    assert found.bottleneck == bottleneck


@pytest.mark.parametrize(
    ("sampler_s", "au", "bottleneck"), [(6.0, 0.3, "loader"), (4.0, 0.3, "prep"), (6.0, 0.95, "")]
)
def test_a_sampler_that_takes_most_of_the_waits_is_named(
    sampler_s: float, au: float, bottleneck: str
) -> None:
    """Without its preparation the loader has no sampler either, so that no ablation tells it."""
    facts = MADE | {"fetch_cpu_s": 9.5, "hand_over_s": 0.1, "sampler_s": sampler_s}
    found = verdict_on(
        measured=200,
        au=au,
        loader={"kind": "user", "user": facts},
        ablations=without(prep=(2.4, 2.8)),
    )
    named = [each.id for each in found.advice if each.id == "sampler"]
    assert bool(named) == (bottleneck == "loader")
    if bottleneck:
        assert found.bottleneck == bottleneck


@pytest.mark.parametrize(
    ("facts", "gains", "workers", "advised"),
    [
        ({"collate_s": 8.0}, {"prep": (1.0, 1.1)}, 2, ["collate"]),
        ({"collate_s": 8.0}, {"prep": (1.0, 1.1)}, 0, ["workers", "collate"]),
        ({"collate_s": 8.0}, {"storage": (1.1, 1.3), "prep": (1.1, 1.2)}, 2, ["collate"]),
        ({"collate_s": 4.0}, {"prep": (1.0, 1.1)}, 2, []),
        # Batches are made in time, and arrive late.
        ({"collate_s": 8.0, "hand_over_s": 7.0}, {"prep": (1.0, 1.1)}, 2, []),
    ],
)
def test_a_collate_that_takes_most_of_making_a_batch_is_named(
    facts: dict[str, float], gains: dict[str, Any], workers: int, advised: list[str]
) -> None:
    """Over kept samples the loader collates, too, so that its ceiling is as low."""
    found = verdict_on(
        measured=400,
        au=0.2,
        rates={"prep": 450.0, "loader": 450.0},
        loader={"kind": "user", "workers": workers, "user": MADE | {"fetch_cpu_s": 9.5} | facts},
        ablations=without(**gains),
    )
    assert (found.bottleneck == "prep") == bool(advised)
    assert [each.id for each in found.advice if each.id in ("workers", "collate")] == advised


@pytest.mark.parametrize(
    ("waits_s", "started_s", "kept"),
    [
        ((19.0, 0.2, 0.1), 0.0, True),
        ((7.0, 6.0, 6.0), 0.0, False),
        ((19.0, 0.2, 0.1), 18.9, False),  # until its workers, which stay, had started
    ],
)
def test_a_loader_that_keeps_its_samples_is_not_told_to_have_more_workers(
    waits_s: tuple[float, ...], started_s: float, kept: bool
) -> None:
    """Only its first epoch waits, and each worker would have to fill a cache of its own."""
    epochs = [
        {"epoch": number, "steps": 400, "samples_per_s": 4000.0, "wait_s": wait_s}
        | {"startups_s": [0.0 if number else started_s]}
        for number, wait_s in enumerate(waits_s)
    ]
    found = verdict_on(
        measured=400,
        au=0.2,
        rates={"prep": 450.0},
        loader={"kind": "user", "workers": 0, "user": MADE | {"fetch_cpu_s": 1.0}},
        repetition={"epochs": epochs},
        ablations=without(prep=(2.4, 2.8)),
    )
    assert found.bottleneck == "prep"
    assert ("The first of 3 epochs has 98.4 % of the waits" in found.sentence) == kept
    assert ("workers" in [each.id for each in found.advice]) != kept


@pytest.mark.parametrize(
    ("collate_s", "workers", "says"),
    [
        (8.0, 0, ["num_workers", "collate_fn"]),
        (8.0, 2, ["collate_fn"]),
    ],
)
def test_a_training_whose_loader_has_no_workers_is_advised_to_use_some(
    collate_s: float, workers: int, says: list[str]
) -> None:
    facts = MADE | {"fetch_cpu_s": 9.5, "collate_s": collate_s}
    found = verdict_on(
        measured=200,
        au=0.2,
        loader={"kind": "user", "workers": workers, "user": facts},
        watched={"world": 1, "ranks": []},
        repetition={"ranks": [RANK | COMPUTES]},
    )
    *changes, _ = [each.change for each in found.advice]
    assert found.bottleneck == "prep"
    assert len(changes) == len(says)
    for word, change in zip(says, changes, strict=True):
        assert word in change


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        # Two workers make a batch in 0.4 s, and each of two ranks takes one in 2 s.
        ([0.8, 0.8], "a larger prefetch_factor in the DataLoader (now 4)"),
        ([3.9, 3.9], "more workers"),
        ([0.1, 1.2], "find out why one worker"),
    ],
)
def test_workers_that_are_fast_enough_on_average_are_advised_to_make_more_batches_ahead(
    seconds: list[float], says: str
) -> None:
    facts = MADE | {"fetch_cpu_s": 1.0, "out_of_order_s": 4.0, "fetch_s_by_worker": seconds}
    found = verdict_on(
        measured=200,
        au=0.5,
        workload={"loader": {"prefetch_factor": 4}},
        loader={"kind": "user", "workers": 2, "user": facts | {"workers": 2}},
        watched={"world": 1, "ranks": []},
        repetition={"ranks": [RANK | READS], "busy_s": 10.0, "steps": 10},
    )
    assert says in found.advice[0].change


@pytest.mark.parametrize("watched", [{"world": 1, "ranks": []}, None])
def test_workers_that_stay_are_promised_to_save_no_more_than_their_start(watched: Any) -> None:
    """They start for 30 s of 65 s, and the first batches are waited for 15 s longer."""
    facts = MADE | {"workers": 2, "worker_ready_mean_s": 10.0, "worker_starts": 3}
    found = verdict_on(
        measured=200,
        au=0.2,
        loader={"kind": "user", "workers": 2, "user": facts},
        watched=watched,
        repetition={
            "ranks": [RANK | {"fill_s": 45.0, "fetch_s": 1.0, "prep_s": 1.0}],
            "epochs": [{"epoch": number} for number in range(3)],
        },
    )
    assert found.bottleneck == "fill"
    advice = found.advice[0]
    assert "persistent_workers" in advice.change
    assert "at most 1.86 x" in advice.basis or advice.predicted_gain == pytest.approx(1.857, 0.01)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"fetch_cpu_s": 9.5}, "use more workers"),
        ({"fetch_cpu_s": 1.0}, "more batches at a time"),
        # The host was busy: waits for a core are no waits of the loader's own.
        ({"fetch_cpu_s": 1.0, "fetch_queued_s": 8.9}, "use more workers"),
        ({"fetch_cpu_s": 0.2, "fetch_queued_s": 6.0}, "more batches at a time"),
        (LATE | {"fetch_s_by_worker": [0.9, 0.1, 0.1, 0.1]}, "in_order=False"),
        # It got larger batches, or some slow samples.
        (
            LATE | {"fetch_s_by_worker": [0.9, 0.1], "sample_s_by_worker": [0.01, 0.01]},
            "more batches at a time",
        ),
        (LATE | {"fetch_s_by_worker": [0.1] * 4}, "more batches at a time"),
        (
            LATE | {"out_of_order_s": 0.1, "fetch_s_by_worker": [0.9, 0.1, 0.1]},
            "more batches at a time",
        ),
    ],
)
def test_advice_on_a_loader_of_the_users_follows_what_its_workers_did(
    facts: dict[str, Any], says: str
) -> None:
    loader = {"kind": "user", "user": MADE | facts}
    gains = without(storage=(1.0, 1.01), prep=(4.0, 5.0))
    found = verdict_on(measured=200, au=0.1, workers=4, prep=300, loader=loader, ablations=gains)
    assert found.bottleneck == "prep"
    assert says in found.advice[0].change


@pytest.mark.parametrize(
    ("au", "changes", "bottleneck"),
    [
        # No gain is only the accelerator where it hardly waits.
        (0.96, {"accelerator": (1.1, 1.3)}, "accelerator"),
        (0.6, {"accelerator": (1.1, 1.3)}, "undecided"),
        # The start of each epoch may be what is lost, and its rounds can't tell.
        (0.6, {"fill": (1.03, 1.9), "accelerator": (2.4, 9.0)}, "undecided"),
        (0.6, {"fill": (0.99, 1.03), "accelerator": (2.4, 9.0)}, "accelerator"),
        # A gain that may be all that is lost is not refuted: here of 1.28 x [0.27, 6.17].
        (0.54, {"storage": (0.27, 6.17), "accelerator": (4.0, 6.0)}, "undecided"),
        (0.54, {"storage": (0.98, 1.5), "accelerator": (4.0, 6.0)}, "accelerator"),
        # A faster accelerator brings more than all waiting.
        (0.92, {"accelerator": (1.9, 2.1)}, "accelerator"),
    ],
)
def test_the_accelerator_binds_where_no_other_stage_may_cost_what_is_lost(
    au: float, changes: dict[str, tuple[float, float]], bottleneck: str
) -> None:
    left_out = without(**{"storage": (0.98, 1.03), "prep": (0.97, 1.02), **changes})
    found = verdict_on(measured=2000 * au, au=au, ablations=left_out)
    assert (found.bottleneck, found.starved) == (bottleneck, au < 0.9)
    if au > 0.9:
        assert [advice.id for advice in found.advice] == ["none"]


def test_by_elimination_the_loader() -> None:
    left_out = without(storage=(0.98, 1.03), prep=(0.97, 1.02))
    found = verdict_on(rates={"loader": 800}, measured=790, au=0.4, ablations=left_out)
    assert found.bottleneck == "loader"


def test_stages_that_share_the_cpu() -> None:
    """2 cores, each stage takes them all: 2,600 and 2,000 alone are 1,130 together."""
    doc = build_run(
        rates={"fetch": 2600, "prep": 2000},
        measured=1130,
        au=0.565,
        host={"cores": 2, "affinity_cores": 2, "effective_cores": 2.0},
        repetition={"wall_s": 60.0, "cpu_s": 118.0},
        ablations=without(storage=(1.7, 1.8), prep=(2.2, 2.3)),
        dataset={"spec": {"name": "d", "codec": "gzip"}, "cheaper_codecs": ["lz4", "none"]},
        concluded=False,
    )
    per_gb = {name: 2 / rate / 1e5 * 1e9 for name, rate in (("fetch", 2600), ("prep", 2000))}
    ceilings = doc.job.ceilings | {
        name: doc.job.ceilings[name].model_copy(update={"cpu_s_per_gb": cost})
        for name, cost in per_gb.items()
    }
    for ablations in (doc.job.ablations, []):
        found = verdict(judge(doc.with_job(ceilings=ceilings, ablations=ablations)))
        assert found.bottleneck == "cpu"
        assert found.predicted_samples_per_s == pytest.approx(1130, rel=0.01)
        free, advice = found.advice[:2]
        assert (free.id, free.settings) == ("direct", ["reader.direct=true"])
        assert advice.id == "cores"
        assert advice.predicted_gain == pytest.approx(2000 / 1130, rel=0.01)  # the demand
        assert found.gains["cpu"].value == advice.predicted_gain
    slight = without(storage=(1.7, 1.8), prep=(1.2, 1.3))
    advised = verdict(judge(doc.with_job(ceilings=ceilings, ablations=slight))).advice
    of_prep = [each.predicted_gain for each in advised if each.id in ("codec", "decoding")]
    assert of_prep == [
        1.25
    ]  # what leaving out preparation brought, although the CPU is the bottleneck
    ceilings["cpu"] = Ceiling(samples_per_s=5000, by="accelerator")  # not near it
    assert verdict(judge(doc.with_job(ceilings=ceilings))).bottleneck == "prep"


def test_preparation_that_takes_the_cpu_is_named_itself() -> None:
    doc = build_run(
        rates={"fetch": 9000, "prep": 1000},
        measured=980,
        au=0.49,
        host={"effective_cores": 2.0},
        repetition={"wall_s": 60.0, "cpu_s": 118.0},
        ablations=without(storage=(1.06, 1.09), prep=(2.0, 2.1)),
        concluded=False,
    )
    prep = doc.job.ceilings["prep"].model_copy(update={"cpu_s_per_gb": 19.0})
    found = verdict(judge(doc.with_job(ceilings=doc.job.ceilings | {"prep": prep})))
    assert found.bottleneck == "prep"


# 8 reads in flight of 20 ms are 400 reads/s, and 32 are enough for 1,600.
LATENT = (50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 1610.0, 1605.0)
SLOW: dict[str, Any] = {
    "rates": {"storage_raw": 1600, "fetch": 400},
    "measured": 395,
    "au": 0.2,
    "workload": {"reader": {"concurrency": 2}},
    "dataset": {"shards": 60_000},
}

DEMANDED = 2000 / 395
"""No change can bring more: then the accelerators have all that they take."""


def test_small_requests_tell_operations_but_not_how_much_packing_brings() -> None:
    """Files of 100 kB: there is nothing larger to read, but 4 KiB come no more often."""
    spent = run_curve(curve(200, 400, 401, 400), curve(200, 400, 401, 400, size=4096))
    found = verdict_on(**SLOW, curve=spent, ablations=without(storage=(4.8, 5.2)))
    assert found.storage_bound == "operations"
    advice = found.advice[0]
    assert (advice.id, advice.low, advice.high) == ("pack", 1.0, DEMANDED)


@pytest.mark.parametrize(("size", "first"), [(100_000, "pack"), (4 << 20, "faster-storage")])
def test_samples_of_which_the_largest_reads_get_no_more_are_not_to_be_packed(
    size: int, first: str
) -> None:
    """What is spent is not known. Shards would be read in blocks of 4 MiB, too."""
    untold = run_curve(curve(200, 400, 401, 400, size=size))
    found = verdict_on(**SLOW, curve=untold, ablations=without(storage=(4.8, 5.2)))
    assert found.advice[0].id == first
    assert ("pack" in {each.id for each in found.advice}) == (first == "pack")


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": {"samples": 1}},
        {"workload": {"batch_size": 70_000}},
        {"repetition": {"steps": 8}, "measured": 100, "au": 0.05},
    ],
)
def test_a_run_that_is_too_short_says_so(changes: dict[str, Any]) -> None:
    found = verdict_on(**changes, ablations=without(storage=(4.8, 5.2)))
    (advice,) = found.advice
    assert (found.bottleneck, advice.id) == ("undecided", "longer-run")


def test_ceilings_that_cannot_be_told_apart_name_no_single_stage() -> None:
    """A tenth between prep and fetch, and windows that scatter by as much."""
    doc = build_run(
        rates={"storage_raw": 3000, "fetch": 1100, "prep": 1000},
        measured=950,
        au=0.48,
        concluded=False,
    )
    for name, value in (("fetch", 1100.0), ("prep", 1000.0)):
        doc.job.ceilings[name].windows = Estimate(
            value=value, low=0.85 * value, high=1.15 * value, n=4
        )
    found = verdict(judge(doc))
    assert found.bottleneck == "undecided" or {found.bottleneck, *found.also} >= {"storage", "prep"}


@pytest.mark.parametrize(
    ("storage", "bottleneck"),
    [({"scheme": "file"}, "undecided"), ({"bandwidth_bytes_per_s": 5e7}, "storage")],
)
@pytest.mark.parametrize("gains", [{}, {"fill": (1.08, 1.12)}])
def test_reads_from_a_cache_that_are_slowest_blame_no_other_stage(
    storage: dict[str, Any], bottleneck: str, gains: dict[str, Any]
) -> None:
    """Reads of 500 samples/s, preparation of 1,000, and a demand of 2,000. A simulated storage has
    its limits whatever serves the bytes below it.
    """
    found = verdict_on(
        rates={"storage_raw": None, "fetch": 500.0, "prep": 1000.0},
        measured=450,
        au=0.22,
        residency=1.0,
        workload={"cache": "any"},
        storage=storage,
        ablations=without(**gains),
    )
    assert found.bottleneck == bottleneck


def test_two_windows_do_not_make_a_ceiling_fifty_times_as_high_a_rival() -> None:
    """Student's interval of two windows of 21,300 and 25,000 samples/s begins below 0."""
    doc = build_run(
        rates={"storage_raw": 451, "fetch": 459, "prep": 23_170},
        measured=454,
        au=0.57,
        concluded=False,
    )
    for name, value, spread in (("fetch", 459.0, 5.0), ("prep", 23_170.0, 26_000.0)):
        doc.job.ceilings[name].windows = Estimate(
            value=value, low=max(0.0, value - spread), high=value + spread, n=2
        )
    assert verdict(judge(doc)).bottleneck == "storage"


@pytest.mark.parametrize(
    ("measured", "gains", "bottleneck"),
    [(500, {"sync": 1.03}, "storage"), (500, {}, "storage"), (250, {}, "sync")],
)
def test_ranks_that_share_a_slow_link_wait_for_each_other(
    measured: float, gains: dict[str, Any], bottleneck: str
) -> None:
    """They wait at the barrier as long as for data. A link that is not spent could bring more."""
    found = verdict_on(
        rates={"storage_raw": None, "fetch": 500.0, "prep": None, "loader": None},
        measured=measured,
        au=0.25,
        repetition={"ranks": [{**RANK, "sync_s": 30.0, "fetch_s": 14.0, "busy_s": 16.0}]},
        ablations=without(**gains),
    )
    assert (found.bottleneck, found.basis) == (bottleneck, "inferred")


@pytest.mark.parametrize(
    ("fetch", "times", "bottleneck"),
    [(500.0, READS, "storage"), (500.0, COMPUTES, "undecided"), (1500.0, READS, "undecided")],
)
def test_a_few_steps_tell_a_storage_that_is_far_too_slow(
    fetch: float, times: dict[str, float], bottleneck: str
) -> None:
    """The accelerators demand 2,000. Where the workers compute, preparation may be slower still."""
    found = verdict_on(
        rates={"storage_raw": None, "fetch": fetch, "prep": None, "loader": None},
        measured=450,
        au=0.22,
        repetition={"steps": 8, "ranks": [{**RANK, **times}]},
    )
    assert found.bottleneck == bottleneck


@pytest.mark.parametrize(("unsteady", "told"), [(0.0, True), (0.3, False)])
def test_a_gain_that_may_be_the_noise_of_the_run_is_none_where_it_is_cut(
    unsteady: float, told: bool
) -> None:
    """One round brought 1.28 x, where accelerators that never wait bring 1.08 x."""
    found = judge(build_run(measured=1000, au=0.92)).evidence
    one = {"prep": Estimate(value=1.28)}
    found = replace(found, unsteady=unsteady, gains=one, accelerator=1080.0, measured=1000.0)
    gain = _as_waits_allow(found).gains["prep"]
    assert (gain.value, is_told(gain, unsteady)) == (1.08, told)
