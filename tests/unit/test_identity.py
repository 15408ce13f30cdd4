"""What sets two runs apart: each fact that may change a figure is in their identity, and only the
host and the storage are their place.
"""

from __future__ import annotations

from typing import Any

import pytest

from iobench.ask.compare.identity import by_identity, differences, identity, place, role_of
from iobench.record.run import TrainingRecord
from tests.unit.test_compare import document

THROTTLED = {
    "scheme": "throttled",
    "url": "throttled+/data",
    "bandwidth_bytes_per_s": 100_000_000,
    "latency_s": 0.0,
    "iops": None,
    "free_bytes": 7,
}


def run(**changes: Any) -> TrainingRecord:
    return TrainingRecord.model_validate(document([1.0, 1.1], **changes))


@pytest.mark.parametrize(
    ("change", "key", "role"),
    [
        ({"iobench_version": "9"}, "iobench_version", "version"),
        ({"host__node": "b"}, "host.node", "place"),
        ({"host__effective_cores": 1.0}, "host.effective_cores", "place"),
        ({"host__affinity_cpus": "0"}, "host.affinity_cpus", "other"),
        ({"host__cpu_quota_cores": 1.5}, "host.cpu_quota_cores", "other"),
        ({"host__numa_nodes": 2}, "host.numa_nodes", "other"),
        ({"host__packages": {"torch": "9"}}, "host.packages.torch", "version"),
        ({"host__gpus": [{"name": "x"}]}, "host.gpus.name", "other"),
        ({"storage__mount_options": "ro"}, "storage.mount_options", "other"),
        ({"storage__devices": [{"name": "sdb"}]}, "storage.devices.name", "other"),
        ({"storage__endpoint": "http://b"}, "storage.endpoint", "place"),
        ({"storage__client": "boto3"}, "storage.client", "other"),
        ({"storage": {**THROTTLED}}, "storage.bandwidth_bytes_per_s", "place"),
        ({"storage__faults": {"stall_every": 3}}, "storage.faults.stall_every", "place"),
        ({"loader": {"direct": True}}, "loader.direct", "other"),
        ({"accelerators": 2}, "accelerators", "asked"),
        ({"workload__reader": {"crop": 8}}, "reader.crop", "asked"),
        ({"dataset__id": "y"}, "dataset.id", "other"),
    ],
)
def test_a_fact_is_in_the_identity_with_its_role(
    change: dict[str, Any], key: str, role: str
) -> None:
    one, other = run(), run(**change)
    told = {line.partition(":")[0] for line in differences(identity(one), identity(other))}
    assert key in told
    assert role_of(key) == role
    assert (place(one) == place(other)) == (role != "place")
    assert len(by_identity([one, other])) == 2
    assert [len(group) for group in by_identity([one, other, one])] == [2, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"storage": {**THROTTLED, "free_bytes": 8}},
        {"storage": {**THROTTLED, "latency_p99_s": None}},
        {"host__hugetlb": {"free": 3}},
        {"created": "2026-02-01T00:00:00+00:00", "run_id": "r2"},
    ],
)
def test_what_changes_by_itself_is_no_part_of_the_identity(change: dict[str, Any]) -> None:
    assert len(by_identity([run(storage=THROTTLED), run(**{"storage": THROTTLED, **change})])) == 1


def test_the_settings_of_a_log_count_where_one_was_written() -> None:
    without, log = run(), run(workload__log={"to": "/mnt/log"})
    assert not any(key.startswith("log.") for key in identity(without))
    assert identity(log)["log.to"] == "/mnt/log"


def test_the_steps_that_fitted_into_a_budget_are_no_setting() -> None:
    """They are the size of a sample, also beside a run that made all steps."""
    asked = {"asked_max_steps": 178}
    two = run(workload__max_steps=2, fitted=asked)
    five = run(workload__max_steps=5, fitted=asked)
    whole = run(workload__max_steps=178)
    assert len(by_identity([two, five, whole])) == 1
    set_by_hand = run(workload__max_steps=5)
    (told,) = differences(identity(whole), identity(set_by_hand))
    assert told.startswith("max_steps: ")
    assert role_of("max_steps") == "asked"
    unlimited = run(workload__max_steps=5, fitted={"asked_max_steps": None})
    assert len(by_identity([unlimited, run(workload__max_steps=None)])) == 1
