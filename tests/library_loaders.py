"""Loaders as a user of each library writes them, for ``--loader tests.library_loaders:NAME``.

``data`` is a dataset of iobench: one file for each sample, or tar and Parquet shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

BATCH = 8


def _files(data: str, suffix: str = "") -> list[str]:
    found = sorted(str(path) for path in Path(data).rglob(f"*{suffix}") if path.is_file())
    return [name for name in found if suffix or "shards" in name or name.endswith(".jpg")]


def _sample(raw: bytes) -> torch.Tensor:
    """The first bytes of a sample: what a decoder would make of it is not the point here."""
    return torch.frombuffer(bytearray(raw[:500]), dtype=torch.uint8)


class Files(Dataset[torch.Tensor]):
    def __init__(self, data: str) -> None:
        self.files = _files(data, ".jpg")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return _sample(Path(self.files[index]).read_bytes())


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, data: str) -> None:
        self.files = _files(data, ".jpg")

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        mine = self.files if info is None else self.files[info.id :: info.num_workers]
        return (_sample(Path(name).read_bytes()) for name in mine)


def torch_map(data: str) -> DataLoader[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(Files(data), BATCH, shuffle=True, num_workers=1, generator=generator)


def torch_iterable(data: str) -> DataLoader[torch.Tensor]:
    return DataLoader(Stream(data), BATCH, num_workers=2)


def webdataset(data: str) -> Any:
    import webdataset as wds

    shards = _files(data, ".tar")
    samples = wds.WebDataset(shards, shardshuffle=False, empty_check=False)
    samples = samples.to_tuple("jpg").map_tuple(_sample).batched(BATCH).map(_first)
    return wds.WebLoader(samples, batch_size=None, num_workers=1)


def _first(batch: Any) -> Any:
    return batch[0]


def hf_datasets(data: str) -> Any:
    """A map-style Dataset of Hugging Face: iobench puts torch's DataLoader over it."""
    from datasets import Dataset as HFDataset
    from datasets import disable_progress_bars

    disable_progress_bars()
    raws = [np.frombuffer(Path(name).read_bytes()[:500], np.uint8) for name in _files(data, ".jpg")]
    return HFDataset.from_dict({"x": raws, "y": list(range(len(raws)))})


def hf_streaming(data: str) -> DataLoader[Any]:
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    shards = _files(data, ".parquet")
    cache = os.environ.get("TMPDIR", "/tmp") + "/hf-cache"
    rows = load_dataset(
        "parquet", data_files=shards, split="train", streaming=True, cache_dir=cache
    )
    return DataLoader(rows, BATCH, num_workers=1, collate_fn=_rows)


def _rows(rows: list[dict[str, Any]]) -> torch.Tensor:
    return torch.stack(
        [_sample(next(each for each in row.values() if isinstance(each, bytes))) for row in rows]
    )


class Spdl:
    """A pipeline of SPDL is used up after one epoch, so each iteration builds a new one."""

    def __init__(self, data: str) -> None:
        names = _files(data, ".jpg")
        self.batches = [names[at : at + BATCH] for at in range(0, len(names), BATCH)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        from spdl.pipeline import PipelineBuilder

        builder: Any = PipelineBuilder().add_source(self.batches)
        pipeline = builder.pipe(_read, concurrency=2, output_order="input").add_sink(4)
        built = pipeline.build(num_threads=2)
        with built.auto_stop():
            yield from built


def _read(names: list[str]) -> torch.Tensor:
    return torch.stack([_sample(Path(name).read_bytes()) for name in names])


def spdl(data: str) -> Iterable[torch.Tensor]:
    return Spdl(data)


def grain(data: str) -> Any:
    import grain as library

    dataset = library.MapDataset.source(_files(data, ".jpg")).shuffle(seed=3)
    return dataset.map(_array).batch(BATCH).to_iter_dataset()


def _array(name: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(Path(name).read_bytes()[:500], np.uint8)


def lightning(data: str) -> Any:
    from pytorch_lightning import LightningDataModule

    class Module(LightningDataModule):  # type: ignore[misc, unused-ignore]
        def setup(self, stage: str) -> None:
            self.files = Files(data)

        def train_dataloader(self) -> DataLoader[torch.Tensor]:
            return DataLoader(self.files, BATCH, num_workers=1)

    return Module()
