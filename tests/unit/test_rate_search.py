"""The search for the largest rate, on storage whose answer is known."""

from __future__ import annotations

import random

import pytest

from iobench.judge.serving.search import CLOSE, WINDOWS, RateSearch


def searched(search: RateSearch, largest: float, noise: float = 0.0, seed: int = 1) -> list[float]:
    """All rates that were tried; those up to ``largest`` hold, but for some luck."""
    generator, tried = random.Random(seed), []
    while (rate := search.next_rate()) is not None:
        tried.append(rate)
        search.tried(rate, held=rate <= largest * (1 + generator.gauss(0, noise)))
        assert len(tried) < 100
    return tried


@pytest.mark.parametrize("largest", [0.9, 3, 31, 32, 33, 410, 4_999])
def test_the_answer_is_between_the_rates_of_its_interval(largest: float) -> None:
    search = RateSearch(least=0.2, most=5_000)
    searched(search, largest)
    found = search.found()
    assert found.low <= largest < found.high <= CLOSE * found.low + 1e-9
    assert found.bound == ""


def test_the_rates_at_the_edge_are_tried_several_times() -> None:
    search = RateSearch(least=0.2, most=5_000)
    tried, found = searched(search, 410), search.found()
    assert [tried.count(rate) for rate in (found.low, found.high)] == [WINDOWS, WINDOWS]


@pytest.mark.parametrize("seed", range(50))
def test_one_disturbed_window_does_not_decide(seed: int) -> None:
    search = RateSearch(least=0.2, most=5_000)
    searched(search, 410, noise=0.05, seed=seed)
    assert search.found().low == pytest.approx(410, rel=0.2)


def test_where_every_rate_holds_nothing_above_the_largest_is_said() -> None:
    search = RateSearch(least=0.2, most=100)
    searched(search, 1e9)
    found = search.found()
    assert (found.low, found.high) == (100, None)
    assert "100" in found.bound


def test_where_no_rate_holds_there_is_no_answer() -> None:
    search = RateSearch(least=4, most=100)
    searched(search, 0)
    found = search.found()
    assert (found.low, found.high) == (None, 4)
    assert "4 requests/s" in found.bound


def test_a_search_that_is_ended_early_says_why() -> None:
    search = RateSearch(least=0.2, most=5_000)
    while (rate := search.next_rate()) is not None and rate <= 256:
        search.tried(rate, held=True)
    search.bound = "the client is late"
    found = search.found()
    assert (found.low, found.high, found.bound) == (256, None, "the client is late")
