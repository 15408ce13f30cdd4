"""What a run says about others who read its dataset."""

from __future__ import annotations

import pytest

from iobench.errors import StorageError, TargetLostError
from iobench.runner.cache import Others


class Lease:
    unregistered = ""

    def __init__(self, *seen: list[str] | Exception) -> None:
        self.seen = list(seen)

    def others(self) -> list[str]:
        found = self.seen.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def check(self) -> None:
        if not self.seen:
            raise TargetLostError("somebody has removed it")

    def confirm(self) -> None:
        self.check()


def test_nobody_is_no_finding() -> None:
    others = Others(Lease([], [], StorageError("the server is away")))
    others.look()
    others.look()
    assert others.findings() == []


def test_each_is_named_once_whenever_it_was_seen() -> None:
    others = Others(Lease([], ["process 7"], ["process 8", "process 7"], []))
    for _ in range(3):
        others.look()
    (finding,) = others.findings()
    assert (finding.rule, finding.level) == ("storage.shared", "warning")
    assert finding.evidence.endswith("process 7, process 8")


def test_many_are_counted() -> None:
    (finding,) = Others(Lease([f"process {number}" for number in range(10)])).findings()
    assert finding.evidence.endswith("process 2 and 7 more")


def test_who_can_not_be_seen_is_said() -> None:
    lease = Lease([])
    lease.unregistered = "access denied"
    (finding,) = Others(lease).findings()
    assert (finding.rule, finding.level) == ("storage.unlocked", "info")
    assert "access denied" in finding.evidence


def test_a_dataset_that_is_taken_away_ends_the_run() -> None:
    others = Others(Lease([]))
    with pytest.raises(TargetLostError):
        others.look()
