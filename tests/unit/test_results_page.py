"""results/README.md says how figures follow from the events: who adds up the columns gets them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from iobench.host.timeline import read_events
from iobench.judge.rebuild import rebuild
from iobench.record.run import load_training

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "golden" / "0.1.0" / "runs"
PAGE = (ROOT / "results" / "README.md").read_text(encoding="utf-8")

LAST = "start_ns + wait_ns + copy_ns + busy_ns + sync_ns + checkpoint_ns + lost_ns"


def wall_s(rows: list[dict[str, Any]]) -> float:
    """The sum over the epochs of the time at which the last rank ended, as the page says it."""
    ends: dict[int, list[float]] = defaultdict(list)
    of_ranks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of_ranks[row["epoch"], row["rank"]].append(row)
    for (epoch, _), mine in of_ranks.items():
        mine.sort(key=lambda row: row["step"])
        late = [row["late_ns"] / row["steps"] for row in mine[-2:]]
        last = sum(mine[-1].get(name, 0) for name in LAST.split(" + "))
        ends[epoch].append(last + late[-1] - (late[0] if len(late) > 1 else 0))
    return sum(map(max, ends.values())) / 1e9


@pytest.mark.parametrize("name", ["calibrated", "throttled", "beside-saves", "library"])
def test_an_epoch_ends_as_the_page_says(name: str) -> None:
    assert f"`{LAST}`" in PAGE
    table = pq.read_table(RUNS / name / "events.parquet").to_pylist()
    doc = rebuild(load_training(RUNS / name), read_events(RUNS / name / "events.parquet"))
    for number, repetition in enumerate(doc.job.repetitions):
        rows = [row for row in table if (row["phase"], row["repetition"]) == ("measure", number)]
        assert wall_s(rows) == pytest.approx(repetition.wall_s, rel=1e-9)
