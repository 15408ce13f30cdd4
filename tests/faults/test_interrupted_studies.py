"""Ctrl-C in the middle of a save: one that ends in time is complete, is recorded, and stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from iobench.checkpoint.catalog import CheckpointRoot
from iobench.errors import InterruptedRun
from iobench.runner.budget import Budget
from iobench.runner.checkpoint import Mixed, StudyOptions, run_study, saving_to
from iobench.runner.checkpoint_plan import StudyPlan, make_study_plan
from iobench.runner.progress import Observer
from iobench.runner.tasks.checkpoint import CheckpointRank
from iobench.schema.base import build
from iobench.schema.checkpoint import CheckpointSpec, Training
from iobench.schema.record import CheckpointRecord, load_run
from tests.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

INTERRUPTED = 2  # the number of the save that is going on


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyPlan:
    """A study of two ranks; in its second save the parent is interrupted, and begins to stop."""
    save = CheckpointRank.save

    def interrupted_save(rank: CheckpointRank, step: int, start_ns: int) -> None:
        if step == INTERRUPTED and rank.job.rank == 0:
            os.kill(os.getppid(), signal.SIGINT)
            wait_until(lambda: rank.link.stopped.value, "the parent does not stop")
        save(rank, step, start_ns)

    monkeypatch.setattr(CheckpointRank, "save", interrupted_save)
    asked = {"model": "llama3-8b", "scale": "1/16384", "ranks": 2, "count": 5, "writer": "stream"}
    spec = build(CheckpointSpec, asked, where="test")
    return make_study_plan(spec, str(tmp_path / "ckpt"), Training())


def test_a_save_that_ends_after_ctrl_c_is_recorded_and_stays(
    plan: StudyPlan, tmp_path: Path
) -> None:
    with pytest.raises(InterruptedRun):
        run_study(plan, StudyOptions(results=tmp_path / "results"))
    (directory,) = (tmp_path / "results").iterdir()
    record = load_run(directory)
    assert isinstance(record, CheckpointRecord)
    assert record.status == "interrupted"
    assert [save.step for save in record.job.saves] == [1, INTERRUPTED]
    latest = CheckpointRoot.open(plan.url).latest()
    assert latest is not None
    assert latest.number == INTERRUPTED


def test_saves_alone_that_were_interrupted_are_kept(plan: StudyPlan) -> None:
    with saving_to(Mixed(plan=plan, every=10), break_lock=False) as saver:
        assert saver is not None
        with pytest.raises(KeyboardInterrupt):
            saver.alone(Observer(), Budget())
        assert [save.step for save in saver.study.alone] == [1, INTERRUPTED]
