"""Oracles of ranks in step: one slow rank is named, and the others wait for it as long as planted;
batches that jitter cost with a barrier what the ranks' own step times say.

The storage delays single ranks, or each read by a random time. Steps and latencies are tens of
milliseconds, so that a loaded machine of 2 cores adds little to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from iobench.analyse.figures.events import rank_epochs, select
from iobench.analyse.figures.ranktime import slowest_rank
from iobench.measure.timeline import read_events
from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.base import build
from iobench.schema.training import Repetition
from iobench.schema.workload import Workload
from iobench.storage.base import Storage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.oracle.places import Place, place
from tests.oracle.plants import UnevenStorage

__all__ = ["place"]

RANKS, STEPS = 4, 60

Measure = Callable[..., tuple[Repetition, set[str], npt.NDArray[np.float64]]]


@pytest.fixture
def measure(tmp_path: Path, place: Place) -> Measure:
    """Run RANKS ranks for STEPS steps of one sample each over a storage.

    Returns the repetition, the rules of the findings, and the ranks' own step times in seconds,
    without waits for other ranks: [RANKS, STEPS].
    """
    url = place.dataset(samples=RANKS * STEPS, sample_size={"mean": 20_000}, format="files")

    def go(
        wrap: Callable[[Storage], Storage], *, step_time: str, sync: str = "step"
    ) -> tuple[Repetition, set[str], npt.NDArray[np.float64]]:
        spec = build(
            Workload,
            {"name": "oracle", "dataset": "demo", "batch_size": 1}
            | {"accelerator": {"step_time": step_time, "sync": sync}}
            | {"reader": {"concurrency": 1}, "loader": {"workers": 1, "prefetch_factor": 1}},
            where="oracle",
        )
        plan = make_plan(spec, url, accelerators=RANKS, repetitions=1, seed=5)
        plan = replace(plan, storage=wrap(plan.storage))
        options = Options(results=tmp_path / sync, calibration_s=0.0, knock_outs=False)
        doc, folder = run(plan, options)
        events = select(read_events(folder / "events.parquet"), "measure", 0)
        own = [
            (part.rows["wait_ns"] + part.rows["copy_ns"] + part.rows["busy_ns"]) / 1e9
            for part in rank_epochs(events)
        ]
        (repetition,) = doc.job.repetitions
        return repetition, {each.rule for each in doc.findings}, np.array(own)

    return go


def test_one_slow_rank_of_four_is_named(measure: Measure) -> None:
    """One worker reads a batch in 100 ms, so a step of 40 ms waits 60 ms for it."""
    found, rules, _ = measure(
        lambda inner: UnevenStorage(inner, slow=2, latency_s=0.1), step_time="40ms"
    )
    assert slowest_rank(found) == 2
    assert "ranks.uneven" in rules
    others = [each for each in found.ranks if each.rank != 2]
    planted = (STEPS - 1) * 0.06 + 0.1
    for each in others:
        assert each.sync_s == pytest.approx(planted, rel=0.1)
    slow = found.ranks[2]
    assert slow.sync_s < 0.1 * planted
    assert (slow.fetch_s or 0.0) + slow.fill_s == pytest.approx(planted, rel=0.1)
    assert found.accelerator_utilization == pytest.approx(0.4, rel=0.1)
    assert found.sync_s == pytest.approx(0.75 * planted, rel=0.1)


def test_independent_ranks_do_not_wait_for_the_slow_one(measure: Measure) -> None:
    """Three ranks are busy all the time, and one for 40 ms of 100 ms."""
    found, rules, _ = measure(
        lambda inner: UnevenStorage(inner, slow=2, latency_s=0.1), step_time="40ms", sync="none"
    )
    assert "ranks.uneven" not in rules
    assert found.accelerator_utilization == pytest.approx((3 + 0.4) / 4, rel=0.1)
    assert found.samples_per_s == pytest.approx(3 * 25 + 10, rel=0.1)


def test_jitter_costs_what_the_slowest_of_each_step_takes(measure: Measure) -> None:
    """Batches of 15 ms in the median and 200 ms in one of a hundred, for steps of 40 ms."""
    wait = {"latency_s": 0.015, "latency_p99_s": 0.2}
    synced, _, own_s = measure(lambda inner: ThrottledStorage(inner, **wait), step_time="40ms")
    free, _, _ = measure(
        lambda inner: ThrottledStorage(inner, **wait), step_time="40ms", sync="none"
    )
    assert own_s.shape == (RANKS, STEPS)
    # A barrier after each step: as long as its slowest rank. One at the end: the slowest rank.
    synced_s, free_s = own_s[:, 1:].max(axis=0).sum(), own_s[:, 1:].sum(axis=1).max()
    assert synced_s > 1.05 * free_s
    assert synced.accelerator_utilization is not None
    assert free.accelerator_utilization is not None
    said = 0.04 * (STEPS - 1) / synced_s
    assert synced.accelerator_utilization == pytest.approx(said, rel=0.03)
    assert synced.accelerator_utilization < 0.95 * free.accelerator_utilization
