"""What a sample costs: the arithmetic of published tables, hosts, losses, and the order of ways to
pay.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from iobench.ask.compare.cost import SLOWED, WHAT_LASTS, Option, Terms, break_even_efficiency
from iobench.ask.compare.pace import SaveTimes, Schedule, lost_share, saving_of
from iobench.ask.compare.ranking import Machine, Ranking, rankings
from iobench.base.units import samples_per_usd
from iobench.judge.rebuild import conclude
from iobench.record.host import JobHost
from iobench.record.job import LayoutFacts
from iobench.record.run import TrainingRecord, load_run
from iobench.record.verdict import RankTime
from iobench.report.cost import samples_per_usd as samples_per_usd_text
from iobench.report.cost import sentences, title
from iobench.settings.instances import Instance
from tests.processes import document as printed_document
from tests.processes import refused
from tests.requests import SCENARIO, build_serving, build_trial
from tests.unit.conftest import build_run
from tests.unit.test_compare import BASE, FAST, cut_run, document, keep

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"

# Published tables


@pytest.mark.parametrize(
    ("samples_per_s", "usd_per_hour", "per_usd", "usd_per_million"),
    [
        (9.12, 0.357, 91_966, 10.87),
        (40.73, 0.1291, 1_135_771, 0.88),
        (340, 1.212, 1_009_901, 0.99),
    ],
)
def test_training_on_cpu_and_gpu_instances(
    samples_per_s: float, usd_per_hour: float, per_usd: int, usd_per_million: float
) -> None:
    """ResNet-50 on c7i.2xlarge, on demand and spot, and on g5.2xlarge."""
    found = samples_per_usd(samples_per_s, usd_per_hour)
    assert round(found) == per_usd
    assert round(1e6 / found, 2) == usd_per_million


@pytest.mark.parametrize(
    ("host_usd_per_hour", "efficiencies"),
    [(1.212, (0.855, 0.598, 0.427, 0.342, 0.256)), (1.624, (1.145, 0.802, 0.573, 0.458, 0.344))],
)
def test_break_even_of_spot(host_usd_per_hour: float, efficiencies: tuple[float, ...]) -> None:
    """4 hosts with a discount against one g5.12xlarge with as many accelerators; above 1 it is
    impossible.
    """
    found = [
        break_even_efficiency(4 * host_usd_per_hour * (1 - discount), 5.672)
        for discount in (0, 0.3, 0.5, 0.6, 0.7)
    ]
    assert found == pytest.approx(efficiencies, abs=0.0006)


# Losses


@pytest.mark.parametrize(
    ("hosts", "per_hour", "lost"),
    [(8, 0.05, 0.213), (32, 0.1, 0.896)],
)
def test_losses_are_exact(hosts: int, per_hour: float, lost: float) -> None:
    """Saves every hour that take no time, restarts of 5 minutes."""
    assert lost_share(Schedule(), hosts * per_hour) == pytest.approx(lost, abs=0.0006)
    assert lost_share(Schedule(), 0.0) == 0.0


def test_saves_take_time_with_and_without_interruptions() -> None:
    schedule = Schedule(saving=SaveTimes(run_id="c", blocked_s=400.0, restore_s=100.0))
    assert lost_share(schedule, 0.0) == pytest.approx(400 / 4000)
    assert lost_share(schedule, 0.4) > lost_share(Schedule(), 0.4) + 0.05
    behind = SaveTimes(run_id="c", blocked_s=0.0, behind_s=600.0, drag=0.3)
    assert lost_share(Schedule(saving=behind), 0.0) == pytest.approx(600 * 0.3 / 3600)


def test_the_saves_of_a_study_are_those_of_the_whole_model() -> None:
    found = load_run(GOLDEN / "checkpoint-stream")
    study = found.checkpoints
    saving = saving_of(found)
    growth = study.full_bytes / study.bytes
    blocked = [save.blocked_s for save in study.saves]
    assert saving.blocked_s == pytest.approx(sum(blocked) / len(blocked) * growth, rel=0.05)
    eight = saving_of(found, 8, grows=True)
    assert eight.blocked_s == pytest.approx(saving.blocked_s / 8)
    assert (saving.writers, eight.writers) == (1, 8)
    assert saving_of(found, 8) == saving
    assert saving_of(load_run(GOLDEN / "calibrated")) is None


def test_hosts_that_saved_together_save_as_fast_as_they_did() -> None:
    found = load_run(GOLDEN / "checkpoint-stream")
    two = conclude(found.with_job(hosts=[JobHost(name="h0"), JobHost(name="h1")]))
    measured = two.job.meaning.times["blocked_s"].mean
    for hosts, grows, factor in ((1, False, 2), (2, False, 1), (2, True, 1), (8, False, 1)):
        found_s = saving_of(two, hosts, grows=grows).blocked_s
        assert found_s == pytest.approx(factor * measured)
    assert saving_of(two, 8, grows=True).blocked_s == pytest.approx(measured / 4)
    paid = options(run_of(BASE), Terms(checkpoints=two), hosts=2)[0].figures
    assert paid.saving.blocked_s == pytest.approx(measured)


# Options


MACHINE = Instance(type="m", usd_per_hour=2.0, spot_usd_per_hour=0.5, priced="2026-01-01")


SERVER: Machine = ((1, Instance(type="m", usd_per_hour=3.6)),)


def run_of(rates: list[float], **changes: Any) -> TrainingRecord:
    return TrainingRecord.model_validate(document(rates, dataset__samples=1000, **changes))


def ranked(*given: tuple[TrainingRecord, Machine], terms: Terms | None = None) -> Ranking:
    (found,) = rankings(given, terms or Terms())
    return found


def options(
    doc: TrainingRecord, terms: Terms | None = None, *, hosts: int = 1, instance: Instance = MACHINE
) -> list[Option]:
    """On demand first, if there is such a price, then spot."""
    found = ranked((doc, ((hosts, instance),)), terms=terms).options
    return sorted(found, key=lambda option: option.figures.kind)


def test_what_is_lost_and_what_is_paid_for_waiting() -> None:
    doc = run_of(BASE)
    for repetition in doc.job.repetitions:
        # 20 steps of 0.1 s after a start-up of 0.5 s: only 4.8 % of the time is spent waiting
        repetition.accelerator_utilization_strict = 0.77
        repetition.accelerator_utilization_sustained = 0.952
    schedule = Schedule(every_s=1200, restart_s=600)
    terms = Terms(efficiency=0.9, interruptions_per_hour=0.1, schedule=schedule)
    demand, spot = options(doc, terms, hosts=2)
    assert demand.figures.waiting_usd_per_hour == pytest.approx(2 * 2.0 * 0.048)
    assert demand.figures.lost_share == 0
    assert spot.figures.lost_share == lost_share(schedule, 0.2)  # an interruption of one stops both
    assert spot.figures.samples_per_s == pytest.approx(
        2 * 0.9 * 100.1 * (1 - spot.figures.lost_share), rel=0.01
    )
    low, high = spot.figures.samples_per_usd_low, spot.figures.samples_per_usd_high
    assert low < spot.figures.samples_per_usd < high
    assert not spot.figures.never_interrupted


def test_unknown_interruptions_give_upper_bounds_which_are_never_the_best() -> None:
    found = ranked((run_of(BASE), ((1, MACHINE),)))
    best, spot = found.options
    assert (best.figures.kind, best.figures.never_interrupted) == ("on demand", False)
    assert (spot.figures.kind, spot.figures.never_interrupted) == ("spot", True)
    assert spot.figures.samples_per_usd == pytest.approx(4 * best.figures.samples_per_usd)
    against = found.options[1].against
    assert (against.answer, against.low, against.high) == ("inconclusive", 0.25, None)
    # It costs a quarter, so it pays until three quarters of the time are lost.
    often = spot.figures.break_even_interruptions_per_hour
    assert lost_share(Schedule(), often) == pytest.approx(0.75)
    stated = ranked((run_of(BASE), ((1, MACHINE),)), terms=Terms(interruptions_per_hour=0.0))
    assert (stated.options[0].figures.kind, stated.options[0].figures.never_interrupted) == (
        "spot",
        False,
    )


def test_saves_within_a_run_are_counted_once() -> None:
    """A third of each repetition was spent on saves: the rate without them is 1.5 times as high,
    and saves of the interval that is asked for count instead.
    """
    doc = run_of([100.0] * 6)
    for repetition in doc.job.repetitions:
        repetition.wall_s, repetition.checkpoint_s = 16.0, 5.0
        repetition.ranks = [RankTime(rank=0, wall_s=16.0, startup_s=1.0, busy_s=1.0, fill_s=0.0)]
    saving = SaveTimes(run_id="c", blocked_s=400.0)
    demand, _ = options(doc, Terms(schedule=Schedule(saving=saving)))
    assert demand.figures.samples_per_s == pytest.approx(100 * 15 / 10 * 0.9)
    assert demand.figures.saving == saving


def test_what_asynchronous_saves_slow_down_is_counted_once() -> None:
    """The rate beside them has it, whatever another study measured; without one it is not known."""
    study = load_run(GOLDEN / "checkpoint-dcp-async").job
    saves = [save.model_copy(update={"step_alone_s": 1.0}) for save in study.saves]
    slowed = [save.model_copy(update={"step_overlapped_s": 2.0}) for save in saves]
    known = load_run(GOLDEN / "checkpoint-dcp-async").with_job(saves=slowed)
    terms, alone = Terms(checkpoints=known), run_of(BASE)
    beside = alone.with_job(saves=study)
    assert options(alone, terms)[0].figures.saving.drag == 0.5
    found = options(beside, terms)[0].figures
    assert (found.saving.drag, SLOWED in found.notes) == (0.0, True)
    unknown = known.with_job(saves=study.saves)
    assert options(alone, Terms(checkpoints=unknown))[0].figures.saving.drag is None


def test_batches_that_were_made_during_saves_make_no_rate() -> None:
    """Half of each repetition was spent on saves, in which the workers made half of its batches."""
    doc = run_of([100.0] * 6)
    for repetition in doc.job.repetitions:
        repetition.wall_s, repetition.checkpoint_s = 10.0, 5.0
    quiet = doc.job.repetitions[0].model_copy(update={"checkpoint_s": None, "samples_per_s": 120.0})
    assert options(doc.with_job(quiet=quiet))[0].figures.samples_per_s == pytest.approx(120.0)


HOUR = Terms(epochs=1, samples=3_600_000, deadline_s=3600, efficiency=0.8, storage_grows=True)


def test_so_many_hosts_are_enough_with_the_time_of_their_own_saves() -> None:
    """More hosts save faster where the storage grows with them."""
    saves = load_run(GOLDEN / "checkpoint-stream")
    terms = Terms(
        epochs=1000,
        deadline_s=1600.0,
        storage_grows=True,
        checkpoints=saves,
        schedule=Schedule(every_s=5700.0),
    )
    late = options(run_of(BASE), terms)[0].figures
    in_time, too_few = (
        options(run_of(BASE), terms, hosts=(late.hosts_in_time or 0) - fewer)[0].figures
        for fewer in (0, 1)
    )
    assert (in_time.within_deadline, too_few.within_deadline) == (True, False)
    assert late.in_time_usd == pytest.approx(in_time.job_usd)


def test_a_budget_pays_for_the_loaders_layout_first() -> None:
    """10 s to write it and 10 s for an epoch of 1,000 samples, of which it pays 5 s."""
    doc = run_of([100.0] * 5)
    layout = LayoutFacts(bytes=10**6, seconds=10.0, files=1)
    doc = doc.with_job(loader=doc.job.loader.model_copy(update={"layout": layout}))
    found = options(doc, Terms(epochs=1, budget_usd=15 / 3600 * 2.0))[0].figures
    assert (found.job_s, found.within_budget) == (pytest.approx(20.0), False)
    assert found.samples_in_budget == pytest.approx(500.0)


def test_how_many_hosts_for_a_deadline() -> None:
    """100/s and 3,600,000 samples: one host takes 10 h. In 1 h, n hosts at 80 %: 10 / 0.8 n <= 1
    from 13 on.
    """
    doc = run_of([100.0] * 6)
    late, _ = options(doc, HOUR)
    assert (late.figures.within_deadline, late.figures.hosts_in_time) == (False, 13)
    assert late.figures.in_time_usd == pytest.approx(10 / 0.8 * 2.0)  # host hours x USD
    in_time, _ = options(doc, HOUR, hosts=13)
    assert (in_time.figures.within_deadline, in_time.figures.hosts_in_time) == (True, None)
    never, _ = options(doc, Terms(epochs=1, samples=3_600_000, deadline_s=1))
    assert (never.figures.within_deadline, never.figures.hosts_in_time) == (False, None)


@pytest.mark.parametrize(
    ("rate", "changes", "why"),
    [
        (2100.0, {}, "storage"),
        (2100.0, {"deadline_s": 1.0}, ""),  # 1,024 hosts of 1,900/s are too few for 7.2 million/s
        (4100.0, {"schedule": 30.0}, "lost time"),
        (2100.0, {"schedule": 30.0}, "storage and lost time"),
        (20_000.0, {"layout": 1.0}, "preparation"),
    ],
)
def test_why_no_number_of_hosts_is_in_time(rate: float, changes: Any, why: str) -> None:
    """7.2 million samples in half an hour are 4,000/s. Saves take 99.9 % of the time, or the layout
    takes a second a sample.
    """
    doc, schedule = storage_of(rate), Schedule()
    if "layout" in changes:
        layout = LayoutFacts(bytes=10**6, seconds=7.2e6, files=1)
        doc = doc.with_job(loader=doc.job.loader.model_copy(update={"layout": layout}))
    if every := changes.get("schedule"):
        schedule = Schedule(every_s=every, saving=SaveTimes(run_id="c", blocked_s=999 * every))
    terms = Terms(epochs=1, deadline_s=changes.get("deadline_s", 1800), schedule=schedule)
    for hosts in (1, 8):
        figures = options(doc, terms, hosts=hosts)[0].figures
        assert (figures.within_deadline, figures.never_in_time) == (False, why)


def storage_of(rate: float) -> TrainingRecord:
    """1,900 samples/s on one host; the storage was measured to deliver ``rate``."""
    rates = {"fetch": rate, "storage_raw": None}
    return build_run(rates=rates, measured=1900.0, dataset={"samples": 7_200_000})


def test_hosts_get_no_more_than_the_storage_was_measured_to_deliver() -> None:
    terms = Terms(epochs=1, deadline_s=1800)
    one, _ = options(storage_of(2100.0), terms)
    assert one.figures.samples_per_s == pytest.approx(1900)
    assert (one.figures.storage_limits, one.figures.if_storage_grows) == (False, False)
    # 7.2 million samples in half an hour are 4,000/s, which this storage never delivers.
    assert (one.figures.within_deadline, one.figures.hosts_in_time) == (False, None)
    eight, _ = options(storage_of(2100.0), terms, hosts=8)
    assert eight.figures.samples_per_s == pytest.approx(2100)
    assert eight.figures.wanted_samples_per_s == pytest.approx(8 * 1900)
    assert (eight.figures.storage_samples_per_s, eight.figures.storage_limits) == (2100, True)
    assert eight.figures.waiting_usd_per_hour == pytest.approx(8 * 2.0 * (1 - 0.95 * 2100 / 15_200))
    enough, _ = options(storage_of(20_000.0), terms, hosts=8)
    assert enough.figures.samples_per_s == pytest.approx(15_200)
    assert (enough.figures.storage_limits, enough.figures.if_storage_grows) == (False, False)


def test_no_end_of_an_interval_is_above_what_the_storage_delivers() -> None:
    """Two hosts take 3,800 samples/s, and up to 4,000 by the fastest repetition, of 3,810."""
    rates = {"fetch": 3810.0, "storage_raw": None}
    doc = build_run(rates=rates, measured=[1800.0, 1850.0, 1900.0, 1950.0, 2000.0])
    two, _ = options(doc, Terms(), hosts=2)
    assert two.figures.samples_per_s == pytest.approx(3800)
    ends = [two.figures.samples_per_usd_low, two.figures.samples_per_usd_high]
    assert ends == pytest.approx([samples_per_usd(3600, 4.0), samples_per_usd(3810, 4.0)])


def test_a_storage_that_grows_is_a_condition() -> None:
    terms = Terms(epochs=1, deadline_s=1800, storage_grows=True)
    one, _ = options(storage_of(2100.0), terms)
    assert one.figures.hosts_in_time == 3
    eight, _ = options(storage_of(2100.0), terms, hosts=8)
    assert eight.figures.samples_per_s == pytest.approx(15_200)
    assert (eight.figures.storage_limits, eight.figures.if_storage_grows) == (False, True)
    unknown, _ = options(run_of(BASE), Terms(), hosts=8)  # no ceiling was measured
    assert (unknown.figures.storage_samples_per_s, unknown.figures.if_storage_grows) == (None, True)


def test_the_efficiency_is_that_of_hosts_beyond_those_that_were_measured() -> None:
    """Two hosts took 200 samples/s together: so many need no assumption, and four of them do."""
    doc = run_of([200.0] * 6)
    doc = doc.model_copy(update={"hosts": doc.hosts * 2})
    terms = Terms(efficiency=0.8, storage_grows=True)
    for hosts, rate in ((1, 100.0), (2, 200.0), (4, 320.0)):
        assert options(doc, terms, hosts=hosts)[0].figures.samples_per_s == pytest.approx(rate)
        found = ranked((doc, ((hosts, MACHINE),)), (doc, ((1, SMALL),)), terms=terms)
        assert bool(found.break_evens) is (hosts == 4)


SMALL = Instance(type="small", usd_per_hour=1.0, spot_usd_per_hour=0.6)
LARGE = Instance(type="large", usd_per_hour=3.0)


def test_hosts_of_several_types_wait_for_the_slowest() -> None:
    slow = run_of([100.0] * 6, host__instance_type="small")
    fast = run_of([150.0] * 6, host__instance_type="large")
    for doc in (slow, fast):
        for repetition in doc.job.repetitions:
            repetition.accelerator_utilization_sustained = 0.9
    machine: Machine = ((2, SMALL), (1, LARGE))
    (option,) = ranked((slow, machine), (fast, machine)).options  # large has no spot price
    assert (option.hosts, option.figures.usd_per_hour, option.figures.kind) == (3, 5.0, "on demand")
    assert option.figures.samples_per_s == pytest.approx(300)
    assert option.slowest.instance.type == "small"
    assert [part.measured for part in option.parts] == [True, True]
    assert option.figures.waiting_usd_per_hour == pytest.approx(
        2 * 1.0 * 0.1 + 3.0 * (1 - 0.9 * 2 / 3)
    )
    assert "small" in option.machine
    assert "large" in option.machine
    other = run_of([90.0] * 6, host__instance_type="small", storage__url="/b")
    (slower,) = ranked((slow, machine), (other, machine), (fast, machine)).options
    assert [(part.groups, part.pace.middle) for part in slower.parts] == [(2, 90.0), (1, 150.0)]
    (guess,) = ranked((slow, machine)).options
    assert [part.measured for part in guess.parts] == [True, False]
    assert any("large" in note for note in guess.figures.notes)


# Order


def test_a_run_that_a_budget_cut_costs_what_its_job_will() -> None:
    """60 samples/s after the first 2 s of each epoch, whatever part of one the budget left."""
    job_rate = 64_000 / (2 + 64_000 / 60)
    short, long = (conclude(cut_run(60.0, steps=steps)) for steps in (25, 250))
    assert options(short)[0].figures.samples_per_s == pytest.approx(job_rate)
    assert options(long)[0].figures.samples_per_s == pytest.approx(job_rate)
    dataset = short.job.dataset.model_copy(update={"samples": 240})
    small = conclude(cut_run(60.0, steps=25).with_job(dataset=dataset))
    assert options(small)[0].figures.samples_per_s == pytest.approx(240 / (2 + 240 / 60))
    assert WHAT_LASTS in options(short)[0].figures.notes
    whole = conclude(cut_run(60.0, steps=25).with_job(fitted=None))
    assert options(whole)[0].figures.samples_per_s == pytest.approx(37.5)
    assert WHAT_LASTS not in options(whole)[0].figures.notes


def test_one_repetition_has_no_interval() -> None:
    only, several = (options(run_of(rates))[0] for rates in ([100.0], [99.0, 101.0]))
    assert (only.figures.samples_per_usd_low, only.figures.samples_per_usd_high) == (None, None)
    assert "[" in samples_per_usd_text(several)
    assert "[" not in samples_per_usd_text(only)
    fed = storage_of(20_000.0)  # more than eight hosts take
    fed = fed.with_job(repetitions=fed.job.repetitions[:1])
    assert "[" not in samples_per_usd_text(options(fed, hosts=8)[0])


def test_runs_of_the_same_identity_are_one_option() -> None:
    """Four runs a side, each of several repetitions: the interval is that of runs."""
    runs = [run_of([rate] * 3) for rate in (100.0, 101.0, 99.0, 100.0)]
    other = [run_of([rate] * 3, storage__url="/b") for rate in (160.0, 161.0, 159.0, 160.0)]
    machine = ((1, Instance(type="m", usd_per_hour=1.0)),)
    found = ranked(*((doc, machine) for doc in (*runs, *other)))
    best, second = found.options
    assert [len(option.slowest.pace.values) for option in found.options] == [4, 4]
    assert best.figures.samples_per_usd == pytest.approx(160 * 3600)
    assert second.slowest.pace.basis == "runs"
    low, high = second.figures.samples_per_usd_low, second.figures.samples_per_usd_high
    assert low < 100 * 3600 < high < 103 * 3600
    against = found.options[1].against
    assert found.options[0].against is None
    assert (against.answer, round(against.ratio or 0, 1)) == ("different", 1.6)
    assert found.options[1].differs == ("storage.url: /b -> /data",)


def test_one_run_a_side_tells_no_order_and_known_drift_does() -> None:
    machine = ((1, Instance(type="m", usd_per_hour=1.0)),)
    given = [(run_of(BASE), machine), (run_of(FAST, storage__url="/b"), machine)]
    (found,) = rankings(given, Terms())
    against = found.options[1].against
    assert (against.answer, against.low) == ("inconclusive", None)
    assert against.ratio == pytest.approx(1.2, rel=0.01)
    earlier = [
        run_of([100.0 * (1 + 0.02 * (-1) ** day)] * 3, run_id=f"{day}{url[1]}", storage__url=url)
        for url in ("/data", "/b")
        for day in range(8)
    ]
    (found,) = rankings(given, Terms(), earlier=earlier)
    against = found.options[1].against
    assert against.answer == "different"
    assert [option.slowest.pace.basis for option in found.options] == ["drift", "drift"]
    half_known = [doc for doc in earlier if doc.storage.url == "/b"]
    (found,) = rankings(given, Terms(), earlier=half_known)
    against = found.options[1].against
    assert against.answer == "inconclusive"
    low = found.options[0].figures.samples_per_usd_low
    assert low < 0.97 * found.options[0].figures.samples_per_usd


def test_the_efficiency_at_which_hosts_are_as_cheap_as_another_machine() -> None:
    """4 hosts on demand against one with as many accelerators, each as fast: 0.855."""
    one, four = (
        Instance(type=name, usd_per_hour=usd) for name, usd in (("1", 5.672), ("4", 1.212))
    )
    small = run_of([100.0] * 6)
    whole = run_of([400.0] * 6, host__instance_type="1")
    terms = Terms(efficiency=0.9, storage_grows=True)
    found = ranked((small, ((4, four),)), (whole, ((1, one),)), terms=terms)
    (line,) = found.break_evens
    assert (line.machine, line.other) == ("4 x 4", "1")
    assert line.efficiency == pytest.approx(4 * 1.212 / 5.672)


# The verb


def test_a_server_costs_what_the_rate_costs_that_it_holds() -> None:
    """An interruption takes its restart from it, and no work."""
    machine = ((1, Instance(type="m", usd_per_hour=3.6, spot_usd_per_hour=1.8)),)
    terms = Terms(interruptions_per_hour=6, schedule=Schedule(restart_s=60))
    ranking = rankings([(build_serving(rate=400.0), machine)], terms)[0]
    (spot, demand) = ranking.options
    rate = demand.figures.samples_per_s
    assert rate == pytest.approx(400, rel=0.05)
    assert demand.figures.samples_per_usd == pytest.approx(rate * 1000)
    assert demand.figures.lost_share == 0
    assert spot.figures.lost_share == pytest.approx(1 - math.exp(-60 / 600), rel=1e-3)
    notes = demand.figures.notes
    assert any("p99 stayed within 15.0 ms" in note for note in notes)


def test_a_rate_that_breaks_its_limit_buys_nothing() -> None:
    assert rankings([(build_serving(read_s=0.022), SERVER)], Terms()) == []


def test_a_rate_that_did_not_always_hold_its_limit_says_so() -> None:
    """Repetitions that broke the limit are told; where they are half of all, there is no price."""

    def of(*read_s: float) -> list[Ranking]:
        trials = [build_trial(seed=seed, read_s=each) for seed, each in enumerate(read_s)]
        return rankings([(build_serving(trials), SERVER)], Terms())

    ranking = of(0.002, 0.018, 0.002)[0]
    assert "2 of 3 repetitions" in sentences(ranking)[0]
    assert of(0.002, 0.018) == []


def test_rankings_of_one_workload_are_told_apart() -> None:
    scenarios = [SCENARIO.model_copy(update={"limit": limit}) for limit in (0.015, 0.05)]
    runs = [build_serving(scenario=scenario) for scenario in scenarios]
    found = rankings([(doc, SERVER) for doc in runs], Terms())
    assert [each.apart for each in found] == [("limit=0.015",), ("limit=0.05",)]
    assert "limit=0.05" in title(found[1])
    assert rankings([(runs[0], SERVER)], Terms())[0].apart == ()


def found_by(words: list[str]) -> Any:
    (found,) = printed_document(*words)["rankings"]
    return found


@pytest.fixture
def both(tmp_path: Path) -> list[str]:
    for name, rates in (("a", BASE), ("b", FAST)):
        changes = {"dataset__samples": 1000, "host__instance_type": "g5.2xlarge"}
        changes["storage__url"] = f"/{name}"
        keep(tmp_path / name, document(rates, **changes))
    return ["cost", str(tmp_path / "a"), str(tmp_path / "b")]


def test_all_time_lost_is_said(both: list[str]) -> None:
    """60 interruptions an hour where each costs ten days: nothing is trained for any money, and no
    deadline is met.
    """
    words = [*both[:2], "--host-price-per-hour", "1", "--host-spot-price-per-hour", "0.5"]
    words += ["--interruptions-per-hour", "60", "--restart", "10d", "--epochs", "1"]
    words += ["--deadline", "9h"]
    demand, spot = found_by(words)["options"]
    assert demand["figures"]["within_deadline"] is True
    assert (spot["figures"]["usd_per_million_samples"], spot["figures"]["lost_share"]) == (None, 1)
    assert (spot["figures"]["within_deadline"], spot["figures"]["job_s"]) == (False, None)
    assert (spot["against"]["answer"], spot["against"]["ratio"]) == ("different", None)


def test_cost_as_a_user_calls_it(both: list[str]) -> None:
    fast, slow = found_by(both)["options"]
    assert slow["parts"][0]["instance"]["type"] == "g5.2xlarge"  # as recorded
    ratio = fast["figures"]["samples_per_usd"] / slow["figures"]["samples_per_usd"]
    assert ratio == pytest.approx(1.2, rel=0.01)
    (price,) = slow["figures"]["prices"]
    assert price == {
        "type": "g5.2xlarge",
        "usd_per_hour": 1.212,
        "currency": "USD",
        "region": "us-east",
        "priced": "2026-11-20",
        "source": "instances.yaml",
    }
    machines = ["--instance", "4xg5.2xlarge", "--instance", "p4d.24xlarge", "--efficiency", "0.5"]
    found = found_by([*both, *machines])["options"]
    small, big = sorted(found, key=lambda option: -option["hosts"])
    assert [(one["hosts"], one["machine"]) for one in (small, big)] == [
        (4, "4 x g5.2xlarge"),
        (1, "p4d.24xlarge"),
    ]
    assert small["figures"]["samples_per_s"] == pytest.approx(
        4 * 0.5 * small["parts"][0]["samples_per_s"]["value"]
    )
    assert big["figures"]["samples_per_s"] == big["parts"][0]["samples_per_s"]["value"]


def test_a_run_costs_what_its_own_hosts_do(both: list[str]) -> None:
    """Without a number of hosts, those that were measured are paid for."""
    path = Path(both[1]) / "run.json"
    recorded = json.loads(path.read_text())
    path.write_text(json.dumps(recorded | {"hosts": recorded["hosts"] * 2}))
    (two,), (one,) = (found_by([*both[:2], *words])["options"] for words in ([], ["--hosts", "1"]))
    assert (two["machine"], one["machine"]) == ("2 x g5.2xlarge", "g5.2xlarge")
    assert two["figures"]["samples_per_s"] == pytest.approx(sorted(BASE)[3], rel=0.01)
    assert one["figures"]["samples_per_s"] == pytest.approx(two["figures"]["samples_per_s"] / 2)


def test_what_says_nothing_of_the_runs_is_refused(both: list[str], tmp_path: Path) -> None:
    assert "--epochs" in refused(*both, "--deadline", "9h")
    load = ["cost", str(GOLDEN / "model-load"), "--instance", "g5.xlarge"]
    for words in (["--epochs", "3"], ["--interruptions-per-hour", "1"], ["--efficiency", "0.5"]):
        assert words[0] in refused(*load, *words)
    saved = json.loads((GOLDEN / "checkpoint-stream" / "run.json").read_text())
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "run.json").write_text(json.dumps(saved | {"status": "failed"}))
    assert "failed" in refused(*both, "--checkpoints", str(tmp_path / "saved"))


def test_prices_that_can_not_be_compared_are_refused_in_one_line(
    both: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in {
        "euro": "type,usd_per_hour,currency\ng5.2xlarge,1,EUR\n",
        "mixed": "type,usd_per_hour,currency\ng5.2xlarge,1,EUR\ng5.xlarge,1,USD\n",
        "regions": "type,usd_per_hour,region\ng5.2xlarge,1,a\ng5.2xlarge,2,b\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text(rows)
    monkeypatch.chdir(tmp_path)
    for words, told in (
        (["--prices", "euro.csv"], "EUR"),
        (["--instance", "g5.xlarge", "--instance", "g5.2xlarge", "--prices", "mixed.csv"], "EUR"),
        (["--prices", "regions.csv"], "--region"),
    ):
        assert told in refused(*both, *words)
