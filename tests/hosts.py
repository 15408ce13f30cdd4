"""Commands that are told to be the hosts of one job, as processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from iobench.record.run import RunRecord, load_run
from tests.processes import Command, Ended
from tests.servers.process import free_port

Record = TypeVar("Record", bound=RunRecord)


def as_host(index: int, hosts: int, port: int) -> Callable[[], None]:
    """What a command does first to be one host of a job that meets at this port."""

    def set_variables() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ |= {
            "IOBENCH_HOST_INDEX": str(index),
            "IOBENCH_HOSTS": str(hosts),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }

    return set_variables


def job(
    folder: Path,
    *words: object,
    hosts: int = 2,
    begun: int | None = None,
    of: dict[int, list[object]] | None = None,
    before: dict[int, Callable[[], Any]] | None = None,
) -> list[Command]:
    """``iobench WORDS`` as so many hosts, of which only ``begun`` begin.

    ``of``: more words, and ``before``: what single hosts do before they begin.
    """
    port = free_port()

    def first(index: int) -> Callable[[], None]:
        def act() -> None:
            as_host(index, hosts, port)()
            (before or {}).get(index, lambda: None)()

        return act

    return [
        Command((*words, *(of or {}).get(index, [])), folder / f"host-{index}", first(index))
        for index in range(begun or hosts)
    ]


def ended(commands: list[Command]) -> list[Ended]:
    return [command.wait() for command in commands]


def record_of(folder: Path, kind: type[Record]) -> Record:
    """That of the one job, beside which may lie the part of a host of one that ended early."""
    written = [each.parent for each in folder.glob("r/*/run.json")]
    (found,) = (each for each in written if "-host-" not in each.name)
    record = load_run(found)
    assert isinstance(record, kind)
    return record
