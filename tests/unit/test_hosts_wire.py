"""Between two hosts: the clocks, the messages, the meeting, and what each host did."""

from __future__ import annotations

import json
import os
import pickle
import socket
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from iobench import __version__
from iobench.analyse.verdict.hosts import slow_hosts
from iobench.errors import HostLostError, StorageError, UsageError, WorkerError
from iobench.runner.hosts import wire
from iobench.runner.hosts.agreement import difference
from iobench.runner.hosts.clock import Clock, Echo, Offset, offset_of
from iobench.runner.hosts.launch import share_of
from iobench.runner.hosts.meeting import Joined, check_hosts
from iobench.runner.hosts.wire import Wire, loads
from iobench.runner.hosts.words import FromRank, Pong, Refused, ToRank
from iobench.runner.messages import Recorded, Start
from iobench.schema.job import LoaderFacts

SECOND = 1_000_000_000


def test_the_shortest_round_trip_tells_the_offset() -> None:
    ahead = 1000 * SECOND
    generator = np.random.default_rng(1)
    echoes = []
    for number in range(200):
        there, back = (int(10_000 + generator.exponential(50_000)) for _ in range(2))
        sent = number * 1_000_000
        echoes.append(Echo(sent, sent + there + ahead, sent + there + back))
    found = offset_of(echoes)
    shortest = min(echo.back - echo.sent for echo in echoes)
    assert abs(found.offset_ns - ahead) <= found.error_ns == (shortest + 1) // 2
    assert found.error_ns < 40_000


def test_a_faster_clock_is_told_from_one_that_is_only_ahead() -> None:
    at = [second * SECOND for second in (0, 10, 20, 30)]
    faster = Clock([Offset(t, 5_000 + round(t * 50e-6), 20_000) for t in at])
    assert faster.drift == pytest.approx(50e-6, rel=0.01)
    assert faster.there(40 * SECOND) == pytest.approx(40 * SECOND + 5_000 + 2_000_000, abs=50)
    assert Clock([Offset(t, 5_000, 20_000) for t in at]).drift is None
    assert Clock([Offset(0, 5_000, 20_000)]).drift is None


@pytest.fixture
def ends() -> Any:
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    listener.close()
    both = Wire(one, "host 0 (a)"), Wire(other, "host 1 (b)")
    yield both
    for each in both:
        each.close()


RECORDED = Recorded(
    columns={"step": np.arange(3, dtype=np.uint32), "wait_ns": np.array([1, 2, 3])},
    cpu_s=1.5,
    complete=True,
    startups={0: None},
    fetched={0: 7},
    loader=LoaderFacts(direct=True, workers=2),
)


def test_a_host_that_is_silent_is_lost_and_one_that_only_says_nothing_is_not(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SILENCE_S", 0.5)
    monkeypatch.setattr(wire, "BEAT_S", 0.05)
    here, there = ends
    there.keep_alive()
    assert not here.poll(1.0)
    there.send(Pong(7))
    assert here.receive() == Pong(7)
    there._closed.set()  # as if its process was stopped: the connection stays
    with pytest.raises(HostLostError, match=r"host 1 \(b\)|host 0 \(a\)"):
        here.receive()


def test_messages_arrive_as_they_were_sent(ends: tuple[Wire, Wire]) -> None:
    here, there = ends
    error = StorageError("no such file", remedy="mount it")
    for message in (Pong(5), ToRank(3, Start(17)), Refused(error, rank=2)):
        here.send(message)
        found = there.receive()
        assert str(found) == str(message)
    here.send(FromRank(1, RECORDED))
    found = there.receive()
    assert isinstance(found, FromRank)
    assert isinstance(found.answer, Recorded)
    assert found.answer.loader == RECORDED.loader
    np.testing.assert_array_equal(found.answer.columns["step"], RECORDED.columns["step"])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("false",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps(FromRank(0, Evil())),  # type: ignore[arg-type]
        pickle.dumps(os.path.join),
        pickle.dumps(Wire),
        pickle.dumps(np.array([Evil()], dtype=object)),
        pickle.dumps(print),
        b"",
        b"\x80\x05garbage",
        pickle.dumps(Pong(5))[:-3],
    ],
)
def test_what_is_no_message_ends_the_connection(data: bytes) -> None:
    with pytest.raises(HostLostError):
        loads(data)


def test_no_class_of_the_messages_does_anything_when_it_is_rebuilt() -> None:
    functions = {name for name, found in wire.known().items() if not isinstance(found, type)}
    modules = {module for module, _ in functions}
    assert modules <= {
        "iobench.errors",
        f"{wire._NUMPY}.multiarray",
        f"{wire._NUMPY}.numeric",
    }


def test_a_host_that_has_gone_is_named(ends: tuple[Wire, Wire]) -> None:
    here, there = ends
    there.close()
    with pytest.raises(HostLostError, match=r"host 0 \(a\)"):
        here.receive()


HOSTS = [
    Joined(index=0, name="a", machine="m0", version=__version__, accelerators=1),
    Joined(index=1, name="b", machine="m1", version=__version__, accelerators=3),
]


def test_two_versions_are_refused_by_name() -> None:
    check_hosts(HOSTS)
    with pytest.raises(UsageError, match=r"host 1 \(b\) has iobench 0\.0\.1"):
        check_hosts([HOSTS[0], replace(HOSTS[1], version="0.0.1")])
    assert json.loads(json.dumps(asdict(HOSTS[1])))["accelerators"] == 3


@pytest.mark.parametrize("key", ["data", "dataset", "workload"])
def test_what_differs_is_refused_by_name(key: str) -> None:
    same = {"data": "file:///a", "dataset": "1", "workload": "2"}
    assert difference(HOSTS[0], same, HOSTS[1], dict(same)) is None
    error = difference(HOSTS[0], same, HOSTS[1], same | {key: "other"})
    assert error is not None
    assert str(error).startswith("host 1 (b) ")


@pytest.mark.parametrize(("accelerators", "hosts", "each"), [(8, 4, 2), (2, 2, 1)])
def test_ranks_are_shared_evenly(accelerators: int, hosts: int, each: int) -> None:
    assert share_of(accelerators, hosts) == each


@pytest.mark.parametrize(("accelerators", "hosts"), [(3, 2), (1, 2), (0, 2)])
def test_ranks_that_can_not_be_shared(accelerators: int, hosts: int) -> None:
    with pytest.raises(UsageError):
        share_of(accelerators, hosts)


def rounds(ratios: list[float], *, count: int, noise: float, seed: int) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [
        [100.0 * ratio * float(np.exp(generator.normal(0, noise))) for ratio in ratios]
        for _ in range(count)
    ]


@pytest.mark.parametrize("hosts", [2, 3, 4, 8])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_a_clean_run_names_a_host_in_at_most_one_of_twenty(hosts: int, noise: float) -> None:
    named = sum(
        bool(slow_hosts(rounds([1.0] * hosts, count=6, noise=noise, seed=seed)))
        for seed in range(100)
    )
    assert named <= 5


@pytest.mark.parametrize("hosts", [2, 3, 4, 8])
def test_a_host_at_half_the_rate_is_named_and_no_other(hosts: int) -> None:
    for seed in range(50):
        ratios = [1.0] * hosts
        ratios[seed % hosts] = 0.5
        found = slow_hosts(rounds(ratios, count=5, noise=0.05, seed=seed))
        assert [each.host for each in found] == [seed % hosts]
        assert found[0].low < 0.52
        assert found[0].high > 0.48


@pytest.mark.parametrize("hosts", [3, 4, 8])
def test_three_rounds_are_enough_where_the_rates_vary_by_a_tenth(hosts: int) -> None:
    ratios = [1.0] * (hosts - 1) + [0.5]
    named = sum(
        [each.host for each in slow_hosts(rounds(ratios, count=3, noise=0.1, seed=seed))]
        == [hosts - 1]
        for seed in range(50)
    )
    assert named >= 40


@pytest.mark.parametrize("hosts", [3, 8])
def test_a_host_that_varies_much_is_seldom_called_slow(hosts: int) -> None:
    named = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        spread = [0.5] + [0.02] * (hosts - 1)
        logs = generator.normal(0, spread, (3, hosts))
        named += bool(slow_hosts(np.exp(logs).tolist()))
    assert named <= 10


def test_too_few_rounds_name_nobody() -> None:
    assert slow_hosts([[100.0, 50.0]] * 2) == []
    assert slow_hosts([[100.0, None]] * 9) == []
    assert issubclass(HostLostError, WorkerError)
