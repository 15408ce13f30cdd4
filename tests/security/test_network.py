"""Who reaches the ports of a job, and does not belong to it, ends no job and does no harm.

Strangers connect and say nothing, or little by little; others know the secret, and send what no
iobench sends.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed import PrefixStore, TCPStore

from iobench import __version__
from iobench.base.errors import UsageError
from iobench.runner.hosts import meeting
from iobench.runner.hosts.launch import Launch
from iobench.runner.hosts.meeting import Joined, meet
from iobench.runner.hosts.wire import Wires
from tests.hosts import as_host
from tests.pairs import one_of
from tests.processes import Command, descriptors, wait_until
from tests.servers.process import free_port


def launches(hosts: int = 2) -> list[Launch]:
    port = free_port()
    return [
        Launch(by="the environment", index=index, hosts=hosts, address="127.0.0.1", port=port)
        for index in range(hosts)
    ]


def store_of(launch: Launch) -> Any:
    limit = timedelta(seconds=30)
    return PrefixStore("iobench/", TCPStore(launch.address, launch.port, timeout=limit))


def said_by_controller(launch: Launch) -> tuple[int, bytes]:
    """The port and the secret of host 0, which anyone who reaches the store can read."""
    said = json.loads(store_of(launch).get("host/0"))
    return said["port"], said["token"].encode()


def silent(port: int, count: int, stack: ExitStack) -> list[socket.socket]:
    return [
        stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)
    ]


@contextmanager
def dripping(port: int, said: bytes) -> Iterator[Callable[[], bool]]:
    """A stranger who sends a byte at a time; yields whether he was turned away."""
    over, away = threading.Event(), threading.Event()

    def drip() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connected, suppress(OSError):
            connected.settimeout(0.02)
            for at in range(10**6):
                if over.is_set():
                    return
                connected.sendall(said[at : at + 1])  # at the end, nothing
                with suppress(TimeoutError):
                    if not connected.recv(1):
                        break
        away.set()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield away.is_set
    finally:
        over.set()
        thread.join()


def test_strangers_who_say_nothing_keep_no_host_out() -> None:
    first, second = launches()
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        controller = threads.submit(meet, first, accelerators=1, within_s=60)
        port, token = said_by_controller(second)
        silent(port, 100, stack)
        stack.enter_context(dripping(port, token))
        host = threads.submit(meet, second, accelerators=2, within_s=60)
        meetings = [each.result(timeout=60) for each in (controller, host)]
        for each in meetings:
            each.wires.close()
    assert [each.hosts[1].accelerators for each in meetings] == [2, 2]
    for each in (port, first.port):  # once they have met, nobody is let in

        def refused(port: int = each) -> bool:
            with socket.socket() as connected:
                return connected.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED

        wait_until(refused, "a port of the hosts is still open")


def test_hosts_that_were_started_wrongly_are_told() -> None:
    """A second process with the number of a host, and a host that was told of more hosts."""
    first, second, third = launches(3)
    counts = r"host 2 .* there are 4 hosts, but host 0 .* there are 3"
    with ThreadPoolExecutor() as threads:
        right = [
            threads.submit(meet, each, accelerators=1, within_s=60) for each in (first, second)
        ]
        store_of(first).wait(["host/0", "host/1"])
        with pytest.raises(UsageError, match="host 1 has joined already"):
            meet(second, accelerators=1, within_s=60)
        with pytest.raises(UsageError, match=counts):
            meet(replace(third, hosts=4), accelerators=1, within_s=60)
        for each in right:
            with pytest.raises(UsageError, match=counts):
                each.result(timeout=60)


def test_a_port_of_something_else_that_says_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch waits there for ever, in code that no signal ends."""
    monkeypatch.setattr(meeting, "_AT_LEAST_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        (launch,) = launches(1)
        launch = replace(launch, index=1, hosts=2, port=server.getsockname()[1])
        with pytest.raises(UsageError, match="does not answer as a store of torch"):
            meet(launch, accelerators=1, within_s=0.1)
    for each in threading.enumerate():  # what torch prints now is captured
        if each.name == "iobench-store":
            each.join(60)


TOKEN = "s" * 64


@pytest.fixture
def port() -> Iterator[int]:
    """Where host 0 waits for host 1, which joins at the end."""
    who = {"name": "a", "machine": "m", "version": "1", "accelerators": 1}
    hosts = [Joined(index=index, token=TOKEN, **who) for index in (0, 1)]
    wires = Wires(leads=True)
    with meeting.listen() as listener, ThreadPoolExecutor() as threads:
        port = listener.getsockname()[1]
        until = time.monotonic() + 120
        accepted = threads.submit(meeting._accept, listener, wires, hosts, until, 60.0)
        try:
            yield port
        finally:
            with socket.create_connection(("127.0.0.1", port)) as connected:
                connected.sendall(TOKEN.encode() + struct.pack("!i", 1))
                (wire,) = accepted.result(timeout=60)
            wires.close()
    assert "host 1" in wire.name


def test_idle_strangers_take_few_descriptors(port: int) -> None:
    before = descriptors()
    with ExitStack() as stack:
        mine = silent(port, 200, stack)
        stack.enter_context(dripping(port, TOKEN.encode()))
        wait_until(lambda: bool(select.select([mine[0]], [], [], 0)[0]), "nobody was turned away")
        assert len(descriptors() - before) <= len(mine) + meeting.MAX_STRANGERS + 8


def test_a_stranger_who_drips_is_turned_away(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "STRANGER_S", 0.2)
    with dripping(port, b"s" * 64) as away:
        wait_until(away, "the stranger was not turned away")


def test_a_wrong_secret_is_not_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connected:
        connected.sendall(b"x" * 64 + struct.pack("!i", 1))
        assert connected.recv(8) == b""


def test_no_descriptor_left_does_not_keep_the_first_host_busy(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody can be let in, it sleeps, and it goes on afterwards."""
    calls = [0]

    def fails(listener: socket.socket) -> Any:
        calls[0] += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", fails)
    with socket.create_connection(("127.0.0.1", port)):
        wait_until(lambda: calls[0] > 0, "nobody was let in")
        before = calls[0]
        time.sleep(1.0)
    assert calls[0] - before < 100
    monkeypatch.undo()


WHO = {"index": 1, "name": "b", "machine": "m", "version": __version__, "accelerators": 1}
WHO |= {"hosts": 2, "port": 0, "token": ""}
SAID = {
    "deep lists": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe{}",
    "nothing": b"{}",
    "a number": b"17",
    "a version that is a mapping": json.dumps(WHO | {"version": {"a" * 100: 1}}).encode(),
    "a name that is a list": json.dumps(WHO | {"name": ["b"]}).encode(),
    "a name of a megabyte": json.dumps(WHO | {"name": "b" * 2**20}).encode(),
    "very many accelerators": json.dumps(WHO | {"accelerators": 10**9}).encode(),
    "accelerators that are true": json.dumps(WHO | {"accelerators": True}).encode(),
    "no accelerators": json.dumps(WHO | {"accelerators": 0}).encode(),
    "a port that is a text": json.dumps(WHO | {"port": "1"}).encode(),
}


@pytest.mark.parametrize("said", one_of(3, SAID.values()), ids=list(SAID))
def test_what_is_wrong_in_the_store_is_one_line(said: bytes) -> None:
    first, second = launches()
    with ThreadPoolExecutor() as threads:
        controller = threads.submit(meet, first, accelerators=1, within_s=60)
        store_of(second).set("host/1", said)
        with pytest.raises(UsageError) as told:
            controller.result(timeout=60)
    assert "host 1" in str(told.value)
    assert len(str(told.value)) < 500


class ByAnArray:
    """An object at an address that the sender chose, which ended the process in older versions."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, (Address(), np.dtype("i1"))


class Address:
    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((1,), np.dtype("O"), b"A" * 8)


class ByACommand:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


def framed(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


@pytest.mark.parametrize("evil", [ByACommand(), ByAnArray()], ids=["command", "address"])
def test_a_host_that_sends_a_pickle_ends_the_job_by_one_line(
    evil: object, make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the secret, and has said in the store that it is host 1."""
    monkeypatch.chdir(tmp_path)
    data = make_dataset(samples=20)[1]
    first, second = launches()
    words = ("run", "demo", "--data", data, "--results", tmp_path / "r", "--join-within", "60s")
    command = Command(words, tmp_path / "h0", as_host(0, 2, first.port))
    port, token = said_by_controller(second)
    store_of(second).set("host/1", json.dumps(WHO))
    with socket.create_connection(("127.0.0.1", port)) as connected:
        connected.sendall(token + (1).to_bytes(4, "big"))
        connected.sendall(framed(pickle.dumps(evil)))
        ended = command.wait()
    assert ended.code == 1, ended.err
    assert "host 1 (b)" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "pwned").exists()
