"""Three rows of the table of budgets: an answer within its time, on a disk, on NFS and on S3.

``python -m tools.budget_table`` makes all rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.budget_table import rows

BUDGET_S = 90.0


@pytest.mark.parametrize(
    ("workload", "storage", "verb"),
    [
        ("resnet50-h100", "disk", "check"),
        ("cosmoflow-h100", "nfs", "run"),
        ("retinanet-b200", "s3", "run"),
    ],
)
def test_a_workload_has_an_answer_within_its_budget(
    tmp_path: Path, workload: str, storage: str, verb: str
) -> None:
    (row,) = rows(workload, storage, [verb], tmp_path, budget=f"{BUDGET_S:g}s", data=256 << 20)
    assert (row.code, row.error) == (0, "")
    assert row.answer not in ("", "undecided"), row
    assert row.repetitions >= 1
    assert row.kept(BUDGET_S), row
