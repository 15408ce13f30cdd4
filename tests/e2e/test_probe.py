"""``iobench probe`` as a user calls it: any place with data, every format, failures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import UsageError
from iobench.host import fio
from iobench.judge.figures.curve import conclude_curve
from iobench.record.curve import CurvePoint, Operation, StorageProbe
from iobench.report.curve import sections
from iobench.report.sections import FirstScreen
from iobench.runner.budget import Budget
from iobench.runner.curve.curve import CurveMeasurement, Limits, curve_of, of_memory
from iobench.runner.curve.story import plan_probe
from iobench.runner.curve.target import open_target
from iobench.settings.base import head
from iobench.storage import open_storage
from tests import curves
from tests.conftest import MakeDataset
from tests.datasets import tree
from tests.processes import in_process
from tests.servers.s3 import rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]

QUICK = ("--max-in-flight", 2, "--budget", "3s", "--quiet")


def document(*words: object) -> dict[str, Any]:
    code, out, err = in_process("probe", *words, *QUICK, "--json")
    assert (code, err) == (0, ""), (out, err)
    found = json.loads(out)
    StorageProbe.model_validate(found)
    assert isinstance(found, dict)
    return found


def check_points(curve: dict[str, Any]) -> None:
    """On a busy machine the time may be used up after the first point."""
    there = [point["in_flight"] for point in curve["points"]]
    assert there == [1, 2][: len(there)] != []


def files(folder: Path, count: int, size: int) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number}.bin").write_bytes(bytes([number % 251]) * size)
    return folder


def test_a_dataset_is_read_as_its_samples_lie(make_dataset: MakeDataset) -> None:
    manifest, folder = make_dataset(format="tar")
    before = tree(folder)
    found = document(folder)
    (curve,) = found["curves"]
    assert found["dataset"] == "demo"
    assert found["objects"] == manifest.shard_count
    assert (curve["order"], curve["by"]) == ("random", "fio" if fio.available() else "engine")
    assert 0 < curve["request_bytes"] - 20_000 < 8192  # aligned
    check_points(curve)
    # The data holds no large requests, so small ones tell operations from bytes.
    assert (found["large"]["request_bytes"], found["large"]["order"]) == (4096, "random")
    assert tree(folder) == before


def test_files_of_a_directory_are_read_in_requests_of_each_size(tmp_path: Path) -> None:
    data = files(tmp_path / "data", 4, 4 << 20)
    files(tmp_path / "data", 0, 0)
    (data / "small").write_bytes(b"too small")
    before = tree(data)
    found = document(f"throttled+{data}?latency=1ms", "--request", "4KiB,128KiB")
    assert [curve["request_bytes"] for curve in found["curves"]] == [4096, 131072]
    assert found["large"]["request_bytes"] == 1 << 20
    assert found["large"]["order"] == "sequential"
    assert found["objects"] == 4
    for curve in (*found["curves"], found["large"]):
        assert curve["by"] == "engine"
        for point in curve["points"]:
            assert point["latency_p50_s"] >= 0.001
            rate = point["reads_per_s"]["value"]
            assert 0 < rate <= point["in_flight"] / 0.001
            assert point["bytes_per_s"]["value"] == pytest.approx(rate * curve["request_bytes"])
    assert len(found["spent"]) == 2
    assert tree(data) == before


def test_opens_stats_and_listings_without_reads(tmp_path: Path) -> None:
    """12 files in 3 folders, of which 50 are opened in a second, whoever asks."""
    for number in range(3):
        files(tmp_path / "data", 0, 0)
        files(tmp_path / "data" / str(number), 4, 64 << 10)
    words = ("--metadata", "--request", "64KiB")
    url = f"throttled+{tmp_path / 'data'}?opens=50"
    found = document(url, *words)
    asked = {curve["operation"]: curve for curve in found["metadata"]}
    assert list(asked) == ["open", "stat", "list"]
    for curve in asked.values():
        check_points(curve)
        assert all(point["reads_per_s"]["value"] < 75 for point in curve["points"])
    assert not any(point["client"] for point in asked["open"]["points"])
    for point in asked["list"]["points"]:  # each lists the four files of one folder
        assert point["bytes_per_s"]["value"] == pytest.approx(4 * point["reads_per_s"]["value"])
    code, out, err = in_process("probe", url, *words, *QUICK, "--details")
    assert (code, err, "opens/s" in out, "entries/s" in out) == (0, "", True, True)


def test_what_is_no_slower_than_files_in_memory_tells_of_this_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation: Operation = "stat"
    assert of_memory(operation, 2) > 0
    storage = open_storage(str(files(tmp_path / "data", 4, 64)))
    for rate, client in ((1.0, True), (1e9, False)):
        monkeypatch.setattr(
            "iobench.runner.curve.curve.of_memory", lambda *asked, known=rate: known
        )
        limits = Limits(max_in_flight=1, point_s=0.1, budget=Budget(seconds=3, end_s=0.0))
        found = curve_of(operation, storage, list(storage.list()), limits, run_dir=tmp_path, seed=0)
        assert [point.client for point in found.points] == [client]


@pytest.mark.parametrize(("seen", "again", "told"), [(True, 0, 0), (False, 0, 1), (True, 3, 1)])
def test_the_first_screen_tells_what_was_read_or_sent_again(
    seen: bool, again: int, told: int
) -> None:
    points = [
        curves.point(number, 100.0, disjoint=number > 1 or seen, retries=again)
        for number in (1, 2, 4, 8)
    ]
    probe = StorageProbe(
        **head([]),
        url="/data",
        dataset=None,
        objects=1,
        bytes=1 << 30,
        budget_s=30,
        took_s=12.5,
        curves=[conclude_curve(curves.curve(points))],
        spent=["unknown"],
    )
    first, *_ = sections(probe)
    assert isinstance(first, FirstScreen)
    assert len(first.sentences) == 1 + told


def test_metadata_is_measured_by_one_host(tmp_path: Path) -> None:
    data = str(files(tmp_path / "data", 2, 1 << 20))
    with open_target(data, origin=None, least_bytes=4096) as target:
        asked = {"max_in_flight": 2, "budget": Budget(seconds=30.0, end_s=0.0), "metadata": True}
        assert plan_probe(target, [4096], **asked).metadata == ("open", "stat", "list")
        with pytest.raises(UsageError):
            plan_probe(target, [4096], hosts=2, **asked)


def test_the_start_of_the_process_is_part_of_a_probe_s_budget(tmp_path: Path) -> None:
    """A start of 10 s leaves 20 of 30 s, and one of 29 s the fewest points. A short time has fewer
    points rather than very short ones.
    """
    data = str(files(tmp_path / "data", 2, 8 << 20))
    with open_target(data, origin=None, least_bytes=4096) as target:
        for budget_s, least_s in ((12.0, 0.5), (30.0, 1.0)):
            budget = Budget(seconds=budget_s, end_s=0.0)
            plan = plan_probe(target, [4096], max_in_flight=256, budget=budget)
            assert (plan.curves, plan.point_s) == (2, pytest.approx(least_s))
        left = []
        for start_s in (10.0, 29.9):
            budget = Budget(seconds=30.0, began_s=time.monotonic() - start_s, end_s=0.0)
            left.append(plan_probe(target, [4096], max_in_flight=256, budget=budget))
        with pytest.raises(UsageError, match="too short"):
            plan_probe(target, [4096], max_in_flight=256, budget=Budget(seconds=0.1))
    assert [plan.budget_s for plan in left] == [30.0, 30.0]
    assert left[0].measuring_s == pytest.approx(20.0, abs=5.0)
    assert 0.1 < left[1].measuring_s < 5.0


@pytest.mark.nightly
def test_an_object_store_has_stats_and_listings(rclone_s3: Any, s3_environment: Any) -> None:
    storage = open_storage(rclone_s3.url("metadata"))
    for number in range(5):
        with storage.create(f"{number}") as sink:
            sink.write(bytes(64 << 10))
    found = document(rclone_s3.url("metadata"), "--metadata", "--request", "4KiB")
    assert [curve["operation"] for curve in found["metadata"]] == ["stat", "list"]
    for curve in found["metadata"]:
        check_points(curve)


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_keeps_the_points_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    points: list[int] = []
    measure = CurveMeasurement._point

    def interrupted(measurement: CurveMeasurement, in_flight: int) -> CurvePoint:
        points.append(in_flight)
        if len(points) == at:
            raise KeyboardInterrupt
        return measure(measurement, in_flight)

    monkeypatch.setattr(CurveMeasurement, "_point", interrupted)
    data = files(tmp_path / "data", 4, 16 << 20)
    code, out, err = in_process("probe", data, "--max-in-flight", 1, "--quiet", "--json")
    assert (code, err.count("\n")) == (130, 1)
    if at == 1:
        assert out == ""
        return
    found = json.loads(out)
    assert StorageProbe.model_validate(found).status == "interrupted"
    assert len(found["curves"][0]["points"]) == 1
    assert found["large"] is None or found["large"]["points"] == []
    assert sections(StorageProbe.model_validate(found))


def test_a_failure_of_one_curve_leaves_the_others(tmp_path: Path) -> None:
    url = f"faulty+{files(tmp_path / 'data', 2, 1 << 20)}?fail_at=1"
    code, out, err = in_process("probe", url, *QUICK)
    assert (code, out, err.count("\n")) == (1, "", 1)
    found = document(url, "--request", "4KiB,8KiB")
    first, second = found["curves"]
    assert (first["points"], bool(first["not_measured"])) == ([], True)
    check_points(second)
    assert "simulated" in first["not_measured"]
