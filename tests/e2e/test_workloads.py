"""Every workload of ``workloads/`` runs on its own dataset, at the sizes that its samples have.

The datasets have few samples, and the bytes of the large ones are holes in sparse files: what is
asked is whether each workload can be measured at all. What the ceilings read from memory is always
a part of the dataset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base import payload
from iobench.data.dataset import load_dataset_spec
from iobench.data.generator.engine import generate
from iobench.runner.calibration import bench
from iobench.settings.workload import load_workload
from iobench.storage.base import Buffer
from iobench.storage.local.storage import LocalStorage
from tests.processes import in_process

LARGE = 64 << 20  # from this size on, a reader looks whether a sample is there


class _Holes:
    """Writes a file front to back, and leaves a hole for each large piece of zeros."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("xb")

    def write(self, data: bytes | Buffer) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), 1 << 20):
            piece = view[start : start + (1 << 20)]
            if np.frombuffer(piece, np.uint8).any():
                self.file.write(piece)
            else:
                self.file.seek(len(piece), os.SEEK_CUR)

    def commit(self) -> None:
        self.file.truncate(self.file.tell())
        self.file.close()


class SparseStorage(LocalStorage):
    """A local directory whose files have holes in place of zeros."""

    @contextmanager
    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> Iterator[Any]:
        sink = _Holes(self.root / key)
        yield sink
        sink.commit()


def zeros(out: Buffer, *, seed: int, index: int, compress_ratio: float = 1.0) -> None:
    np.frombuffer(out, np.uint8)[:] = 0


FEW: dict[str, tuple[str, ...]] = {
    "bert": ("samples=2000", "samples_per_shard=500"),
    "cosmoflow": ("samples=24",),
    "deepcam": ("samples=6",),
    "demo": ("samples=40", "samples_per_shard=10"),
    "dlrm": ("samples=49152", "samples_per_shard=12288"),
    "flux": ("samples=28", "samples_per_shard=7"),
    "librispeech": ("samples=40",),
    "llm-tokens": ("samples=2000", "samples_per_shard=500"),
    "oc20": ("samples=80", "samples_per_shard=20"),
    "resnet50": ("samples=40", "samples_per_shard=10"),
    "retinanet": ("samples=24",),
    "unet3d": ("samples=5",),
}
"""What makes each dataset small. The sizes of its samples stay what they are.

Of 5 shards, the largest is not among those that the seed of a run copies.
"""

SMALL_BATCHES = {"dlrm": 4096, "flux": 4, "resnet50": 4, "retinanet": 4, "unet3d": 2}
"""Samples of a batch, by dataset, where the workload's own are too many for the few samples."""

LARGER = {
    "cosmoflow-h100": ("samples=5", "sample_size.mean=80MB", "sample_size.stdev=4MB"),
    "deepcam": ("samples=5", "sample_size.mean=80MB"),
}
"""The same with samples that are as large as those of unet3d."""

WORKLOADS = sorted(path.stem for path in (Path(__file__).parents[2] / "workloads").glob("*.yaml"))
ALIKE = ("-a100", "-mi355", "unet3d-b200")
"""Workloads that differ in speed alone from another one of the same dataset."""

ROWS = [
    *(
        pytest.param(name, (), id=name, marks=[pytest.mark.nightly] * name.endswith(ALIKE))
        for name in WORKLOADS
    ),
    *(pytest.param(name, sizes, id=f"{name}-larger") for name, sizes in LARGER.items()),
]


@pytest.mark.parametrize(("name", "larger"), ROWS)
def test_a_workload_runs_at_its_own_sizes(
    name: str, larger: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = load_workload(name)
    dataset = workload.dataset
    spec = load_dataset_spec(dataset, (*FEW[dataset], *larger))
    with monkeypatch.context() as patch:
        if spec.content != "jpeg":
            patch.setattr(payload, "fill", zeros)
            patch.setattr(payload, "fill_for_columns", zeros)
        manifest = generate(spec, SparseStorage(tmp_path / "data"), workers=0).manifest
    if larger or dataset == "unet3d":
        assert manifest.samples["stored"].max() > LARGE
    # The shards of one batch are copied to memory, of a dataset that has more.
    monkeypatch.setattr(bench, "MAX_COPY_BYTES", 1)
    monkeypatch.setattr(bench, "MIN_COPY_BYTES", 1)
    change = ["max_steps=3", "epochs=1"]
    quick = {"emulated": ["accelerator.step_time=5ms"], "model": ["accelerator.warm_up=1ms"]}
    change += quick.get(workload.accelerator.kind, [])
    if dataset in SMALL_BATCHES:
        change.append(f"batch_size={SMALL_BATCHES[dataset]}")
    code, out, err = in_process(
        *("run", name, "--data", tmp_path / "data", "--results", tmp_path / "results"),
        *("-n", "1", "--calibration", "50ms", "--no-ablations", "--quiet", "--json"),
        *(word for setting in change for word in ("--set", setting)),
    )
    assert code in (0, 3), err  # 3: holes are not on the storage, so the reads are not proven cold
    document = json.loads(out)
    assert document["status"] == "ok"
    assert document["job"]["repetitions"][0]["samples"] > 0
    for stage in ("fetch", "prep", "loader"):
        ceiling = document["job"]["ceilings"][stage]
        assert ceiling["samples_per_s"], (stage, ceiling)
