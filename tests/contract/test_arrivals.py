"""Any source of arrivals: as many requests as were asked for, in order, and the same by a seed.

They are counted here, and nobody trusts the generator: that of fio was twice too fast for years
(axboe/fio 333).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from iobench.base.errors import UsageError
from iobench.serve.arrivals import Arrivals, Instants, read_trace
from iobench.settings.scenario import ArrivalSpec, TraceFormat

RATE, SECONDS = 2_000.0, 50.0


def trace(folder: Path) -> ArrivalSpec:
    """A day of requests in bursts, some of which arrive together."""
    times = np.cumsum(np.random.default_rng(3).gamma(0.5, 2, 20_000)).round(2)
    path = folder / "trace.csv"
    path.write_text("timestamp,words\n" + "".join(f"{at},7\n" for at in times))
    return ArrivalSpec(kind="trace", path=str(path))


@pytest.fixture(params=["poisson", "gamma", "constant", "trace"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> ArrivalSpec:
    if request.param == "trace":
        return trace(tmp_path)
    if request.param == "gamma":
        return ArrivalSpec(kind="gamma", cv=3)
    return ArrivalSpec(kind=request.param)


def window(source: ArrivalSpec, seed: int = 1, most: int = 10**6) -> Instants:
    return Arrivals(source).window(RATE, SECONDS, seed, most)


def cv(instants: Instants) -> float:
    gaps = np.diff(instants)
    return float(gaps.std() / gaps.mean())


def test_as_many_requests_arrive_as_were_asked_for(source: ArrivalSpec) -> None:
    """Within four standard deviations of a count whose gaps have this spread."""
    spread = {"poisson": 1.0, "gamma": 3.0, "constant": 0.01, "trace": 2.0}[source.kind]
    expected = RATE * SECONDS
    for seed in range(5):
        assert abs(len(window(source, seed)) - expected) <= 4 * spread * math.sqrt(expected) + 1


def test_they_are_in_order_and_within_the_window(source: ArrivalSpec) -> None:
    instants = window(source)
    assert (np.diff(instants) >= 0).all()
    assert instants[0] >= 0
    assert instants[-1] < SECONDS * 1e9


def test_a_seed_gives_the_same_window_again(source: ArrivalSpec) -> None:
    assert (window(source, 5) == window(source, 5)).all()


def test_other_seeds_give_other_windows(source: ArrivalSpec) -> None:
    if source.kind != "constant":
        assert not np.array_equal(window(source, 5)[:1000], window(source, 6)[:1000])


def test_no_more_than_asked_for(source: ArrivalSpec) -> None:
    assert (window(source, most=10) == window(source)[:10]).all()


def test_the_gaps_are_as_irregular_as_asked_for(source: ArrivalSpec) -> None:
    expected = {"poisson": 1.0, "gamma": 3.0, "constant": 0.0, "trace": math.sqrt(2)}[source.kind]
    assert cv(window(source)) == pytest.approx(expected, rel=0.1, abs=1e-3)


def test_a_window_that_no_record_holds_is_one_line(source: ArrivalSpec) -> None:
    with pytest.raises(UsageError, match="2,000,000 requests"):
        Arrivals(source).window(1e9, 60, 1)


# Traces

FORMATS: dict[str, tuple[TraceFormat, str, list[float]]] = {
    "plain csv": ("plain", "id,timestamp\n1,10.5\n2,11\n3,11\n", [0, 0.5, 0.5]),
    "plain lines": ("plain", '{"timestamp": 3}\n\n{"timestamp": 4.25}\n', [0, 1.25]),
    "mooncake": (
        "mooncake",
        '{"timestamp": 27482, "input_length": 6955}\n{"timestamp": 30535, "hash_ids": [1]}\n',
        [0, 3.053],
    ),
    "azure": (
        "azure",
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.6805900,374\n2023-11-16 18:15:50.9951690,9\n",
        [0, 4.314579],
    ),
    "azure with a zone": (
        "azure",
        "TIMESTAMP\n2024-05-10 00:00:00.009930+00:00\n2024-05-10 00:00:01+00:00\n",
        [0, 0.99007],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_trace_is_read_in_the_format_of_its_writer(tmp_path: Path, name: str) -> None:
    form, text, times = FORMATS[name]
    path = tmp_path / "trace"
    path.write_text(text)
    assert read_trace(str(path), form).times_s == pytest.approx(times, abs=1e-6)


def test_a_trace_says_how_many_requests_arrive_together(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("timestamp\n" + "0\n" * 3 + "3\n" * 2)
    found = read_trace(str(path), "plain")
    assert (found.together, found.per_s) == (0.75, pytest.approx(4 / 3))


BAD: dict[str, tuple[TraceFormat, bytes, str]] = {
    "empty": ("plain", b"", "0 requests"),
    "one request": ("plain", b"timestamp\n1\n", "1 request"),
    "all at once": ("plain", b"timestamp\n1\n1\n", "different times"),
    "back in time": ("plain", b"timestamp\n1\n3\n2\n", "line 4 of .* goes back in time"),
    "another column": ("plain", b"time\n1\n2\n", "line 2 of .* has no 'timestamp'"),
    "another format": ("azure", b"timestamp\n1\n2\n", "no 'TIMESTAMP'"),
    "no time": ("plain", b"timestamp\n1\nsoon\n", "line 3 of .*'soon' is no time"),
    "infinite": ("plain", b"timestamp\n1\ninf\n", "line 3 of .*'inf' is no time"),
    "not a number": ("plain", b"timestamp\nnan\n2\n", "line 2 of .*'nan' is no time"),
    "no json": ("mooncake", b'{"timestamp": 1}\nx\n', "line 2 of"),
    "a list": ("mooncake", b'{"timestamp": 1}\n[1]\n', "line 2 of"),
    "a time that is true": ("mooncake", b'{"timestamp": true}\n', "line 1 of"),
    "not text": ("plain", b"\xff\xfe\x00", "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_trace_is_one_line(tmp_path: Path, name: str) -> None:
    form, data, said = BAD[name]
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=said) as caught:
        read_trace(str(path), form)
    assert "\n" not in str(caught.value)


def test_a_trace_that_can_not_be_read_is_one_line(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="cannot read the trace"):
            read_trace(str(place), "plain")


def test_a_line_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps({"timestamp": 1}) + "\n" + "[" * 100_000 + "\n")
    with pytest.raises(UsageError, match="line 2"):
        read_trace(str(path), "plain")
