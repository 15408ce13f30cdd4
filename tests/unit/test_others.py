"""What a run says about others who read its dataset."""

from __future__ import annotations

import pytest

from iobench.base.errors import StorageError, TargetLostError
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
