"""Evaluation after epochs: on shards that are never trained on, and in no other figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.host.timeline import read_events
from iobench.judge.rebuild import rebuild
from iobench.record.run import EVENTS_FILE
from tests.oracle.plants import ran

RUN: dict[str, Any] = {
    "accelerator": {"step_time": "2ms"},
    "loader": {"workers": 1},
    "batch_size": 5,
    "epochs": 4,
}


@pytest.mark.slow
def test_what_is_evaluated_is_counted_apart(tmp_path: Path, make_dataset: Any) -> None:
    """60 samples, of which a fifth is held out: 48 are trained on in each of four epochs, and 12
    evaluated after two of them, in batches of 4 that take 5 ms.
    """
    manifest, data = make_dataset(samples=60)
    assert manifest.shard_count == 60
    asked = {"share": 0.2, "epochs_between": 2, "batch_size": 4, "step_time": "5ms"}
    doc, directory = ran(tmp_path, data, accelerators=2, evaluation=asked, **RUN)
    (one,) = doc.job.repetitions
    assert (one.samples, [epoch.steps for epoch in one.epochs]) == (
        4 * 48,
        [2 * 5] * 4,
    )
    assert (doc.job.dataset.held_out, doc.job.dataset.in_epoch) == (12, 48)
    assert doc.validity == "valid", doc.findings
    found = one.evaluation
    assert (found.passes, found.samples) == (2, 24)
    # A pass is 12 samples, 3 each 5 ms; two ranks share them, and the second batch of each is half.
    assert found.busy_s == pytest.approx(3 * 0.005)
    assert found.wall_s >= found.busy_s
    assert one.busy_s == pytest.approx(4 * 48 / 5 * 0.001)
    # The same follows from the events, and the training's own figures are its own.
    events = read_events(directory / EVENTS_FILE)
    again = rebuild(doc, events)
    assert again.job.repetitions[0].evaluation == found
    plain, _ = ran(tmp_path, data, accelerators=2, **RUN)
    assert plain.job.repetitions[0].evaluation is None
    assert plain.job.repetitions[0].samples == 4 * 60


@pytest.mark.slow
def test_the_shards_that_are_held_out_are_not_trained_on(tmp_path: Path, make_dataset: Any) -> None:
    """Their files are damaged, so that any read of them by the training would fail."""
    import shutil

    manifest, original = make_dataset(samples=20)
    data = tmp_path / "data"
    shutil.copytree(original, data)
    for shard in range(16, 20):
        path = data / manifest.key(shard)
        path.write_bytes(bytes(path.stat().st_size))
    asked = {"share": 0.2, "epochs_between": 9}
    checked = {**RUN, "reader": {"check": "content"}}
    doc, _ = ran(tmp_path, data, evaluation=asked, **checked)
    assert doc.job.repetitions[0].samples == 4 * 16
    from iobench.base.errors import CorruptSampleError

    with pytest.raises(CorruptSampleError, match="sample 16"):
        ran(tmp_path, data, evaluation={"share": 0.2}, **checked)
