"""Between two hosts: the clocks, the messages, the meeting, and what each host did."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest

from iobench.base.errors import HostLostError, UsageError, WorkerError
from iobench.host.timeline import Array
from iobench.judge.figures.ranktime import slow_hosts
from iobench.record.typed import ArrayText, to_text
from iobench.runner.barrier import HostsBarrier, HostsSteps, lead_steps
from iobench.runner.hosts import wire
from iobench.runner.hosts.control import Control, Peer
from iobench.runner.hosts.launch import Launch, share_of
from iobench.runner.hosts.meeting import Joined
from iobench.runner.hosts.member import FromRank, Member
from iobench.runner.hosts.serving import arguments_of, result_of
from iobench.runner.hosts.wire import Clock, Echo, Error, Message, Offset, Wire, Wires, offset_of

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


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    one, other = connected()
    here, there = Wires(leads=True), Wires(leads=False)
    yield here.add(one, "host 0 (a)"), there.add(other, "host 1 (b)")
    here.close()
    there.close()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


class ByAnArray:
    """An array of Python objects over bytes that the sender chose, which pickle would make."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((1,), np.dtype("O"), b"A" * 8)


def pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


REPORT = 6


def framed(body: object, kind: int = REPORT) -> bytes:
    return with_body(json.dumps(body).encode(), kind)


def with_body(body: bytes, kind: int = REPORT, what: bytes = b"rank") -> bytes:
    return wire.HEAD.pack(b"iob2", kind, len(what), 0, len(body)) + what + body


ROWS = arguments_of(Member.read)
FORGED: dict[str, tuple[bytes, Any]] = {
    "a pickle": (pickled(Evil()), int),
    "a pickle of an array of objects": (pickled(ByAnArray()), int),
    "the place of a pickle's memo": (b"N r\xff\xff\xff\x0f ." * 2, int),
    "a pickle as a body": (with_body(pickled(Evil())), int),
    "a pickle as the barrier of a step": (with_body(pickled(Evil()), kind=2), int),
    "a pickle as an echo": (with_body(pickled(Evil()), kind=1), int),
    "a pickle as a beat": (with_body(pickled(Evil()), kind=0), int),
    "nothing known": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", int),
    "a length beyond all bounds": (wire.HEAD.pack(b"iob2", REPORT, 0, 0, 2**32 - 1), int),
    "an array of objects": (framed(["|O", [1], "QUFBQUFBQUE="]), Array),
    "an array that is larger than its bytes": (framed(["<i8", [2**28], "QUE="]), Array),
    "an array with many sides": (framed(["|u1", [1] * 65, "QQ=="]), Array),
    "an array with sides below zero": (framed(["|u1", [-1, -1], "QQ=="]), Array),
    "an array that is no text": (framed(["|u1", [1], [1]]), Array),
    "an array that is no base 64": (framed(["|u1", [1], "\u00e4"]), Array),
    "a kind that is none": (with_body(b"1", kind=200), int),
    "a name that is no text": (with_body(b"1", what=b"\xff\xfe"), int),
    "no body": (with_body(b""), int),
    "deep lists": (with_body(b"[" * 10**5), int),
    "a million lists": (with_body(b"[" + b"[]," * 10**6), int),
    "a number of thousands of digits": (with_body(b"1" * 5000), int),
    "a list for a number": (framed([1]), int),
    "a text for a number": (framed("5"), int),
    "a flag for a number": (framed(True), int),
    "a number for a flag": (framed({"a": 1}), dict[str, bool]),
    "an answer with a field too many": (
        framed([0, ["ReadyForEpoch", {"epoch": 1, "more": 2}]]),
        FromRank,
    ),
    "numbers for texts": (framed({"a": 1}), dict[str, str]),
    "an error without words": (framed(["StorageError", [1], "", []]), Error),
    "an error that is none": (framed(["annotations", "a", "", []]), Error),
    "a class for an error": (framed(["Iterable", "a", "", []]), Error),
    "a command that is none": (
        framed([0, ["Popen", {"args": ["true"]}]]),
        arguments_of(Member.to_rank),
    ),
    "a command with an unknown field": (
        framed([0, ["Start", {"at": 5}]]),
        arguments_of(Member.to_rank),
    ),
    "an answer that is none": (framed([0, ["Start", {"at_ns": 5}]]), FromRank),
    "a phase without fields": (framed([{"phase": {}}]), arguments_of(Member.begin)),
    "places that are none": (
        framed(
            [
                {
                    "curve": "a",
                    "keys": [],
                    "rows": ["<i8", [1, 4], "A" * 43 + "="],
                    "in_flight": 1,
                    "seconds": 1,
                    "most": 1,
                    "at_ns": 0,
                    "max_bytes": 1,
                    "once": False,
                }
            ]
        ),
        ROWS,
    ),
}


@pytest.mark.parametrize(("data", "kind"), list(FORGED.values()), ids=list(FORGED))
def test_what_is_no_message_ends_the_connection_with_one_line(
    data: bytes, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no crash, no other error, takes little memory, and nothing of it is executed."""
    monkeypatch.chdir(tmp_path)
    one, other = socket.socketpair(socket.AF_UNIX)
    monkeypatch.setattr(wire, "watch_silence", lambda connected: None)
    wires = Wires(leads=False)
    steps = HostsSteps(1, lambda host, answer: None)
    end = wires.meet(multiprocessing.Pipe()[0], lambda _, said: steps.hear(1, said))
    tracemalloc.start()
    try:
        here = wires.add(other, "host 1 (b)")
        sender = threading.Thread(target=one.sendall, args=(data,), daemon=True)
        sender.start()
        with pytest.raises(HostLostError) as told:
            here.read(here.receive(), kind)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        end()
        wires.close()
        one.close()
    assert most < 100 << 20
    assert "host 1 (b)" in str(told.value)
    assert len(str(told.value)) < 500
    assert not list(tmp_path.iterdir())


def test_values_arrive_as_they_were_sent(ends: tuple[Wire, Wire]) -> None:
    here, there = ends

    def sent(value: object, kind: Any) -> Any:
        here.send(Message("report", "a", body=to_text(value, kind)))
        return there.read(there.receive(), kind)

    values: list[tuple[Any, Any]] = [
        ([], list[int]),
        ((), tuple[int, ...]),
        ([1, 2.5, None, "a", True], list[Any]),
        ([2**64 - 1, -1], list[int]),
        ({1: (2, 3)}, dict[int, tuple[int, int]]),
        (math.inf, float),
        (None, result_of(Member.end_ranks)),
        ("a name \udcff that is no UTF-8", str),
    ]
    for value, kind in values:
        found = sent(value, kind)
        assert found == value
        assert type(found) is type(value)
    for array in (
        np.zeros((0, 4), dtype=np.int64),
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.array([True, False]),
        np.arange(3, dtype=">u4"),
        np.array(7, dtype=np.uint64),
    ):
        found = sent(array, Annotated[np.ndarray, ArrayText()])
        assert found.shape == array.shape
        np.testing.assert_array_equal(found, array)


def test_the_answer_of_a_call_that_was_given_up_is_not_taken_for_another(
    ends: tuple[Wire, Wire],
) -> None:
    here, there = ends
    who = Joined(index=1, name="b", machine="m", version="1", accelerators=1)
    peer = Peer(who, here)
    peer.call(Member.tried)  # and Ctrl-C comes before its answer
    peer.call(Member.tried)
    there.send(Message("answer", code=1, body=b"1"))
    there.send(Message("report", "counted"))
    there.send(Message("answer", code=2, body=b"2"))
    assert peer.answer(int) == 2
    assert peer.next().kind == "report"
    assert not peer.ready()


class Stopped:
    value = False


def test_ranks_of_two_hosts_meet_at_the_latest_end_until_one_has_no_more_steps() -> None:
    """Host 1, whose clock is 1000 ns ahead, makes a step more, and a second epoch follows."""
    one, other = connected()
    first, second = Wires(leads=True), Wires(leads=False)
    peer, back = first.add(one, "host 1"), second.add(other, "host 0")
    here, there = HostsBarrier(3), HostsBarrier(3, offset_ns=1000)
    ends = [lead_steps(first, [peer], here, []), second.meet(there.said, there.pass_on(back))]
    found: dict[str, list[int]] = {}
    stopped = Stopped()

    def rank(name: str, barrier: HostsBarrier, steps: list[list[int]]) -> None:
        for epoch, nominal in enumerate(steps):
            barrier.join(epoch, stopped)
            joined.wait()
            found[name] = found.get(name, [])
            for end_ns in nominal:
                opening = barrier.wait(epoch, end_ns, stopped)
                found[name].append(opening.at_ns)
            barrier.leave(epoch, stopped)

    joined = threading.Barrier(3, timeout=20)
    ranks = [
        threading.Thread(target=rank, args=("a", here, [[10, 50], [70]])),
        threading.Thread(target=rank, args=("b", here, [[20, 30], [60]])),
        threading.Thread(target=rank, args=("c", there, [[1015, 1040, 1005], [1090]])),
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    for end in ends:
        end()
    first.close()
    second.close()
    assert found == {"a": [20, 50, 90], "b": [20, 50, 90], "c": [1020, 1050, 1005, 1090]}


def test_what_is_said_of_another_phase_is_not_heard() -> None:
    answers: list[tuple[int, bytes]] = []
    steps = HostsSteps(2, lambda host, answer: answers.append((host, answer)), always=[0, 1])
    for phase, host, end_ns in ((2, 0, 5), (1, 1, 7), (2, 1, 6)):
        steps.hear(host, struct.pack("!4q", 2, phase, 0, end_ns))
    assert answers == [(0, struct.pack("!2q", 2, 6)), (1, struct.pack("!2q", 2, 6))]


@pytest.mark.parametrize("begun", [b"iob", wire.HEAD.pack(b"iob2", REPORT, 100, 0, 0)])
def test_a_host_that_drips_is_lost_in_a_bounded_time(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a byte at a time, so that something always comes and never a whole message."""
    monkeypatch.setattr(wire, "SILENCE_S", 0.3)
    monkeypatch.setattr(wire, "BEAT_S", 0.1)
    monkeypatch.setattr(wire, "watch_silence", lambda connected: None)
    one, other = socket.socketpair(socket.AF_UNIX)
    wires, over = Wires(leads=False), threading.Event()
    here = wires.add(other, "host 1 (b)")

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
        wires.close()


def test_a_host_that_leaves_at_once_after_goodbye_is_not_called_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = connected()
    first, second = Wires(leads=True), Wires(leads=False)
    here, there = first.add(one, "host 1 (leaving)"), second.add(other, "host 0 (leaving)")
    sent = here.send

    def send(message: Message) -> None:
        sent(message)
        if message.kind != "bye":  # a sign of life, which another thread sends
            return
        assert there.receive().kind == "bye"
        there.close()
        assert here.over.wait(20)

    monkeypatch.setattr(here, "send", send)
    hosts = [Joined(index=n, name="a", machine="m", version="1", accelerators=1) for n in (0, 1)]
    launch = Launch(by="", index=0, hosts=2, address="", port=0)
    met: Any = SimpleNamespace(launch=launch, hosts=hosts, wires=first, peers=[here])
    Control(met).say_bye(0, "")
    second.close()
    assert "leaving" not in caplog.text  # where hosts of earlier tests may be lost meanwhile


def test_ranks_are_shared_evenly_or_not_at_all() -> None:
    assert (share_of(8, 4), share_of(2, 2)) == (2, 1)
    for accelerators, hosts in ((3, 2), (1, 2), (0, 2)):
        with pytest.raises(UsageError):
            share_of(accelerators, hosts)


def rounds(ratios: list[float], *, count: int, noise: float, seed: int) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [
        [100.0 * ratio * float(np.exp(generator.normal(0, noise))) for ratio in ratios]
        for _ in range(count)
    ]


@pytest.mark.parametrize(("hosts", "noise"), [(2, 0.3), (3, 0.02), (4, 0.1), (8, 0.3)])
def test_a_clean_run_names_a_host_in_at_most_one_of_twenty(hosts: int, noise: float) -> None:
    named = sum(
        bool(slow_hosts(rounds([1.0] * hosts, count=6, noise=noise, seed=seed)))
        for seed in range(100)
    )
    assert named <= 5


@pytest.mark.parametrize("hosts", [2, 8])
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
