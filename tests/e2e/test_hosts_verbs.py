"""generate, verify, probe and load over several hosts: here they are processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.data import verify
from iobench.data.generator import plan
from iobench.data.generator.writer import UnitWriter
from iobench.record.curve import StorageProbe
from iobench.record.manifest import MANIFEST
from iobench.record.run import ModelLoadRecord, TrainingRecord
from iobench.serve.loaders.direct import DirectLoader
from tests.hosts import ended, job, record_of
from tests.processes import in_process, wait_until
from tests.small_models import small_weights

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

SPEC = ("demo", "--samples", 68, "--set", "format=files", "--set", "sample_size.mean=512B")
SPEC += ("--set", "content=raw", "--set", "samples_per_shard=null")
"""Four units of work, and four tasks of a verification: 20 files each, and the rest."""


def generate(to: Path, *words: object) -> tuple[object, ...]:
    return ("generate", *SPEC, "--to", to, "--workers", 1, "--quiet", *words)


def header_of(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / MANIFEST).read_text())
    return {key: value for key, value in found.items() if key != "created"}


def shards_of(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and path.name != MANIFEST
    }


def units_done(data: Path) -> int:
    return len(list((data / ".iobench-journal").glob("*.json")))


def hang() -> None:
    """No unit of this host ends."""

    def write(self: UnitWriter, unit: int) -> None:
        time.sleep(120)

    UnitWriter.write = write  # type: ignore[assignment]


@pytest.fixture(scope="module", autouse=True)
def small_units() -> Iterator[None]:
    """Units and tasks of 20 files. The commands are forked from this process, so it holds there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_UNIT_SHARDS", 20)
        patch.setattr(verify, "_TASK_SHARDS", 20)
        yield


@pytest.fixture(scope="module")
def alone(small_units: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset as one host writes it."""
    path = tmp_path_factory.mktemp("alone") / "data"
    assert in_process(*generate(path))[0] == 0
    return path


def test_three_hosts_write_the_dataset_that_one_host_writes(alone: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    first, *others = ended(job(tmp_path, *generate(data), hosts=3, of={0: ["--json"]}))
    assert [each.code for each in (first, *others)] == [0, 0, 0], first.err
    assert header_of(data) == header_of(alone)
    assert shards_of(data) == shards_of(alone)
    told = json.loads(first.out)["hosts"]
    assert [each["tasks"] for each in told] == [2, 1, 1]
    assert all(each["took_s"] > 0 for each in told)
    again = ended(job(tmp_path, *generate(data)))
    assert [each.code for each in again] == [0, 0]
    assert "nothing to do" in again[0].out


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_without_one_host_there_is_no_manifest_and_the_rest_can_be_resumed(
    alone: Path, tmp_path: Path, how: signal.Signals
) -> None:
    data = tmp_path / "data"
    commands = job(tmp_path, *generate(data), before={1: hang})
    wait_until(lambda: units_done(data) == 2, "the first host does not do its share")
    os.kill(commands[1].pid, how)
    first, second = ended(commands)
    if how == signal.SIGKILL:
        assert (first.code, second.code) == (1, -signal.SIGKILL)
        assert "host 1 (" in first.err
    else:
        assert (first.code, second.code) == (130, 130)
    assert not (data / MANIFEST).exists()
    assert units_done(data) == 2
    assert in_process(*generate(data))[0] == 0
    assert shards_of(data) == shards_of(alone)


def test_a_lost_first_host_leaves_no_manifest_and_no_worker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    commands = job(tmp_path, *generate(data), before={0: hang})
    wait_until(lambda: units_done(data) == 2, "the second host does not do its share")
    os.kill(commands[0].pid, signal.SIGKILL)
    first, second = ended(commands)
    assert (first.code, second.code) == (-signal.SIGKILL, 1)
    assert "host 0 (" in second.err
    assert not (data / MANIFEST).exists()


def test_two_hosts_verify_each_a_share_and_one_reports(alone: Path, tmp_path: Path) -> None:
    found = ended(job(tmp_path, "verify", alone, "--quiet"))
    assert [each.code for each in found] == [0, 0], found[0].err
    assert "ok: 68 samples" in found[0].out
    assert found[0].out.count("host ") == 2
    assert "host" not in found[1].out
    shards = sorted((alone / "data").rglob("*.bin"))
    damaged = shards[0], shards[30]  # of the first host's share, and of the second one's
    before = [path.read_bytes() for path in damaged]
    try:
        for path, content in zip(damaged, before, strict=True):
            path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        first, second = ended(job(tmp_path, "verify", alone, "--quiet", of={0: ["--json"]}))
    finally:
        for path, content in zip(damaged, before, strict=True):
            path.write_bytes(content)
    assert (first.code, second.code) == (1, 1)
    report = json.loads(first.out)
    assert report["shards"] == 68
    told = [each["what"] for each in report["damages"]]
    assert ["(seen by host 1" in what for what in told] == [False, True]


def test_two_hosts_probe_together_and_each_alone(alone: Path, tmp_path: Path) -> None:
    words = ("probe", f"throttled+{alone}?latency=4ms", "--quiet", "--budget", "60s")
    commands = job(tmp_path, *words, "--max-in-flight", 4, of={0: ["--format", "json"]})
    first, second = ended(commands)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    probe = StorageProbe.model_validate_json(first.out)
    curve = probe.curves[0]
    assert [point.in_flight for point in curve.points][:2] == [2, 4]
    assert [host.name[:6] for host in probe.hosts] == ["host 0", "host 1"]
    for host in probe.hosts:
        assert host.alone_reads_per_s is not None
    joint = sum(host.joint_reads_per_s.value for host in probe.hosts)
    assert any(joint == pytest.approx(point.reads_per_s.value) for point in curve.points)
    assert second.out == ""


def test_a_run_of_two_hosts_has_their_joint_curve_and_the_counters_of_each(
    make_dataset: Any, tmp_path: Path
) -> None:
    data = make_dataset(samples=400, format="tar", samples_per_shard=20)[1]
    words: tuple[object, ...] = ("run", "demo", "--data", f"throttled+{data}?latency=1ms")
    words += ("--results", tmp_path / "r", "--calibration", "500ms", "--repeat", 1, "--quiet")
    words += ("--no-ablations", "--set", "loader.workers=1", "--set", "batch_size=4")
    found = ended(job(tmp_path, *words))
    assert [each.code for each in found] == [0, 0], found[0].err + found[1].err
    doc = record_of(tmp_path, TrainingRecord)
    curve = doc.job.curve.curve
    assert [point.in_flight % 2 for point in curve.points] == [0] * len(curve.points)
    assert curve.points[0].in_flight == 2
    assert any("all 2 hosts together" in note for note in curve.notes)
    assert doc.job.ceilings["storage_raw"].bytes_per_s
    (repetition,) = doc.job.repetitions
    for host in repetition.hosts:
        assert host.resources.wall_s > 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weights") / "qwen"
    small_weights(place)
    return place


def slow_assembly() -> None:
    """Each load of this host takes a second more."""
    assemble = DirectLoader._assemble

    def slowly(loader: DirectLoader, tensors: Any, clock: Any) -> None:
        time.sleep(1.0 * len(tensors) / 14)
        assemble(loader, tensors, clock)

    DirectLoader._assemble = slowly  # type: ignore[method-assign]


def test_two_hosts_load_a_model_at_one_instant(model: Path, tmp_path: Path) -> None:
    words = ("load", f"throttled+{model}?bandwidth=200MB", "--loader", "direct", "--quiet")
    words += ("--replicas", "1,2", "--repeat", "1", "--details", "--results", str(tmp_path / "r"))
    first, second = ended(job(tmp_path, *words, before={1: slow_assembly}))
    assert (first.code, second.code) == (0, 0), first.err + second.err
    doc = record_of(tmp_path, ModelLoadRecord)
    work = doc.job
    assert (len(doc.hosts), [each.ranks for each in work.hosts]) == (2, [1, 1])
    together = [each for each in work.trials if not each.alone]
    (alone,) = (each for each in work.trials if each.alone)
    assert (alone.hosts, alone.replicas) == ([], 1)
    assert work.bytes <= alone.read_bytes < 1.01 * work.bytes
    assert {(each.replicas, each.one_read, each.left_out) for each in together} == {
        *((1, False, without) for without in (None, "storage", "assembly")),
        *((2, one_read, None) for one_read in (False, True)),
    }
    for each in together:
        assert len(each.hosts) == 2
        assert each.ready_s == max(host.ready_s for host in each.hosts)
        assert [host.residency_before for host in each.hosts] == [each.residency_before] * 2
        copies = 1 if each.one_read else each.replicas
        for host in each.hosts if each.left_out is None else ():
            assert copies * work.bytes <= host.read_bytes < 1.01 * copies * work.bytes
        if each.left_out != "assembly":
            assert each.hosts[1].ready_s > 1.0  # what was planted there
    in_flight = {(each.replicas, each.more): each.in_flight for each in work.plain}
    assert in_flight == {(1, False): 16, (2, False): 32, (1, True): 64}
    assert all(each.promised_s is not None for each in work.figures)
    assert "host 1 (" in first.out
    assert second.out == ""


SAVES = "--checkpoint llama3-8b --checkpoint-scale 1/8192"


@pytest.mark.parametrize(
    ("words", "of", "said"),
    [
        ("generate demo --samples 68", {0: "--to a", 1: "--to b"}, "host 1 ("),
        ("generate demo --samples 68 --to a", {1: "--seed 9"}, "host 1 ("),
        ("load {model} --loader direct", {1: "--replicas 2"}, "host 1 ("),
        ("load {model} --loader direct --copy-to copy", {}, "--copy-to"),
        ("ab {data} --workload demo", {1: "--set-b batch_size=8"}, "host 1 ("),
        ("sweep cpu-training --data {data}", {}, "iobench ab"),
        ("checkpoint llama3-8b --scale 1/8192 --to a", {1: "--set fsync=false"}, "host 1 ("),
        (
            f"run demo --data {{data}} {SAVES}",
            {0: "--checkpoint-to a", 1: "--checkpoint-to b"},
            "host 1 (",
        ),
    ],
)
def test_hosts_whose_commands_do_not_fit_are_refused_before_anything_is_written(
    words: str,
    of: dict[int, str],
    said: str,
    model: Path,
    make_dataset: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    data = make_dataset(samples=96, format="tar", samples_per_shard=12)[1]
    command = words.format(data=data, model=model).split()
    own: dict[int, list[object]] = {host: [*more.split()] for host, more in of.items()}
    found = ended(job(tmp_path, *command, "--quiet", of=own))
    assert [each.code for each in found] == [2, 2], [each.err for each in found]
    assert all(said in each.err for each in found), [each.err for each in found]
    assert {path.stem for path in tmp_path.iterdir()} == {"host-0", "host-1"}
