"""An NFS server that goes away under a loader with workers: a pause is waited for, an end is one
line in time, and nothing is left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import StorageError
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase
from iobench.settings.workload import LoaderSpec
from iobench.storage import open_storage
from tests.datasets import generated
from tests.observers import on_steps
from tests.phases import phase
from tests.servers.nfs import NfsServer, rclone_nfs

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NfsServer]:
    with rclone_nfs(tmp_path / "server") as server:
        yield server


def over(server: NfsServer, *, timeout: str, epochs: int) -> Phase:
    """A loader of two workers over 60 samples that lie on the server."""
    keys = {"samples": 60, "sample_size": {"mean": 20_000}, "format": "tar"}
    manifest = generated(server.root / "set", **keys, samples_per_shard=20)
    # The throttle makes an epoch long enough to be in the middle of.
    storage = open_storage(f"throttled+{server.url('set', timeout=timeout)}&latency=20ms")
    more = {"accelerators": 1, "batch_size": 4, "epochs": epochs}
    return phase(manifest, storage, loading=LoaderSpec(workers=2), **more)


def test_a_server_that_ends_under_a_run_is_one_line_in_time(server: NfsServer) -> None:
    ended = False

    def end(steps: int) -> None:
        nonlocal ended
        if steps >= 5 and not ended:
            ended = True
            server.stop()

    with pytest.raises(StorageError, match="no answer from the NFS server") as caught:
        run_phase(over(server, timeout="5s", epochs=2000), context=on_steps(end))
    assert ended
    assert "/set/data/" in str(caught.value)


def test_a_server_that_pauses_under_a_run_is_waited_for(server: NfsServer) -> None:
    timers: list[threading.Timer] = []

    def pause(steps: int) -> None:
        if steps >= 5 and not timers:
            server.pause(True)
            timers.append(threading.Timer(1.0, server.pause, [False]))
            timers[0].start()

    outcome = run_phase(over(server, timeout="30s", epochs=12), context=on_steps(pause))
    assert timers, "the pause came"
    timers[0].join()
    columns: Any = outcome.columns[0]
    assert int(columns["samples"].sum()) == 12 * 60
