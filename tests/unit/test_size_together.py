"""``iobench size`` of several workloads that are trained on one storage at the same time."""

from __future__ import annotations

import pytest

from tests.processes import document, refused

JOBS = "unet3d-h100 resnet50-h100"


@pytest.fixture(autouse=True)
def _few_simulated_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The margin by itself is tested in test_margin.py."""
    monkeypatch.setattr("iobench.ask.capacity.margin._BATCHES", 500)


def test_what_two_workloads_need_is_added_up() -> None:
    """Each with its own number of accelerators and hosts, as if it was sized alone."""
    alone = [
        document("size unet3d-h100 --accelerators 16 --hosts 2"),
        document("size resnet50-h100 --accelerators 8"),
    ]
    both = document(f"size {JOBS} --accelerators 16,8 --hosts 2,1")
    for of_one, in_both in zip(alone, both["jobs"], strict=True):
        assert {**of_one, "instance": None} == {**in_both, "instance": None}
    assert both["together"]["accelerators"] == 24
    for key in (
        *("buy_bytes_per_s", "buy_reads_per_s", "read_bytes_per_s", "peak_read_bytes_per_s"),
        *("opens_per_s", "dataset_bytes"),
    ):
        assert both["together"][key] == pytest.approx(sum(each[key] for each in alone)), key


def test_a_dataset_that_both_read_counts_once() -> None:
    found = document("size unet3d-h100 unet3d-b200 --accelerators 8")
    first, second = found["jobs"]
    assert first["dataset"] == second["dataset"]
    assert found["together"]["dataset_bytes"] == first["dataset_bytes"]


def test_a_job_that_no_storage_can_feed_has_no_sum() -> None:
    found = document(f"size {JOBS} --accelerators 8 --required-au 1")
    assert found["together"]["buy_bytes_per_s"] is None
    assert found["together"]["not_measured"]["buy_bytes_per_s"]


@pytest.mark.parametrize(
    "words",
    [
        f"{JOBS} --accelerators 1,2,3",
        f"{JOBS} --accelerators 1 --hosts 1,1,1",
        "demo --accelerators 1,2",
        f"{JOBS} --accelerators 1 --parameters 3M",
        f"{JOBS} --accelerators 1 --from nowhere",
        f"{JOBS} --accelerators 1 --dataset-size 3TB",
    ],
)
def test_what_does_not_fit_several_workloads_is_refused(words: str) -> None:
    assert refused(f"size {words}")
