"""An oracle's truth is arithmetic, the noise of a shared machine is not: a wrong verdict fails three times in a row, a hiccup does not.

Reruns are counted in pytest's summary.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=2))
