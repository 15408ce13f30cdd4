"""Loaders that users write with each library, under ``--loader`` and under ``iobench.watch``: the
batches stay as they are, and what is seen of them is what they did.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import iobench
from iobench.record.run import load_training
from iobench.settings.workload import LoaderSpec
from iobench.subject.loader import UserLoader
from tests import library_loaders
from tests.planted_loaders import plain

pytestmark = pytest.mark.filterwarnings("ignore")

FORMAT = {"webdataset": "tar", "hf_streaming": "parquet"}
SAMPLES, MEAN = 60, 20_000
THREADS = {"spdl", "grain"}
"""Loaders whose batches are made in the process itself; the others have worker processes."""


def _data(kind: str, make_dataset: Any) -> Path:
    form = FORMAT.get(kind, "files")
    packed = {} if form == "files" else {"samples_per_shard": 15}
    spec = {"format": form, "content": "jpeg", "samples": SAMPLES, "sample_size": {"mean": MEAN}}
    root: Path = make_dataset(**spec, **packed)[1]
    return root


def _bare(kind: str, root: Path) -> Iterable[Any]:
    """The batches as the user's own script gets them."""
    made = getattr(library_loaders, kind)(str(root))
    if kind == "lightning":
        made.prepare_data()
        made.setup("fit")
        return made.train_dataloader()  # type: ignore[no-any-return]
    if kind == "hf_datasets":
        return torch.utils.data.DataLoader(made.with_format("torch"), library_loaders.BATCH)
    return made  # type: ignore[no-any-return]


def _needs(kind: str) -> None:
    """Only one of these libraries can't be had everywhere."""
    if kind != "lightning":
        return
    try:
        importlib.import_module("pytorch_lightning")
    except Exception as error:
        pytest.skip(
            "NOT RUN: Lightning, whose torchmetrics imports torchvision, which is not built for "
            f"the torch of constraints.txt ({type(error).__name__})"
        )


SLOW = ("hf_datasets", "hf_streaming", "lightning", "webdataset")


@pytest.mark.parametrize(
    "kind",
    [
        *("torch_map", "torch_iterable", "spdl", "grain"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW),
    ],
)
def test_libraries(
    kind: str, make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _needs(kind)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    root = _data(kind, make_dataset)
    samples, truth = 0, []
    for batch in _bare(kind, root):
        samples += len(batch["y"] if isinstance(batch, dict) else batch)
        truth.append(plain(batch))
    assert samples == SAMPLES
    name = f"tests.library_loaders:{kind}"
    given = {"data": str(root), "root": str(root), "batch_size": 8, "stored_bytes": float(MEAN)}
    loading = LoaderSpec(kind="user", factory=name, workers=1, start_method="fork")
    under = UserLoader(loading, **given)  # type: ignore[arg-type]
    try:
        under.set_epoch(0)
        seen = [plain(batch.value) for batch in under]
        facts = under.facts()
    finally:
        under.shutdown()
    if kind != "hf_datasets":  # iobench makes the DataLoader over a Dataset, and shuffles it
        assert seen == truth
    assert (facts.samples, facts.workers == 0) == (SAMPLES, kind in THREADS)
    assert facts.files_inside
    if kind != "hf_datasets":  # it has read its files before the first batch
        assert facts.process_bytes >= SAMPLES * MEAN

    with (watch := iobench.watch(_bare(kind, root), results=tmp_path / "r", data=root)) as batches:
        watched = [plain(batch) for batch in batches]
    assert watched == truth
    assert watch.directory is not None
    job = load_training(watch.directory).job
    assert (job.loader.user.samples, job.repetitions[0].steps) == (SAMPLES, len(truth))
    assert job.loader.user.workers == job.workers
    assert job.loader.user.workers > 0 or kind in (*THREADS, "hf_datasets")
    assert job.verdict is not None
