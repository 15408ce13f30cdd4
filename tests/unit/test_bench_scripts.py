"""The scripts of ``make bench`` can be imported: nobody else runs them between two measurements."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = sorted(path.stem for path in BENCH.glob("*.py") if not path.stem.startswith("test_"))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "__init__"])
def test_a_script_of_the_bench_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))  # as where Python runs it
    importlib.import_module(name)
