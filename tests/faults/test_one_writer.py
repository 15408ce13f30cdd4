"""One writer for each target: of two that want one place, one works and the other is told why not.

IOBENCH_LOOPS says how often the races are run (default 1; all: 50).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import MissingObjectError
from iobench.storage import open_storage
from iobench.storage.base import read_object
from iobench.storage.locks.objects import is_lock_name
from iobench.storage.markers import held_as_seen
from tests.processes import in_process, paused, race, wait_until
from tests.servers.s3 import S3Server, s3_environment, swift_s3

__all__ = ["s3_environment", "swift_s3"]

_ASKED = os.environ.get("IOBENCH_LOOPS", "1")
LOOPS = 50 if _ASKED == "all" else int(_ASKED)

DATASET = (
    "demo", "--samples", 12, "--set", "samples_per_shard=2", "--set", "sample_size.mean=3kB",
    "--set", "sample_size.max=6kB",
)  # fmt: skip
QUICK = ("--repeat", 1, "--calibration", 0, "--set", "epochs=1", "--set", "loader.workers=0",
         "--set", "batch_size=4", "--set", "reader.crop=null", "--set", "reader.decode=false",
         "--no-ablations", "--quiet")  # fmt: skip

WRITING = "iobench.data.generator.writer:UnitWriter._make_shard"
READING = "iobench.runner.cache:prepare_cache"
SAVING = "iobench.runner.study:StudyJob.save"
TRYING = "iobench.runner.sweeping.run:_Trials._trial"


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, s3_environment: Mapping[str, str]
) -> Iterator[str]:
    """A target that is not there yet, on each kind of storage that has a lock."""
    if request.param == "local":
        yield str(tmp_path / "target")
        return
    server: S3Server = request.getfixturevalue("swift_s3")
    url = server.url()
    yield url
    storage: Any = open_storage(url)
    for entry in list(storage.list()):
        with suppress(MissingObjectError):  # a listing may be older than a removal
            storage.delete(entry.key)
    storage.close()


def generate(place: str) -> tuple[object, ...]:
    return ("generate", *DATASET, "--to", place, "--workers", 2, "--quiet")


def names(place: str) -> list[str]:
    """What lies there, once a lock that has just been released is out of the server's listing."""
    storage = open_storage(place)
    found: list[str] = []

    def released() -> bool:
        found[:] = [entry.key for entry in storage.list()]
        return not any(map(is_lock_name, found))

    wait_until(released, "a lock is left")
    storage.close()
    return found


def refused(ended: tuple[int, str, str]) -> None:
    """One line, for who was not first."""
    code, out, err = ended
    assert (code, out, err.count("\n")) == (2, "", 1), ended
    assert "is in use by" in err, ended


def whole(place: str) -> None:
    assert in_process("verify", place)[0] == 0
    assert not any(map(is_lock_name, names(place)))


def test_while_a_dataset_is_generated(place: str, tmp_path: Path, nothing_left: set[int]) -> None:
    with paused(WRITING, *generate(place), folder=tmp_path) as first:
        refused(in_process(*generate(place)))
        refused(in_process("clean", place))
        code, _, err = first.end()
        assert code == 0, err
    whole(place)


def test_while_weights_are_generated(place: str, tmp_path: Path, nothing_left: set[int]) -> None:
    words = ("generate", "qwen3-0.6b-weights", "--layers", 1, "--vocabulary", 64, "--quiet", "--to")
    assert in_process(*words, place)[0] == 0
    with paused("iobench.serve.generate:_require_same", *words, place, folder=tmp_path) as first:
        for other in ((*words, place), ("clean", place), ("load", place)):
            refused(in_process(*other))
        code, _, err = first.end()
        assert code == 0, err
    code, _, err = in_process("clean", place)
    assert (code, err) == (0, "")
    assert names(place) == []


def test_while_a_dataset_is_read(place: str, tmp_path: Path, nothing_left: set[int]) -> None:
    """Nobody removes it, other readers are welcome, and each finds the other in its record."""
    assert in_process(*generate(place))[0] == 0
    run = ("run", "demo", "--data", place, *QUICK, "--results", tmp_path / "r", "--json")
    with paused(READING, *run, folder=tmp_path) as first:
        refused(in_process("clean", place))
        assert in_process(*generate(place))[:2] == (0, f"{nothing_to_do(place)}")
        code, out, err = in_process(*run)
        assert code == 0, err
        assert shared_with(out) == [str(first.process.pid)]
        code, out, err = first.end()
        assert code == 0, err
    assert shared_with(out) == []  # the other one was gone when it looked again
    code, _, err = in_process("clean", place)
    assert (code, err) == (0, "")
    assert names(place) == []


def nothing_to_do(place: str) -> str:
    code, out, err = in_process(*generate(place))
    assert (code, err) == (0, "")
    assert out.startswith("nothing to do")
    return out


def shared_with(document: str) -> list[str]:
    """Processes that a run's record says read the same dataset."""
    findings = json.loads(document)["findings"]
    found = [one["evidence"] for one in findings if one["rule"] == "storage.shared"]
    return [text.partition("process ")[2].split()[0].rstrip(",") for text in found]


def test_while_a_dataset_is_removed(place: str, tmp_path: Path) -> None:
    assert in_process(*generate(place))[0] == 0
    with paused("iobench.data.generator.cleaner:_clean", "clean", place, folder=tmp_path) as first:
        refused(in_process(*generate(place)))
        refused(in_process("clean", place))
        refused(in_process("verify", place))
        refused(in_process("run", "demo", "--data", place, *QUICK, "--results", tmp_path / "r"))
        assert first.end()[0] == 0
    assert names(place) == []


def test_while_checkpoints_are_saved(place: str, tmp_path: Path, nothing_left: set[int]) -> None:
    study = ("checkpoint", "resnet50", "--to", place, "--scale", "1/512", "--repeat", 2, "--quiet",
             "--results", tmp_path / "r", "--json")  # fmt: skip
    with paused(SAVING, *study, folder=tmp_path) as first:
        refused(in_process(*study))
        refused(in_process("clean", place))
        code, _, err = first.end()
        assert code == 0, err
    assert names(place) == []


def sweep(root: Path, results: Path) -> tuple[object, ...]:
    return ("sweep", "demo", "--to", root, "--samples", 12, "--sweep", "batch_size=4",
            "--set", "dataset.samples_per_shard=2", "--set", "dataset.sample_size.mean=3kB",
            "--set", "dataset.sample_size.max=6kB", "--set", "loader.workers=0",
            "--set", "epochs=1", "--set", "reader.crop=null", "--set", "reader.decode=false",
            "--repeat", 1, "--calibration", 0, "--results", results)  # fmt: skip


def test_sweeps_on_one_data_root(tmp_path: Path) -> None:
    """Who comes while data is generated is refused. Who comes later shares it, and leaves it."""
    root, results = tmp_path / "data", tmp_path / "r"
    with paused(WRITING, *sweep(root, results), folder=tmp_path) as first:
        code, _, err = in_process(*sweep(root, results))
        assert (code, "is in use by" in err) == (1, True), err
        assert first.end()[0] == 0
    assert list(root.iterdir()) == []
    with paused(TRYING, *sweep(root, results), folder=tmp_path) as first:
        code, _, err = in_process(*sweep(root, results))
        assert (code, "not removed" in err) == (0, True), err
        assert len(list(root.iterdir())) == 1
        assert first.end()[0] == 0
    assert list(root.iterdir()) == []


def test_one_sweep_goes_on_in_one_process(tmp_path: Path) -> None:
    results = tmp_path / "r"
    with paused(TRYING, *sweep(tmp_path / "data", results), folder=tmp_path) as first:
        (directory,) = results.iterdir()
        refused(in_process("sweep", "--resume", directory))
        assert first.end()[0] == 0
    assert (
        in_process("sweep", "--resume", directory)[0] == 0
    )  # nothing is left to do, and nobody is there


@pytest.mark.parametrize("loop", range(LOOPS))
@pytest.mark.parametrize("group", [False, True], ids=["killed", "killed with its group"])
def test_a_killed_writer_keeps_nobody_out(
    place: str, tmp_path: Path, group: bool, loop: int
) -> None:
    with paused(WRITING, *generate(place), folder=tmp_path) as first:
        others = first.process.children()
        first.process.kill()
        for number in others if group else ():
            with suppress(ProcessLookupError):  # it dies with its parent
                os.kill(number, signal.SIGKILL)
        code, _, err = in_process(*generate(place))
        assert code == 0, err
    whole(place)


@pytest.mark.parametrize("loop", range(LOOPS))
def test_a_race_to_generate(place: str, tmp_path: Path, loop: int) -> None:
    """One generates it; the other is refused, or comes when it is complete."""
    ended = race(generate(place), generate(place), folder=tmp_path)
    assert sorted(one.code for one in ended) in ([0, 0], [0, 2]), ended
    for one in ended:
        if one.code:
            refused((one.code, one.out, one.err))
    assert sum(one.out.startswith("generated") for one in ended) == 1, ended
    whole(place)


def test_a_folder_that_was_made_anew_is_looked_into(tmp_path: Path) -> None:
    """As ``clean`` removes it, and ``generate`` makes it, at the same time."""
    root = tmp_path / "place"
    storage = open_storage(str(root))
    root.mkdir()
    (root / "marker").write_bytes(b"old")
    assert read_object(storage, "marker", max_bytes=3) == b"old"
    shutil.rmtree(root)

    def attempt(stack: ExitStack) -> bytes:
        root.mkdir(exist_ok=True)
        (root / "marker").write_bytes(b"new")
        return read_object(storage, "marker", max_bytes=3)

    with held_as_seen(storage, attempt) as found:
        assert found == b"new"


@pytest.mark.parametrize("loop", range(LOOPS))
def test_a_race_between_generate_and_clean(place: str, tmp_path: Path, loop: int) -> None:
    """Either the dataset is whole or it is gone; never is a part of it taken for a whole one."""
    assert in_process(*generate(place))[0] == 0
    first, second = race(generate(place), ("clean", place), folder=tmp_path)
    assert first.code in (0, 2), first
    assert second.code in (0, 2), second
    for one in (first, second):
        assert one.err.count("\n") == (1 if one.code else 0), one
    assert 0 in (first.code, second.code), (first, second)
    left = names(place)
    if "manifest.json" in left:
        whole(place)
    else:
        assert left == []
        assert second.code == 0


@pytest.mark.parametrize("loop", range(LOOPS))
def test_a_race_between_clean_and_run(place: str, tmp_path: Path, loop: int) -> None:
    assert in_process(*generate(place))[0] == 0
    run = ("run", "demo", "--data", place, *QUICK, "--results", tmp_path / "r")
    first, second = race(run, ("clean", place), folder=tmp_path)
    failed = [one for one in (first, second) if one.code]
    assert len(failed) < 2, failed  # none: one of them came when the other had ended
    assert all(one.err.count("\n") == 1 for one in failed), failed
    if second.code:
        refused((second.code, second.out, second.err))
        whole(place)
    else:
        assert names(place) == []


@pytest.mark.parametrize("loop", range(LOOPS))
def test_a_race_to_save_checkpoints(place: str, tmp_path: Path, loop: int) -> None:
    study = ("checkpoint", "resnet50", "--to", place, "--scale", "1/2048", "--repeat", 1, "--quiet",
             "--results", tmp_path / "r", "--json")  # fmt: skip
    ended = race(study, study, folder=tmp_path)
    assert sorted(one.code for one in ended) in ([0, 0], [0, 2]), ended
    for one in ended:
        if one.code:
            refused((one.code, one.out, one.err))
    assert names(place) == []
