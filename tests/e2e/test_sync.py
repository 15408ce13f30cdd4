"""Ranks in step: real runs whose ranks wait for each other, or do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.host.timeline import read_events
from iobench.judge.figures.events import Events, rank_epochs, select
from iobench.judge.rebuild import rebuild
from iobench.record.run import TrainingRecord, load_run
from tests.processes import printed

RANKS, EPOCHS, STEPS = 3, 3, 7
SAMPLES = 4 * RANKS * (STEPS - 1) + 1  # the first rank has a batch more than the others


def measured(tmp_path: Path, data: Path, *arguments: str) -> tuple[TrainingRecord, Events]:
    words = (
        f"run demo --data {data} --accelerators {RANKS} --repeat 1 --calibration 0s --no-ablations "
        f"--results {tmp_path}/r --set batch_size=4 --set epochs={EPOCHS} --set loader.workers=0 "
        "--set accelerator.step_time=4ms --set required_accelerator_utilization=0.1"
    )
    printed(words, *arguments)
    (folder,) = (tmp_path / "r").iterdir()
    doc = load_run(folder)
    assert isinstance(doc, TrainingRecord)
    return doc, read_events(folder / "events.parquet")


def openings_ns(events: Events) -> dict[tuple[int, int], set[int]]:
    """The nominal instant at which each rank went on after each step of each epoch."""
    found: dict[tuple[int, int], set[int]] = {}
    for part in rank_epochs(events):
        rows = {name: column.astype(np.int64) for name, column in part.rows.items()}
        late = np.concatenate([[0], rows["late_ns"][:-1]])
        names = ("start_ns", "wait_ns", "copy_ns", "busy_ns", "sync_ns")
        ends = sum(rows[name] for name in names) - late
        for step, end in zip(rows["step"].tolist(), ends.tolist(), strict=True):
            found.setdefault((part.epoch, step), set()).add(end)
    return found


@pytest.fixture
def data(make_dataset: Any) -> Path:
    path: Path = make_dataset(samples=SAMPLES, format="tar", samples_per_shard=10)[1]
    return path


def check(doc: TrainingRecord, events: Events) -> None:
    """What is true of every run, however its ranks wait for each other."""
    (repetition,) = doc.job.repetitions
    assert doc.status == "ok"
    assert repetition.complete
    assert repetition.steps == EPOCHS * (RANKS * (STEPS - 1) + 1)
    assert [len(epoch.startups_s) for epoch in repetition.epochs] == [RANKS] * EPOCHS
    assert [each.rank for each in repetition.ranks] == list(range(RANKS))
    for each in repetition.ranks:
        parts = each.model_dump(exclude={"rank", "wall_s", "accelerator_utilization"})
        assert sum(value or 0.0 for value in parts.values()) == pytest.approx(each.wall_s)
    assert rebuild(doc, events).job.repetitions == doc.job.repetitions


def test_ranks_go_on_together_after_each_step(tmp_path: Path, data: Path) -> None:
    """Ranks whose shares differ also save together in the second and the third epoch.

    An epoch has 7 steps, the last of which one rank makes alone; the others would come to their
    next save a step later, if each rank counted its own steps.
    """
    more = ["--checkpoint", "llama3-8b", "--checkpoint-scale", "1/500000"]
    more += ["--checkpoint-every", "3", "--checkpoint-to", str(tmp_path / "c")]
    doc, events = measured(tmp_path, data, *more)
    check(doc, events)
    mine = select(events, "measure", 0)
    openings = openings_ns(mine)
    assert len(openings) == EPOCHS * STEPS
    assert [key for key, instants in openings.items() if len(instants) > 1] == []
    assert (mine["sync_ns"] >= 0).all()
    assert mine["sync_ns"].any()
    assert doc.job.repetitions[0].sync == "step"
    assert doc.job.workload.accelerator.sync == "step"
    assert (doc.job.repetitions[0].sync_s or 0.0) > 0
    saved = {
        (int(epoch), int(step))
        for epoch, step, took in zip(
            mine["epoch"], mine["step"], mine["checkpoint_ns"], strict=True
        )
        if took > 0
    }
    # After 3, 6 ... 18 of the 21 steps. One rank alone saves nothing after the last one.
    assert {epoch * STEPS + step + 1 for epoch, step in saved} >= {3, 6, 9, 12, 15, 18}
    assert len(doc.job.saves.saves) == 6


@pytest.mark.parametrize("sync", [pytest.param("epoch", marks=pytest.mark.nightly), "none"])
def test_ranks_that_do_not_wait_after_a_step(tmp_path: Path, data: Path, sync: str) -> None:
    doc, events = measured(tmp_path, data, "--set", f"accelerator.sync={sync}")
    check(doc, events)
    (repetition,) = doc.job.repetitions
    assert not events["sync_ns"].any()
    assert repetition.sync == sync
    waits = [each.sync_s for each in repetition.ranks]
    if sync == "none":
        assert waits == [0.0] * RANKS
        assert repetition.sync_s is None
    else:
        assert len({round(each.wall_s, 9) for each in repetition.ranks}) == 1
        assert sum(waits) > 0
