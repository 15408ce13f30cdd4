"""Between two hosts: the clocks, the messages, the meeting, and what each host did."""

from __future__ import annotations

import json
import math
import os
import pickle
import socket
import struct
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import HostLostError, UsageError, WorkerError
from iobench.judge.figures.hosts import slow_hosts
from iobench.runner.hosts import frames, wire
from iobench.runner.hosts.clock import Clock, Echo, Offset, offset_of
from iobench.runner.hosts.launch import share_of
from iobench.runner.hosts.wire import Wire
from iobench.runner.hosts.words import (
    Pong,
    Told,
)

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


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


class ByAnArray:
    """An array of Python objects over bytes that the sender chose, which pickle would make."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((1,), np.dtype("O"), b"A" * 8)


def pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def framed(told: object, arrays: object = (), body: bytes = b"") -> bytes:
    text = json.dumps({"told": told, "arrays": list(arrays)}).encode()  # type: ignore[call-overload]
    return frames.HEAD.pack(b"iob1", len(text), len(body)) + text + body


def a(name: str, /, **has: object) -> dict[str, object]:
    return {"is": name, "has": has}


PONG = a("runner.hosts.words.Pong", at_ns=5)
FORGED = {
    "a pickle": pickled(Evil()),
    "a pickle in the frame of older versions": struct.pack("!i", 80) + pickled(Evil()),
    "a pickle of an array of objects": pickled(ByAnArray()),
    "the place of a pickle's memo": b"N r\xff\xff\xff\x0f ." * 2,
    "a pickle as text": frames.HEAD.pack(b"iob1", len(pickled(Evil())), 0) + pickled(Evil()),
    "nothing known": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a length beyond all bounds": frames.HEAD.pack(b"iob1", 2**32 - 1, 2**32 - 1),
    "an array of objects": framed({"array": 0}, [["|O", [1]]], b"A" * 8),
    "an array of records": framed({"array": 0}, [["|V8", [1]]], b"A" * 8),
    "an array of texts": framed({"array": 0}, [["<U2", [1]]], b"A" * 8),
    "an array that is larger than its bytes": framed({"array": 0}, [["<i8", [2**28]]], b"A" * 8),
    "an array with many sides": framed({"array": 0}, [["|u1", [1] * 65]], b"A"),
    "an array with a side below zero": framed({"array": 0}, [["|u1", [-1, -1]]], b"A"),
    "an array with a side that is a text": framed({"array": 0}, [["|u1", ["1"]]], b"A"),
    "bytes of no array": framed(PONG, [], b"A" * 8),
    "an array that is not there": framed(a("runner.hosts.words.Counted", counters={"array": 7})),
    "a text that is none": frames.HEAD.pack(b"iob1", 2, 0) + b"\xff\xfe",
    "deep lists": frames.HEAD.pack(b"iob1", 10**5, 0) + b"[" * 10**5,
    "a million lists": frames.HEAD.pack(b"iob1", 3 * 10**6, 0) + b"[]," * 10**6,
    "a number of thousands of digits": frames.HEAD.pack(b"iob1", 5000, 0) + b"1" * 5000,
    "a number": framed(17),
    "a class that is no message": framed(a("runner.hosts.wire.Wire", name="x")),
    "a class of another module": framed(a("subprocess.Popen", args=["true"])),
    "a part of a message alone": framed(a("runner.messages.Start", at_ns=5)),
    "an unknown field": framed(a("runner.hosts.words.Pong", at_ns=5, more=1)),
    "no field": framed(a("runner.hosts.words.Pong")),
    "a text for a number": framed(a("runner.hosts.words.Pong", at_ns="5")),
    "true for a number": framed(a("runner.hosts.words.Pong", at_ns=True)),
    "a list for a mapping": framed(a("runner.hosts.words.Planned", same=[1, 2])),
    "numbers for texts": framed(a("runner.hosts.words.Planned", same={"pairs": [[1, 2]]})),
    "a list as a key": framed(a("runner.hosts.words.Planned", same={"pairs": [[[], 2]]})),
    "a number for an error": framed(a("runner.hosts.words.Refused", error=5, rank=None)),
    "an error without words": framed(
        a("runner.hosts.words.Refused", error=a("base.errors.StorageError", what=[1]))
    ),
    "an order that is none": framed(a("runner.hosts.words.Ask", what="delete")),
    "a command that is none": framed(a("runner.hosts.words.ToRank", rank=0, command=PONG)),
    "a specification with a wrong key": framed(
        a("runner.hosts.words.Told", value=a("settings.workload.ReaderSpec", evil="yes"))
    ),
}


@pytest.mark.parametrize("data", list(FORGED.values()), ids=list(FORGED))
def test_what_is_no_message_ends_the_connection_with_one_line(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no crash, no other error, takes little memory, and nothing of it is executed."""
    monkeypatch.chdir(tmp_path)
    one, other = socket.socketpair(socket.AF_UNIX)
    monkeypatch.setattr(wire, "watch_silence", lambda connected: None)
    here = Wire(other, "host 1 (b)")
    sender = threading.Thread(target=one.sendall, args=(data,), daemon=True)
    tracemalloc.start()
    try:
        sender.start()
        with pytest.raises(HostLostError) as told:
            here.receive()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        here.close()
        one.close()
    assert most < 100 << 20
    assert "host 1 (b)" in str(told.value)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 500
    assert not list(tmp_path.iterdir())


def test_arrays_and_numbers_arrive_as_they_were_sent(ends: tuple[Wire, Wire]) -> None:
    here, there = ends
    values: list[Any] = [
        [],
        (),
        [1, 2.5, None, "a", True],
        tuple(range(1000)),
        [2**64 - 1] * 100,
        [2**64 - 1, -1] * 100,
        {1: (2, 3), "b": None},
        math.inf,
        -math.inf,
        "a name \udcff that is no UTF-8",
    ]
    for value in values:
        here.send(Told(value))
        found = there.receive()
        assert isinstance(found, Told)
        assert found.value == value
        assert type(found.value) is type(value)
    for array in (
        np.zeros((0, 4), dtype=np.int64),
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.array([True, False]),
        np.arange(3, dtype=">u4"),
        np.array(7, dtype=np.uint64),
    ):
        here.send(Told(array))
        found = there.receive()
        assert isinstance(found, Told)
        assert isinstance(found.value, np.ndarray)
        assert found.value.shape == array.shape
        np.testing.assert_array_equal(found.value, array)


@pytest.mark.parametrize("begun", [b"iob", frames.HEAD.pack(b"iob1", 100, 0)])
def test_a_host_that_drips_is_lost_in_a_bounded_time(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a byte at a time, so that something always comes and never a whole message."""
    monkeypatch.setattr(wire, "SILENCE_S", 0.3)
    monkeypatch.setattr(wire, "watch_silence", lambda connected: None)
    one, other = socket.socketpair(socket.AF_UNIX)
    here, over = Wire(other, "host 1 (b)"), threading.Event()

    def drip() -> None:
        one.sendall(begun)
        with suppress(OSError):
            while not over.wait(0.02):
                one.sendall(b" ")

    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    try:
        with pytest.raises(HostLostError, match=r"host 1 \(b\)"):
            here.receive()
    finally:
        over.set()
        dripping.join()
        one.close()
        here.close()


def test_a_host_that_has_gone_is_named(ends: tuple[Wire, Wire]) -> None:
    here, there = ends
    there.close()
    with pytest.raises(HostLostError, match=r"host 0 \(a\)"):
        here.receive()
    here.close()
    for use in (here.receive, lambda: here.send(Pong(5)), here.poll):
        with pytest.raises(HostLostError):
            use()


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
