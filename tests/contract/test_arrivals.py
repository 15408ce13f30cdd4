"""Any source of arrivals: as many requests as were asked for, in order, and the same by a seed.

They are counted here, and nobody trusts the generator: that of fio was twice too fast for years
(axboe/fio 333).
"""

from __future__ import annotations

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


@pytest.fixture(params=["poisson", "gamma", "constant", "sessions", "trace"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> ArrivalSpec:
    if request.param == "trace":
        return trace(tmp_path)
    if request.param == "gamma":
        return ArrivalSpec(kind="gamma", cv=3)
    if request.param == "sessions":
        return ArrivalSpec(kind="sessions", turns=4, tool_pause=0.1, person_pause=1)
    return ArrivalSpec(kind=request.param)


def window(source: ArrivalSpec, seed: int = 1, most: int = 10**6) -> Instants:
    return Arrivals(source).window(RATE, SECONDS, seed, most)


def cv(instants: Instants) -> float:
    gaps = np.diff(instants)
    return float(gaps.std() / gaps.mean())


def test_as_many_requests_arrive_as_were_asked_for(source: ArrivalSpec) -> None:
    """Within four standard deviations of a count whose gaps have this spread.

    That of sessions is the root of E[turns^2] / E[turns], 2 * 4 - 1 for geometric ones.
    """
    spreads = {"poisson": 1.0, "gamma": 3.0, "constant": 0.01, "trace": 2.0}
    spread = spreads.get(source.kind, math.sqrt(7))
    expected = RATE * SECONDS
    for seed in range(5):
        assert abs(len(window(source, seed)) - expected) <= 4 * spread * math.sqrt(expected) + 1


def test_a_window_is_in_order_and_belongs_to_its_seed(source: ArrivalSpec) -> None:
    instants = window(source)
    assert (np.diff(instants) >= 0).all()
    assert 0 <= instants[0] <= instants[-1] < SECONDS * 1e9
    assert (window(source) == instants).all()
    assert (window(source, most=10) == instants[:10]).all()
    other = window(source, 6)
    assert source.kind == "constant" or not np.array_equal(other[:1000], instants[:1000])


def test_the_gaps_are_as_irregular_as_asked_for(source: ArrivalSpec) -> None:
    """Of many sessions at the same time there is nothing to be seen in single gaps."""
    expected = {"gamma": 3.0, "constant": 0.0, "trace": math.sqrt(2)}.get(source.kind, 1.0)
    assert cv(window(source)) == pytest.approx(expected, rel=0.1, abs=1e-3)


def test_a_window_that_no_record_holds_is_one_line(source: ArrivalSpec) -> None:
    with pytest.raises(UsageError, match="2,000,000 requests"):
        Arrivals(source).window(1e9, 60, 1)


# Sessions


def test_a_session_pauses_between_its_requests() -> None:
    """Sessions so rare that they can be told apart: their number, and the pauses within them."""
    spec = ArrivalSpec(kind="sessions", turns=5, tool_share=0.75, tool_pause=0.01, person_pause=0.1)
    gaps = np.diff(Arrivals(spec).window(0.001, 2e7, 1) / 1e9)
    within = gaps[gaps < 2]
    assert len(gaps) == pytest.approx(20_000, rel=0.1)
    assert len(within) / len(gaps) == pytest.approx(4 / 5, abs=0.02)
    assert within.mean() == pytest.approx(0.75 * 0.01 + 0.25 * 0.1, rel=0.1)
    assert np.median(within) < 0.02


def test_as_many_sessions_go_on_at_the_begin_as_later() -> None:
    """Pauses are longer than the window, so nearly all requests are of sessions begun before."""
    spec = ArrivalSpec(kind="sessions", turns=20, tool_share=0, person_pause=60)
    found = Arrivals(spec).window(500, 10, 1)
    first, last = (
        int(((found >= a * 1e9) & (found < b * 1e9)).sum()) for a, b in ((0, 5), (5, 10))
    )
    assert first == pytest.approx(2_500, rel=0.15)
    assert last == pytest.approx(2_500, rel=0.15)


def test_too_many_sessions_at_the_same_time_are_one_line() -> None:
    spec = ArrivalSpec(kind="sessions", turns=1000, person_pause=3600)
    with pytest.raises(UsageError, match=r"sessions of .* are too long"):
        Arrivals(spec).window(RATE, SECONDS, 1)


# Traces

FORMATS: dict[str, tuple[TraceFormat, str, list[float]]] = {
    "plain csv": ("plain", "id,timestamp\n1,10.5\n2,11\n3,11\n", [0, 0.5, 0.5]),
    "plain lines": ("plain", '{"timestamp": 3}\n\n{"timestamp": 4.25}\n', [0, 1.25]),
    "mooncake": (
        "mooncake",
        '{"timestamp": 27482, "input_length": 6955}\n{"timestamp": 30535, "hash_ids": [1]}\n',
        [0, 3.053],
    ),
    "bailian": (
        "bailian",
        '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "turn": 1}\n'
        '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "turn": 2}\n',
        [0, 1.386],
    ),
    "sessions of Copilot": (
        "sessions",
        '{"session_id": "a", "turns": [{"llm_calls": [{"timestamp": "2026-06-01T00:00:01Z"}, '
        '{"timestamp": "2026-06-01T00:00:09.5Z"}]}, {"llm_calls": []}]}\n'
        '{"session_id": "b", "turns": [{"llm_calls": [{"timestamp": "2026-06-01T00:00:03Z"}]}]}\n',
        [0, 2, 8.5],
    ),
    "sessions of TraceLab": (
        "sessions",
        '{"timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T00:00:01Z"}, '
        '{"event_type": "text", "timestamp": "2026-06-01T00:00:05Z"}]}\n'
        '{"timing_events": [{"event_type": "text", "timestamp": "2026-06-01T00:00:06Z"}]}\n'
        '{"timing_events": [{"event_type": "tool_result", "timestamp": "2026-06-01T00:00:07Z"}]}\n',
        [0, 6],
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
    for encoding in ("utf-8", "utf-8-sig"):  # the second one is that of spreadsheets
        path.write_text(text, encoding=encoding)
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
    "not a number": ("plain", b"timestamp\nnan\n2\n", "line 2 of .*'nan' is no time"),
    "no json": ("mooncake", b'{"timestamp": 1}\nx\n', "line 2 of"),
    "a list": ("mooncake", b'{"timestamp": 1}\n[1]\n', "line 2 of"),
    "a time that is true": ("mooncake", b'{"timestamp": true}\n', "line 1 of"),
    "a session without turns": ("sessions", b'{"timestamp": 1}\n', "line 1 of .* no 'turns'"),
    "turns that are none": ("sessions", b'{"turns": [7]}\n', "line 1 of .* no 'turns'"),
    "a deep line": ("plain", b'{"timestamp": 1}\n' + b"[" * 100_000, "line 2"),
    "a time of 400 digits": ("plain", b'{"timestamp": 1' + b"0" * 400 + b"}\n", "line 1 of"),
    "a field of 200,000 letters": ("plain", b"timestamp,x\n1," + b"a" * 200_000, "line 2 of"),
    "not text": ("plain", b"\xff\xfe\x00", "not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_trace_is_one_line(tmp_path: Path, name: str) -> None:
    form, data, said = BAD[name]
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=said):
        read_trace(str(path), form)


def test_a_trace_that_can_not_be_read_is_one_line(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="cannot read the trace"):
            read_trace(str(place), "plain")
