"""Reads in flight of a job: what the settings allow, and what the batches offer."""

from __future__ import annotations

import pytest

from iobench.judge.figures.in_flight import job_reads_in_flight


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
