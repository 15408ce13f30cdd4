"""More hosts than were measured: each part against arithmetic or a simulation, and the whole
against runs that are made up by the same law.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.ask.capacity.hosts import HostsChange, HostsModel
from iobench.ask.capacity.jobs import HostLimits, RecordedJob
from iobench.ask.capacity.more_hosts import HostsPrediction, on_more_hosts
from iobench.ask.capacity.scaling import Band, Barrier, cycle_s, fit_barrier, fit_scaling, steps_of
from iobench.ask.compare.pace import Schedule
from iobench.base.errors import UsageError
from iobench.host.timeline import StepEvent, write_events
from iobench.judge.checkpoint_meaning import daly_s, waste
from iobench.judge.figures.instep import OwnStepTimes
from iobench.record.checkpoint import Training
from tests.processes import document, printed, refused
from tests.unit.conftest import build_run

# The closed queue


def simulated_s(
    supply_s: float, step_s: float, tokens: int, variation: float, seed: int = 1
) -> float:
    """The time from step to step of two stations in turn, each of which serves one token."""
    count, chance = 150_000, np.random.default_rng(seed)

    def times(mean: float) -> list[float]:
        found: list[float] = chance.gamma(1 / variation, variation * mean, count).tolist()
        return found

    made = done = 0.0
    ends: list[float] = []
    for number, (supply, step) in enumerate(zip(times(supply_s), times(step_s), strict=True)):
        free = ends[number - tokens] if number >= tokens else 0.0
        made = max(made, free) + supply
        done = max(done, made) + step
        ends.append(done)
    first = count // 10
    return (ends[-1] - ends[first - 1]) / (count - first)


@pytest.mark.parametrize(
    ("tokens", "ratio", "variation"), [(1, 0.5, 1), (2, 1.0, 1), (5, 1.5, 1), (5, 0.9, 0.25)]
)
def test_the_queue_is_as_fast_as_one_that_is_simulated(
    tokens: int, ratio: float, variation: float
) -> None:
    found = float(cycle_s(1.0, ratio, tokens=tokens, variation=variation))
    assert found == pytest.approx(simulated_s(1.0, ratio, tokens, variation), rel=0.01)


# Capacity


def law(hosts: float, one: float = 100.0, a: float = 0.05, b: float = 0.002) -> float:
    return hosts * one / (1 + a * (hosts - 1) + b * hosts * (hosts - 1))


def test_the_law_comes_back() -> None:
    found = fit_scaling([1, 2, 4, 8], [law(n) for n in (1, 2, 4, 8)])
    assert (found.one, found.contention, found.coherence) == pytest.approx((100, 0.05, 0.002))
    assert found.rate(12) == pytest.approx(law(12))
    assert found.peak == pytest.approx((0.95 / 0.002) ** 0.5)
    assert found.rate(1000) == pytest.approx(law(found.peak))  # and never less than at the peak


# Ranks that wait for each other


def test_the_slowest_of_many_is_the_mean_of_their_maximum() -> None:
    chance = np.random.default_rng(2)
    own = 0.1 + chance.gamma(2, 0.01, (4, 2048))
    steps = steps_of([OwnStepTimes(own, 0.1)], hosts=4, round_steps=1)
    drawn = chance.choice(own.ravel(), (20_000, 32)).max(axis=1).mean()
    assert steps.slowest_s(32)[0] == pytest.approx(drawn, rel=0.01)
    assert steps.slowest_s(1)[0] == pytest.approx(own.mean())
    assert steps.mean_s[0] == pytest.approx(own.mean())
    assert len(steps.mean_s) == 201


def test_a_barrier_is_fitted_and_never_gets_cheaper() -> None:
    truth = Barrier(0.7e-3, 0.2e-3)
    ranks = (1, 4, 16, 64)
    assert fit_barrier(ranks, [truth.cost_s(n) for n in ranks]) == pytest.approx(truth)
    flat = fit_barrier((2, 4), (3e-3, 1e-3))
    assert (flat.base_s, flat.log_s) == pytest.approx((2e-3, 0))
    assert Barrier(-1.0, 0.1).cost_s(2) == 0
    with pytest.raises(ValueError, match="two"):
        fit_barrier((4, 4), (1.0, 2.0))


# The whole, on jobs that are made up

BUSY_S, BATCH = 0.1, 10


def job(
    hosts: int,
    storage: float | None = None,
    *,
    per_host: int = 4,
    cycle_s: float = 0.102,
    **changes: Any,
) -> RecordedJob:
    """4 accelerators a host that demand 400 samples/s; steps of 102 ms and no jitter."""
    given: dict[str, Any] = {
        "run_id": f"run-{hosts}",
        "hosts": hosts,
        "ranks": hosts * per_host,
        "batch_size": BATCH,
        "busy_s": BUSY_S,
        "cycles_s": (cycle_s,),
        "steps": None,
        "storage": None if storage is None else Band(storage, storage, storage),
        "tokens": 9,
        "in_step": False,
        "bytes_per_sample": 1e6,
        "dataset_bytes": 1e12,
    }
    return RecordedJob(**given | changes)


def asked(jobs: Sequence[RecordedJob], hosts: int, /, **question: Any) -> HostsPrediction:
    return on_more_hosts(jobs, HostsChange(hosts=hosts, **question))


def test_one_number_of_hosts_leaves_the_storage_undecided() -> None:
    """600 samples/s on one host: no further host gets anything, or each as much."""
    found = asked([job(1, 600.0)], 8)
    assert found.what_if.samples_per_s.value is None
    assert found.what_if.samples_per_s.low == pytest.approx(600, rel=0.01)
    assert found.what_if.samples_per_s.high == pytest.approx(8 * 40 / 0.102, rel=0.01)
    assert (found.what_if.fed, found.what_if.bottleneck) == (None, ("accelerator", "storage"))
    assert found.storage_takes_over_from == (2, None)
    assert (found.leave_one_out, bool(found.no_leave_one_out)) == ((), True)
    assert (found.times_measured, found.marked) == (8, True)


def test_a_limit_in_bytes_takes_the_size_of_a_sample() -> None:
    with pytest.raises(UsageError, match="size of its samples"):
        asked([job(1, 600.0, bytes_per_sample=None)], 8, storage_bytes_per_s=2e9)


def test_a_stated_limit_decides() -> None:
    """2 GB/s are 2,000 samples/s: five hosts of 392 are fed, and the sixth is too many."""
    found = asked([job(1, 600.0)], 16, storage_bytes_per_s=2e9)
    assert found.what_if.samples_per_s.value == pytest.approx(2000, rel=0.01)
    assert (found.what_if.bottleneck, found.what_if.fed) == (("storage",), False)
    assert found.storage_takes_over_from == (6, 6)
    part = found.what_if.parts_s["storage"]
    assert part.value == pytest.approx(640 / 2000 - 0.102, rel=0.03)


def test_a_network_and_the_hosts_own_work_limit_each_host() -> None:
    jobs = [job(1, 600.0)]
    at = asked(jobs, 4, storage_bytes_per_s=1e12, host_network_bytes_per_s=200e6).what_if
    assert at.samples_per_s.value == pytest.approx(800, rel=0.01)
    assert at.bottleneck == ("network",)
    slow = HostLimits(ranks=4, workers=2, cores=8, prep=420.0, loader=900.0, cpu=450.0)
    limited = [job(1, 600.0, limits=slow)]
    found = asked(limited, 4, per_host=8, storage_bytes_per_s=1e12)
    assert found.what_if.samples_per_s.value == pytest.approx(
        4 * 420, rel=0.02
    )  # all cores are busy
    assert found.what_if.bottleneck == ("host",)


def steps_of_hosts(hosts: int, *, made: int, count: int = 3000) -> np.ndarray[Any, Any]:
    """From step to step of hosts that wait for each other, each with a storage of its own.

    Each makes a batch in 62 ms on average, two at once, and holds up to ``made``; a step takes
    20 ms. No host is slower than another one.
    """
    chance = np.random.default_rng(3)
    turn = chance.integers(2, size=(hosts, count // 50)).repeat(50, axis=1)
    services = np.where((np.arange(count) + turn) % 2, 0.124, 0.0)
    ready, end = np.zeros(hosts), 0.0
    ends: list[float] = []
    for number in range(count):
        free = ends[number - made] if number >= made else 0.0
        ready = np.maximum(ready, free) + services[:, number]
        end = max(end, float(ready.max())) + 0.02
        ends.append(end)
    return np.diff(ends[200:])


@pytest.mark.parametrize("limit", ["storage", "host"])
def test_hosts_that_wait_for_their_batches_are_not_late(limit: str) -> None:
    """Batches that come in pairs make every other step long; that is no slow rank."""
    alone, together = steps_of_hosts(1, made=4), steps_of_hosts(4, made=4)
    rate = BATCH / 0.062
    own = OwnStepTimes(alone[None, :2784], 0.02)
    slow = HostLimits(ranks=1, workers=2, cores=8, prep=rate)
    base = job(
        1,
        rate if limit == "storage" else 1e6,
        per_host=1,
        limits=slow if limit == "host" else None,
        busy_s=0.02,
        cycle_s=float(alone.mean()),
        steps=steps_of([own], hosts=1, round_steps=2),
        tokens=5,
        in_step=True,
    )
    found = asked([base], 4, storage_bytes_per_s=1e12, barrier=Barrier(0.0))
    at = found.what_if
    assert at.samples_per_s.low < 4 * BATCH / float(together.mean()) < 1.01 * at.samples_per_s.high
    assert at.bottleneck == (limit,)
    assert any("batches under way" in each for each in found.bases)


def test_caches_spare_the_storage() -> None:
    limit = {"storage_bytes_per_s": 1e9, "cache_bytes": 0.5e12}
    found = asked([job(1, 600.0)], 16, **limit)
    hits = HostsModel([job(1, 600.0)], HostsChange(**limit)).supply.hits(16)
    assert 0.4 < hits < 0.5
    assert found.what_if.samples_per_s.value == pytest.approx(1000 / (1 - hits), rel=0.02)


def test_a_restart_reads_as_much_where_caches_hold_all_samples() -> None:
    """A checkpoint of 10 GB at 1 GB/s, whatever the caches of the hosts hold. Processes take as
    long to start again as for cost and checkpoint.
    """
    saves = {"checkpoint_bytes": 1e10, "host_write_bytes_per_s": 1e9, "mtbf_s": 36_000.0}
    saves["storage_write_bytes_per_s"] = 1e9
    found = asked([job(1, 600.0)], 4, storage_bytes_per_s=1e9, cache_bytes=2e12, **saves)
    assert found.storms is not None
    assert found.storms.restart_s is not None
    assert found.storms.restart_s.value == pytest.approx(10.0)
    assert found.storms.lost is not None
    assert Training().restart_s == Schedule().restart_s
    lost = waste(daly_s(10.0, 36_000), 10.0, 36_000, Training().restart_s + 10)
    assert found.storms.lost.value == pytest.approx(lost, rel=1e-3)


def test_fewer_hosts_may_get_as_much_as_those_that_were_measured() -> None:
    """1,000 samples/s to 4 hosts: 2 of them get half of that, or all of it."""
    four = job(4, 1000.0)
    rates = HostsModel([four]).supply.storage(2)
    assert (rates.worst[0], rates.best[0]) == (500.0, 1000.0)
    left_out = asked([job(n, law(n), cycle_s=n * 40 / law(n)) for n in (1, 2, 4)], 8).leave_one_out
    for each in left_out:
        band = each.predicted_samples_per_s
        assert band.value is None or band.low <= band.value <= band.high


def test_three_numbers_of_hosts_tell_the_law_and_the_error() -> None:
    """All are starved, so each rate is that of the storage."""
    jobs = [job(n, law(n), cycle_s=n * 40 / law(n), tokens=10**6) for n in (1, 2, 4, 8)]
    found = asked(jobs, 12)
    assert found.what_if.samples_per_s.value == pytest.approx(law(12), rel=0.01)
    assert [each.hosts for each in found.leave_one_out] == [1, 2, 4, 8]
    assert [each.error for each in found.leave_one_out] == pytest.approx([0] * 4, abs=0.01)
    assert found.storage_takes_over_from == (1, 1)
    odd = [*jobs[:3], job(8, 2 * law(8), cycle_s=8 * 40 / law(8) / 2, tokens=10**6)]
    assert asked(odd, 12).leave_one_out[-1].error == pytest.approx(-0.5, abs=0.02)


def test_what_one_host_does_not_tell_is_not_told() -> None:
    """Neither the barrier over a network, nor how late the slowest rank is."""
    model = HostsModel([job(1, 1e6, last_s=1e-5, in_step=True)])
    assert model.barrier_s(4, 1).max() == pytest.approx(1e-5)
    unknown = model.barrier_s(411, 137)
    assert 0 < unknown.min() < 1e-3 < 8e-3 < unknown.max() < 8.4e-3
    assert (model.point(1, 4).fed, model.point(2, 4).fed) == (True, None)
    assert HostsModel([job(1, 1e6)]).point(2, 4).fed
    given = HostsModel([job(1, 1e6, in_step=True)], HostsChange(barrier=Barrier(1e-4, 0)))
    assert given.barrier_s(411, 137).max() == 1e-4


# As a user calls it


def save_runs(folder: Path, hosts: int, *, name: str = "", **changes: Any) -> Path:
    """A run of ``hosts`` hosts with two accelerators each, with its events."""
    ranks, chance = 2 * hosts, np.random.default_rng(hosts)
    rate = 2600.0 * hosts / (1 + 0.05 * (hosts - 1))
    doc = build_run(
        accelerators=ranks,
        repetitions=3,
        run_id=name or f"hosts-{hosts}",
        rates={"fetch": rate, "storage_raw": rate, "prep": 9e3 * hosts, "loader": 9e3 * hosts},
        measured=950.0 * ranks,
        repetition={"sync": "step"},
        concluded=False,
        **changes,
    )
    doc = doc.model_copy(update={"hosts": doc.hosts * hosts})
    directory = folder / (name or f"hosts-{hosts}")
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(doc.model_dump_json())
    parts = []
    for repetition in range(3):
        own = 0.1 + chance.gamma(2, 0.001, (ranks, 120))
        step = own.max(axis=0) + 0.0005
        for rank in range(ranks):
            columns = {key: np.zeros(120, dtype=np.int64) for key in StepEvent._fields}
            columns["step"] = np.arange(120)
            columns["steps"][:], columns["samples"][:] = 1, 100
            columns["wait_ns"] = np.round((own[rank] - 0.1) * 1e9).astype(np.int64)
            columns["busy_ns"][:] = 10**8
            columns["sync_ns"] = np.round((step - own[rank]) * 1e9).astype(np.int64)
            columns["start_ns"] = np.round((np.cumsum(step) - step) * 1e9).astype(np.int64)
            columns["sample_bytes"][:] = columns["bytes_read"][:] = 10**7
            parts.append(("measure", repetition, rank, columns))
    write_events(directory / "events.parquet", parts)
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    return [str(save_runs(folder, hosts)) for hosts in (1, 2, 4)]


def test_recorded_runs_as_a_user_calls_it(runs: list[str]) -> None:
    found = document("whatif --hosts 8", *runs)
    assert [each["hosts"] for each in found["leave_one_out"]] == [1, 2, 4]
    assert all(abs(each["error"]) < 0.05 for each in found["leave_one_out"])
    at = found["what_if"]
    assert (at["hosts"], at["accelerators"]) == (8, 16)
    rate = at["samples_per_s"]
    assert rate["low"] <= rate["value"] <= rate["high"]
    storage = 8 * 2600 / (1 + 0.05 * 7)  # about as fast as the accelerators: the knee is round
    assert 1600 / cycle_s(1600 / storage, 0.1055, tokens=5) < rate["value"] < 1600 / 0.1035
    assert found["measured"][0]["samples_per_s"] == pytest.approx(200 / 0.1033, rel=0.01)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"workload": {"name": "other"}}, "workload"),
        ({"storage": {"scheme": "file", "url": "/other"}}, "storage"),
        ({"workload": {"batch_size": 50}}, "batch size"),
        ({"status": "failed"}, "failed"),
        ({"status": "interrupted"}, "interrupted"),
        ({"workload": {"accelerator": {"kind": "null", "name": "null"}}}, "step time"),
        ({"hosts": [{}, {}, {}]}, "3 hosts"),
    ],
)
def test_runs_that_do_not_fit(
    runs: list[str], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    directory = save_runs(tmp_path, 1, name="odd")
    record = json.loads((directory / "run.json").read_text())
    for key, value in change.items():
        if key == "workload":
            record["job"]["workload"].update(value)
        elif key == "hosts":
            record["hosts"] = value
        else:
            record[key] = value
    (directory / "run.json").write_text(json.dumps(record))
    assert says in refused("whatif --hosts 8", *runs[:1], directory)


def test_a_run_from_memory_does_not_tell_what_the_storage_delivers(tmp_path: Path) -> None:
    directory = save_runs(tmp_path, 1, residency=1.0, workload={"cache": "warm"})
    found = document("whatif --hosts 8", directory)
    assert found["what_if"]["samples_per_s"]["value"] is None


def test_the_first_screen_names_invalid_runs(runs: list[str]) -> None:
    """These are: the samples of their steps are not those of their repetitions."""
    told = printed("whatif --hosts 8", *runs)
    assert re.findall(r"Run (\S+) is INVALID", told) == ["hosts-1", "hosts-2", "hosts-4"]


def test_a_run_without_events(tmp_path: Path) -> None:
    directory = save_runs(tmp_path, 1)
    (directory / "events.parquet").unlink()
    assert "events.parquet" in refused("whatif --hosts 8", directory)
    assert "none" in refused("whatif --hosts 8", tmp_path / "none")
