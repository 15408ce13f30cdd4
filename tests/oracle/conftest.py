"""Oracles: the truth is arithmetic on what was planted, but a shared machine has noise.

A wrong verdict fails three times in a row, a hiccup does not: an oracle is tried up to three times.
Such reruns are counted in pytest's summary, and ``IOBENCH_RERUNS=0`` allows none. Oracles have the
mark ``alone``, and nothing runs beside them. If other processes took much of the CPU in each try
all the same, a wrong answer tells nothing: the oracle is inconclusive, and is counted as skipped.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.oracle import others
from tests.oracle.advised import watching

HERE = Path(__file__).parent

RERUNS = int(os.environ.get("IOBENCH_RERUNS", "2"))

BESIDE_OTHERS = {"test_claims.py"}
"""Files whose oracles run beside other tests: they simulate."""

BEGAN = pytest.StashKey[others.Cpu]()
WRONG_ALONE = pytest.StashKey[bool]()
"""Whether a try failed while the machine did little else."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))
            if item.path.name not in BESIDE_OTHERS:
                item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="module", autouse=True)
def advised_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each command that a report of an oracle advises is taken by the command line."""
    yield from watching(tmp_path_factory.mktemp("advised"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN] = others.cpu_now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell an oracle that is wrong from one that other processes disturbed in each try."""
    report = yield
    wrong = call.excinfo.value if call.excinfo is not None else None
    measured = report.when != "teardown" and item.get_closest_marker("alone")
    if not (isinstance(wrong, AssertionError) and measured):
        return report
    cores = others.cores_of_others(item.stash[BEGAN])
    busy = f"other processes took {cores:.1f} of {others.CORES} cores"
    report.sections.append(("The machine meanwhile", busy))
    wrong_alone = item.stash.get(WRONG_ALONE, False) or not others.too_busy(cores)
    item.stash[WRONG_ALONE] = wrong_alone
    last = item.execution_count > RERUNS  # type: ignore[attr-defined]
    if last and not wrong_alone:
        report.outcome = "skipped"
        why = f"inconclusive, the machine was too busy: {busy}; {str(wrong)[:200]!r}"
        report.longrepr = (str(item.path), item.location[1] or 0, why)
    return report
