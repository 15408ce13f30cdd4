"""Oracles: the truth is arithmetic on what was planted, but a shared machine has noise.

A wrong verdict fails three times in a row, a hiccup does not: an oracle is tried up to three times.
Such reruns are counted in pytest's summary, and ``IOBENCH_RERUNS=0`` allows none. Oracles have the
mark ``alone``, and nothing runs beside them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent

RERUNS = int(os.environ.get("IOBENCH_RERUNS", "2"))

BESIDE_OTHERS = {"test_claims.py", "test_places.py", "test_rounds_oracle.py"}
"""Files whose oracles run beside other tests: they count or simulate, or their planted factors are
4 and more.
"""

LONG = {
    "test_advise_oracle.py",
    "test_binding.py",
    "test_blkio.py",
    "test_causes_kernel.py",
    "test_causes_remote.py",
    "test_causes_stages.py",
    "test_compare_oracle.py",
    "test_confirm_oracle.py",
    "test_fed_oracle.py",
    "test_hosts_ended.py",
    "test_hosts_oracle.py",
    "test_library_oracle.py",
    "test_size_oracle.py",
    "test_sweep_oracle.py",
    "test_sync_oracle.py",
    "test_transfer.py",
    "test_two_machines.py",
    "test_verdict_oracle.py",
    "test_whatif_oracle.py",
}
"""Files whose oracles only ``make oracles`` runs: together they take 50 minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))
            if item.path.name not in BESIDE_OTHERS:
                item.add_marker(pytest.mark.alone)
            if item.path.name in LONG:
                item.add_marker(pytest.mark.long)
