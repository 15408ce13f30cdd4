"""Oracles: the truth is arithmetic on what was planted, but a shared machine has noise.

A wrong verdict fails three times in a row, a hiccup does not: an oracle is tried up to three times.
Such reruns are counted in pytest's summary. Oracles have the mark ``alone``, and nothing runs
beside them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

BESIDE_OTHERS = {"test_places.py", "test_rounds_oracle.py"}
"""Files whose oracles run beside other tests: they count, or their planted factors are 4 and
more.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=2))
            if item.path.name not in BESIDE_OTHERS:
                item.add_marker(pytest.mark.alone)
