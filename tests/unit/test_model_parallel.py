"""Ranks that do not read: they wait at the barrier of each step for the one of their group."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import UsageError
from iobench.runner import barrier
from tests.oracle.plants import ran

RUN: dict[str, Any] = {"loader": {"workers": 1}, "batch_size": 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("readers", "group", "kind", "more"),
    [
        (2, 3, "emulated", {"epochs": 2}),
        (1, 2, "null", {"epochs": 3}),
        pytest.param(*(2, 2, "emulated", {"epochs": 3, "max_steps": 8}), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_one_of_a_group_reads_and_all_meet_at_each_step(
    tmp_path: Path,
    make_dataset: Any,
    monkeypatch: pytest.MonkeyPatch,
    readers: int,
    group: int,
    kind: str,
    more: dict[str, int],
) -> None:
    _, data = make_dataset(samples=60)
    calls, wait = tmp_path / "calls", barrier.StepBarrier.wait

    def counted(self: Any, *args: Any) -> Any:
        opening = wait(self, *args)
        with calls.open("a") as file:
            file.write(f"{os.getpid()} {opening.number}\n")
        return opening

    monkeypatch.setattr(barrier.StepBarrier, "wait", counted)
    step = {"step_time": "1ms"} if kind == "emulated" else {}
    accelerator = {"kind": kind, "model_parallel": group, **step}
    doc, _ = ran(tmp_path, data, accelerators=readers, accelerator=accelerator, **RUN, **more)
    assert doc.validity == "valid", doc.findings
    (one,) = doc.job.repetitions
    steps = more.get("max_steps", more["epochs"] * 60 // readers // 5)
    assert (one.samples, one.steps) == (steps * readers * 5, steps * readers)
    assert [each.rank for each in one.ranks] == list(range(readers))
    met = Counter(line.split()[0] for line in calls.read_text().splitlines())
    assert len(met) == readers * group
    # The last opening of an epoch is that of the readers that leave it.
    assert all(steps <= count <= steps + len(one.epochs) for count in met.values()), met


@pytest.mark.slow
def test_the_demand_is_that_of_the_readers(tmp_path: Path, make_dataset: Any) -> None:
    """And stages that are left out, or measured alone, have no ranks that only wait."""
    _, data = make_dataset(samples=60)
    doc, _ = ran(
        tmp_path,
        data,
        accelerator={"step_time": "5ms", "model_parallel": 2},
        calibration_s=0.2,
        ablations=True,
        **RUN,
    )
    assert doc.job.verdict is not None
    assert doc.job.ceilings["accelerator"].samples_per_s == pytest.approx(1000, rel=0.1)
    assert {each.stage for each in doc.job.ablations if each.gain} >= {"storage"}


def test_no_checkpoints_beside_them(tmp_path: Path, make_dataset: Any) -> None:
    from tests.oracle.plants import saving

    _, data = make_dataset(samples=60)
    accelerator = {"step_time": "1ms", "model_parallel": 2}
    mixed = saving(str(tmp_path / "saves"), bandwidth="1GB", every=2)
    with pytest.raises(UsageError, match="model_parallel"):
        ran(tmp_path, data, accelerator=accelerator, mixed=mixed, **RUN)
