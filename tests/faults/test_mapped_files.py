"""A file that becomes shorter while it is mapped: the kernel sends SIGBUS, and the run names the
file.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.base.errors import IobenchError, StorageError, WorkerError
from iobench.load.choose import make_reader
from iobench.record.manifest import Manifest
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase
from iobench.settings.workload import LoaderSpec, ReaderSpec
from iobench.storage.local.storage import LocalStorage
from tests.datasets import generated
from tests.observers import on_steps
from tests.phases import phase
from tests.processes import document, loader_workers

pytestmark = pytest.mark.usefixtures("nothing_left")

TOKENS = {
    "format": "tokens",
    "samples": 400,
    "sample_size": {"mean": 4096},
    "samples_per_shard": 100,
}


@pytest.fixture(autouse=True)
def _no_traceback_of_a_rank() -> None:
    """pytest's own handler would print one for a rank that dies as it should."""
    signal.signal(signal.SIGBUS, signal.SIG_DFL)


@pytest.fixture
def tokens(make_dataset: Any, tmp_path: Path) -> tuple[Manifest, Path]:
    manifest, source = make_dataset(**TOKENS)
    return manifest, Path(shutil.copytree(source, tmp_path / "copy"))


def mapped(tokens: tuple[Manifest, Path], loading: dict[str, Any], *, mmap: bool = True) -> Phase:
    manifest, path = tokens
    reading = ReaderSpec(mmap=mmap, direct=False)
    storage = LocalStorage(path)
    more = {"reader": make_reader(manifest, storage, reading), "reading": reading}
    more |= {"accelerators": 1, "batch_size": 4, "epochs": 1_000_000}
    return phase(manifest, storage, loading=LoaderSpec(**loading), **more)


def failure(running: Phase, harm: Callable[[], None]) -> IobenchError:
    """What a phase fails with after ``harm`` was done, once it had made some steps."""
    done = False

    def tick(steps: int) -> None:
        nonlocal done
        if steps >= 2 and not done:
            done = True
            harm()

    with pytest.raises(IobenchError) as caught:
        run_phase(running, context=on_steps(tick))
    assert done
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


@pytest.mark.parametrize(
    "loading",
    [
        {"workers": 1},
        {"workers": 1, "transport": "tensor", "persistent_workers": False},
        {"workers": 0},
    ],
    ids=["ring", "tensor", "rank"],
)
def test_a_mapped_file_that_is_cut_is_named(
    tokens: tuple[Manifest, Path], loading: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    manifest, path = tokens
    error = failure(mapped(tokens, loading), lambda: os.truncate(path / manifest.key(2), 5000))
    assert isinstance(error, StorageError)
    assert manifest.key(2) in str(error)
    assert capfd.readouterr().err == ""  # nor does torch guess at shared memory


def _bus_error_in_workers() -> None:
    for worker in loader_workers():
        with suppress(psutil.Error):
            worker.send_signal(signal.SIGBUS)


@pytest.mark.parametrize("mmap", [True, False])
def test_without_a_shorter_file_the_causes_are_listed(
    tokens: tuple[Manifest, Path], mmap: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    error = failure(mapped(tokens, {"workers": 1}, mmap=mmap), _bus_error_in_workers)
    assert isinstance(error, (StorageError, WorkerError))  # torch may not tell the signal
    assert "kernel log" in str(error)
    assert not (mmap and "/dev/shm" in str(error))
    assert capfd.readouterr().err == ""


# Data that changes during a run


@pytest.fixture
def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    spec = {"name": "changing", "samples": 64, "sample_size": {"mean": 20_000}}
    generated(tmp_path / "data", **spec, format="tar", samples_per_shard=8)
    (tmp_path / "changing.yaml").write_text(
        "{name: changing, samples: 64, sample_size: {mean: 20kB}, format: tar}\n"
    )
    (tmp_path / "job.yaml").write_text(
        "{name: job, dataset: ./changing.yaml, batch_size: 8, accelerator: {kind: 'null'}, loader: "
        "{workers: 1}, reader: {direct: false}}\n"
    )
    return tmp_path


RUN = "run job.yaml --data throttled+data?latency=60ms --repeat 2 --calibration 0"


def test_a_shard_replaced_by_its_own_bytes(changing: Path) -> None:
    victim = changing / "data" / "data" / "changing-000003.tar"

    ended = threading.Event()

    def replace() -> None:
        while not loader_workers() and not ended.wait(0.01):
            pass  # versions are taken before anything is read
        fresh = victim.with_name("fresh")
        fresh.write_bytes(victim.read_bytes())
        fresh.replace(victim)

    writer = threading.Thread(target=replace, daemon=True)
    writer.start()
    doc = document(RUN, code=3)
    ended.set()
    writer.join()
    assert doc["validity"] == "invalid"
    assert doc["job"]["dataset"]["changed"] == ["data/changing-000003.tar"]
    assert "data.changed" in [finding["rule"] for finding in doc["findings"]]
