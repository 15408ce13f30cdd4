"""Constructed runs on which earlier rules of the verdict named a wrong cause or a wrong figure.

Each test is one of them, with the answer that arithmetic gives. In the base run 2 accelerators ask
for 2,000 samples/s of 100 kB, storage delivers 4,000, preparation 6,000, the loader 8,000.
"""

from __future__ import annotations

import math

import pytest

from iobench.ask.capacity.ceilings import Change
from iobench.ask.capacity.whatif import what_if
from iobench.base.units import Quantity
from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord
from iobench.record.verdict import Estimate, Verdict
from tests.unit.conftest import build_run
from tests.unit.test_fed import curve_of, with_curve


def verdict_of(doc: TrainingRecord) -> Verdict:
    return doc.job.verdict


# The bottleneck


def test_accelerators_fed_are_a_property_of_the_storage() -> None:
    """100,000 reads/s in all, 8 in flight for each rank, which takes 0.9 x 500 samples/s: how many
    it could feed does not depend on how many ranks asked. With so few reads in flight it feeds
    fewer than these.
    """
    could = set()
    for ranks in (1, 2, 4, 8):
        doc = build_run(
            accelerators=ranks,
            rates={"fetch": 400 * ranks, "prep": 1e5, "loader": 1e5},
            measured=400 * ranks,
            au=0.8,
            workload={"accelerator": {"kind": "emulated", "name": "h", "step_time": 0.2}},
        )
        doc = with_curve(doc, curve_of(100_000.0, points=9), in_flight=8 * ranks)
        found = verdict_of(conclude(doc)).fed
        assert found.accelerators < ranks
        could.add(found.potential)
    assert could == {math.floor(100_000 / (0.9 * 500))}


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
    found = verdict_of(conclude(doc))
    assert found.bottleneck == "undecided" or {found.bottleneck, *found.also} >= {"storage", "prep"}


# What if


def test_a_model_is_not_corrected_by_another_stages_error() -> None:
    """The CPU was overestimated; with steps of 5 times the length the accelerators are fed at 600
    samples/s, whatever the CPU does.
    """
    doc = build_run(
        accelerators=3,
        rates={"storage_raw": 9000, "fetch": 2600, "prep": 2000},
        measured=1130,
        au=0.38,
    )
    found = what_if([(doc, {})], Change(step_time=Quantity(5, relative=True)))
    rate = found.what_if.metrics["samples_per_s"].median
    assert rate == pytest.approx(600)
    assert found.corrected_samples_per_s in (None, pytest.approx(600))


def test_workers_that_take_turns_are_modelled_as_that() -> None:
    """Fetch 1,000 and prep 1,200 in turns are 545. Reads of half the latency: 750."""
    doc = build_run(
        rates={"storage_raw": 9000, "fetch": 1000, "prep": 1200, "loader": None},
        measured=545,
        au=0.27,
        dataset={"shards": 60_000},
        workload={"reader": {"concurrency": 1}},
    )
    found = what_if([(doc, {})], Change(latency=Quantity(0.5, relative=True)))
    rate = found.what_if.metrics["samples_per_s"].median
    assert rate == pytest.approx(1 / (1 / 2000 + 1 / 1200), rel=0.05)
