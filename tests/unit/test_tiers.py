"""The tests' own tools: which tests are slow, how they begin, and what cases they get."""

from __future__ import annotations

import pytest

from tests import tiers
from tests.tiers import (
    FAST,
    FIRST,
    NIGHTLY,
    SLOW,
    TESTS,
    TIER_OF,
    TOUCHED,
    file_of,
    nothing_to_run,
    touched,
)


def test_every_name_of_the_tables_is_there() -> None:
    names = {*TIER_OF, *FIRST, *(file_of(name) for names in TOUCHED.values() for name in names)}
    assert [name for name in sorted(names) if not (TESTS / name).exists()] == []
    assert [folder for folder in TOUCHED if not (TESTS.parent / folder).exists()] == []
    words = [name for names in TOUCHED.values() for name in names if name.split() != [name]]
    assert words == []  # make takes each of them for one
    page = (TESTS.parent / "docs/testing.md").read_text(encoding="utf-8")
    assert [folder for folder in TOUCHED if f"`{folder}`" not in page] == []


def test_a_tier_imports_no_file_of_a_later_one() -> None:
    nightly = TESTS / next(name for name, tier in TIER_OF.items() if tier == NIGHTLY)
    file = nightly if nightly.suffix else nightly / "test_pages.py"
    assert nothing_to_run(file, f"{FAST} and not alone")
    assert not nothing_to_run(file, NIGHTLY)
    assert not nothing_to_run(file, "")
    assert not nothing_to_run(TESTS / "unit/test_tiers.py", FAST)


def test_a_later_tier_imports_the_files_that_have_marks_of_it() -> None:
    assert nothing_to_run(TESTS / "unit/test_snapshots.py", SLOW)
    assert not nothing_to_run(TESTS / "unit/test_walk.py", f"{SLOW} and not alone")
    assert not nothing_to_run(TESTS / "faults/test_checkpoint.py", NIGHTLY)
    # A mark in a module of helpers would not be seen in the files that import it.
    helpers = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_")]
    marked = [path.name for path in helpers if f"mark.{NIGHTLY}" in path.read_text("utf-8")]
    marked += [path.name for path in helpers if f"mark.{SLOW}" in path.read_text("utf-8")]
    assert sorted(marked) == ["checkpoints.py", "pairs.py"]  # looked for by their name


def test_what_a_change_runs_of_the_nightly_tests() -> None:
    for folder, names in TOUCHED.items():
        assert touched([f"{folder}/some.py"]) == sorted(f"tests/{name}" for name in names)
    assert touched(["tests/e2e/test_deploy.py"]) == ["tests/e2e/test_deploy.py"]
    events = touched(["tests/faults/test_event_loop.py"])
    assert len(events) > 1
    assert {file_of(name) for name in events} == {"tests/faults/test_event_loop.py"}
    assert touched(["CHANGELOG.md", "iobench/storage/base.py"]) == []


def test_a_change_runs_its_nightly_tests_with_the_slow_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files that have none of them are not imported, as without a change."""
    asked = f"({SLOW} and not {NIGHTLY} or touched) and not alone"
    loops, servers = TESTS / "faults/test_fault_loop.py", TESTS / "contract/test_s3.py"
    monkeypatch.setattr(tiers, "wanted", lambda: touched(["iobench/data/generator/pool.py"]))
    assert not nothing_to_run(loops, asked)
    assert nothing_to_run(servers, asked)
    monkeypatch.setattr(tiers, "wanted", tuple)
    assert nothing_to_run(loops, asked)


def test_every_test_has_a_time_limit_that_counts_its_fixtures(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 600
    assert pytestconfig.getini("timeout_func_only") is False
