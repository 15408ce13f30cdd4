"""Reference workloads on a local disk, on two S3 servers and on NFS, by the commands of the README:
an answer, and one within a budget.

On each place accelerators of a modest appetite are fed, and a link of 2 MB/s before the same data
starves hungry ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.nfs import nfs_server
from tests.servers.s3 import rclone_s3, s3_environment, swift_s3
from tools.budget_table import rows

__all__ = ["nfs_server", "rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")


@pytest.mark.alone
@pytest.mark.nightly
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
    """Three rows of the table of budgets; ``python -m tools.budget_table`` makes all of them."""
    (row,) = rows(workload, storage, [verb], tmp_path, budget="90s", data=256 << 20)
    assert (row.code, row.error) == (0, "")
    assert row.answer not in ("", "undecided"), row
    assert row.repetitions >= 1
    assert row.kept(90.0), row
