"""The public API is a promise: a name that comes or goes is a decision, and shows up here."""

from __future__ import annotations

import subprocess
import sys

import iobench

PUBLIC = {
    "__version__",
    "Batch",
    "Dataset",
    "DatasetSpec",
    "IobenchError",
    "Manifest",
    "RunDocument",
    "Workload",
    "generate_dataset",
    "load_dataset_spec",
    "load_manifest",
    "load_run",
    "load_workload",
    "make_loader",
    "make_plan",
    "open_dataset",
    "open_storage",
    "run_plan",
    "verify_dataset",
}


def test_the_public_names_are_these() -> None:
    assert set(iobench.__all__) == PUBLIC
    assert set(dir(iobench)) == PUBLIC


def test_every_public_name_can_be_had() -> None:
    for name in PUBLIC:
        assert getattr(iobench, name) is not None


def test_importing_costs_nothing() -> None:
    heavy = {"torch", "numpy", "pyarrow", "pydantic", "yaml", "rich"}
    code = f"import sys, iobench; print(sorted({heavy!r} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
