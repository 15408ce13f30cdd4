"""First touch, the load of others, and caches: rules that compare figures of one run."""

from __future__ import annotations

from typing import Any

import pytest

from iobench.record.run import Finding, TrainingRecord
from iobench.record.training import Epoch
from tests.unit.conftest import build_run

LOCAL = {"scheme": "file", "url": "/data", "fs_type": "ext4"}
GB = 10**9


def rule(doc: TrainingRecord, name: str) -> Finding | None:
    return next((each for each in doc.findings if each.rule == name), None)


@pytest.mark.parametrize(
    ("measured", "found"),
    [
        ([900, 1900, 1910, 1890, 1900], True),
        ([3000, 1900, 1910, 1890, 1900], True),
        ([1900, 1900, 1900, 1900, 1900], False),
        ([1810, 1900, 1900, 1900, 1900], False),  # less than the noise threshold
        ([1700, 1900, 1900, 1900, 1900], True),
        ([1500, 1900, 1500, 2100, 1300], False),  # within the spread of the others
        ([1300, 1900, 1500, 2100, 1700], False),  # the lowest, but not far from the others
        ([900, 1900, 1910], False),  # too few to know how much they differ
    ],
)
def test_the_first_repetition_is_compared_with_the_spread_of_the_others(
    measured: list[float], found: bool
) -> None:
    doc = build_run(measured=measured, repetitions=len(measured))
    assert (rule(doc, "cache.first-touch") is not None) == found


def test_a_page_cache_that_was_not_emptied_has_its_own_remedy() -> None:
    measured = [900.0, 1900.0, 1910.0, 1890.0, 1900.0]
    found = rule(build_run(measured=measured, workload={"cache": "any"}), "cache.first-touch")
    assert "cache: cold" in found.remedy
    warm = build_run(measured=measured, workload={"cache": "warm"})
    assert rule(warm, "cache.first-touch") is None


def device(read: int | None, **more: Any) -> dict[str, Any]:
    """A repetition of 12 GB of samples, in which the device read so many bytes."""
    return {"resources": {"device": "vda", "device_read_bytes": read}} | more


def uncounted() -> list[Epoch]:
    """Two epochs of 6 GB of which nobody counted what they fetched."""
    return [
        Epoch(epoch=each, residency_before=0.0, bytes_read=6 * GB, sample_bytes=6 * GB)
        for each in range(2)
    ]


@pytest.mark.parametrize(
    ("read", "changes", "found"),
    [
        (12 * GB, {}, False),
        (14 * GB, {}, False),
        (15 * GB, {}, True),
        # Direct reads are counted by the readers; whole row groups are more than the samples.
        (15 * GB, {"epochs": uncounted()}, False),
        (15 * GB, {"epochs": uncounted(), "direct": True}, True),
        (20 * GB, {"epochs": uncounted(), "direct": True, "bytes_read": 20 * GB}, False),
        # A loader library's reads are not counted.
        (20 * GB, {"epochs": uncounted(), "direct": True, "bytes_read": None}, False),
        (24 * GB, {"cache": "warm"}, False),  # the parent reads it once to warm the cache
    ],
)
def test_the_load_of_others(read: int, changes: dict[str, Any], found: bool) -> None:
    doc = build_run(
        loader={"direct": changes.pop("direct", False)},
        workload={"cache": changes.pop("cache", "cold")},
        repetition=device(read, **changes),
    )
    finding = rule(doc, "device.other-load")
    assert (finding is not None) == found
    if finding is not None:
        assert finding.level == "warning"
        assert "vda" in finding.evidence
        assert "14.0 GiB" in finding.evidence


@pytest.mark.parametrize(
    ("read", "changes", "found"),
    [
        (12 * GB, {}, False),
        (10 * GB, {}, False),
        (9 * GB, {}, True),
        (0, {}, True),
        (9 * GB, {"direct": True}, True),
        (9 * GB, {"cache": "cold"}, True),
        (0, {"cache": "warm"}, False),
        (9 * GB, {"fs_type": "btrfs"}, False),  # it may compress
        (9 * GB, {"fs_type": "nfs4"}, False),
    ],
)
def test_samples_that_the_device_did_not_read(
    read: int, changes: dict[str, Any], found: bool
) -> None:
    doc = build_run(
        storage=LOCAL | {"fs_type": changes.get("fs_type", "ext4")},
        workload={"cache": changes.get("cache", "any")},
        loader={"direct": changes.get("direct", False)},
        repetition=device(read),
    )
    finding = rule(doc, "device.served-by-cache")
    assert (finding is not None) == found
    if finding is not None:
        assert finding.level == "info"
        assert ("25.0 %" if read else "100.0 %") in finding.evidence


def test_a_cache_that_served_cold_reads_is_named_once() -> None:
    epochs = [
        Epoch(epoch=0, residency_before=0.0, sample_bytes=6 * GB, bytes_fetched=GB, startup_s=0.0)
    ]
    doc = build_run(storage=LOCAL, repetition=device(GB, epochs=epochs, sample_bytes=6 * GB))
    assert rule(doc, "cache.cold-fetch") is not None
    assert rule(doc, "device.served-by-cache") is None
