"""Reads in flight of a job: what the settings allow, and what the batches offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.capacity.ceilings import Change, Quantity
from iobench.analyse.capacity.measured import known_latency
from iobench.analyse.capacity.whatif import what_if
from iobench.analyse.figures.in_flight import (
    job_reads_in_flight,
    run_reads_in_flight,
    run_requests_per_batch,
)
from iobench.analyse.verdict.judged import judge

Build = Callable[..., Any]


@pytest.mark.parametrize(
    ("concurrency", "workers", "ranks", "offered", "ahead", "reads"),
    [
        (4, 2, 2, 100, False, 16),
        (4, 2, 2, None, False, 16),  # not known: as the settings say
        (4, 0, 2, 100, False, 8),  # the ranks read themselves
        (16, 4, 1, 1, False, 4),  # one request in a batch
        (16, 4, 1, 1, True, 64),
        (16, 4, 1, 2.5, False, 10),
        (16, 4, 1, 0, False, 4),  # a batch from a kept row group; the next one reads
        (1, 0, 1, 0.1, False, 1),
    ],
)
def test_what_settings_allow_and_batches_offer(
    concurrency: int, workers: int, ranks: int, offered: float | None, ahead: bool, reads: int
) -> None:
    found = job_reads_in_flight(
        concurrency=concurrency,
        workers=workers,
        ranks=ranks,
        requests_per_batch=offered,
        reads_ahead=ahead,
    )
    assert found == reads


def one_request_a_batch(make_run: Build, **loader: Any) -> Any:
    """One rank, 4 workers, 10 ms for a read of one sample: 400/s with one in flight in each."""
    doc = make_run(
        rates={"storage_raw": 6400, "fetch": 400, "accelerator": 2000.0},
        measured=400,
        au=0.2,
        accelerators=1,
        dataset={"shards": 60_000},
        workload={"batch_size": 1, "accelerator": {"kind": "emulated", "step_time": 0.0005}},
        loader={"direct": True, "workers": 4} | loader,
    )
    fetch = doc.job.ceilings["fetch"].model_copy(update={"cpu_s_per_gb": 0.05})
    reader = doc.job.workload.reader.model_copy(update={"concurrency": 4})
    settings = doc.job.workload.loader.model_copy(update={"workers": 4})
    return doc.with_job(
        ceilings=doc.job.ceilings | {"fetch": fetch},
        workload=doc.job.workload.model_copy(update={"reader": reader, "loader": settings}),
    )


def test_concurrency_does_not_help_batches_of_one_request(make_run: Build) -> None:
    """What-if said 4 x for 4 times the concurrency, where nothing changes."""
    doc = one_request_a_batch(make_run)
    assert run_requests_per_batch(doc) == 1
    assert run_reads_in_flight(doc) == 4
    latency, _ = known_latency(doc)
    assert latency == pytest.approx(0.01)
    found = what_if(doc, Change(concurrency=Quantity(16)))
    assert judge(found.what_if).evidence.fetch == pytest.approx(400)
    more = what_if(doc, Change(workers=Quantity(8)))
    assert judge(more.what_if).evidence.fetch == pytest.approx(800)


def test_concurrency_helps_a_reader_that_reads_ahead(make_run: Build) -> None:
    doc = one_request_a_batch(make_run, reads_ahead=True, requests_per_batch=1.0)
    assert run_reads_in_flight(doc) == 16
    latency, _ = known_latency(doc)
    assert latency == pytest.approx(0.04)
    found = what_if(doc, Change(concurrency=Quantity(16)))
    assert judge(found.what_if).evidence.fetch == pytest.approx(1600)


def test_the_readers_own_count_goes_before_the_computed_one(make_run: Build) -> None:
    doc = one_request_a_batch(make_run, requests_per_batch=3.0)
    assert run_reads_in_flight(doc) == 12
