"""Generated datasets with labels: other software finds the classes, and iobench owns the files."""

from __future__ import annotations

import tarfile
from typing import Any

import numpy as np
import pytest
import simplejpeg

from iobench.data.generator.target import Owned
from iobench.data.verify import verify
from iobench.storage.local.storage import LocalStorage
from tests.conftest import MakeDataset

LABELLED: dict[str, Any] = {"content": "jpeg", "labels": 3, "sample_size": {"mean": 3000}}


def pixels(content: bytes) -> Any:
    return simplejpeg.decode_jpeg(content, "RGB")


@pytest.mark.parametrize("codec", ["none", "gzip:1"])
def test_each_sample_of_a_tar_has_its_class_beside_it(
    make_dataset: MakeDataset, codec: str
) -> None:
    manifest, path = make_dataset(**LABELLED, format="tar", samples_per_shard=25, codec=codec)
    found: dict[str, dict[str, bytes]] = {}
    for key in manifest.keys():  # noqa: SIM118
        with tarfile.open(path / key) as archive:
            for member in archive:
                stem, _, kind = member.name.partition(".")
                found.setdefault(stem, {})[kind] = archive.extractfile(member).read()  # type: ignore[union-attr]
    assert [int(stem) for stem in found] == list(range(60))
    assert [sample["cls"] for sample in found.values()] == [b"%d" % (i % 3) for i in range(60)]
    assert all(len(sample) == 2 for sample in found.values())
    assert verify(LocalStorage(path), manifest, workers=0).ok


def test_each_class_of_files_has_a_folder(make_dataset: MakeDataset) -> None:
    manifest, path = make_dataset(**LABELLED, format="files")
    files = sorted((path / "data").rglob("*.jpg"))
    assert len(files) == 60
    for file in files:
        assert file.relative_to(path / "data").parts[0] == f"class-{int(file.stem) % 3}"
    assert verify(LocalStorage(path), manifest, workers=0).ok
    owned = Owned(manifest.spec, path)
    for below in (path / "data").rglob("*"):
        name = str(below.relative_to(path))
        assert owned.folder(name) if below.is_dir() else owned.file(name)
    for name in ("data/class-3", "data/class-01", "data/class-0/000001", "data/000000", "data/x-0"):
        assert not owned.folder(name)


def test_the_mean_colour_tells_the_class_also_of_a_crop(make_dataset: MakeDataset) -> None:
    manifest, path = make_dataset(**{**LABELLED, "labels": 10}, format="files")
    colours = np.array(
        [pixels((path / key).read_bytes())[5:40, 9:40].mean((0, 1)) for key in manifest.keys()]  # noqa: SIM118
    )
    colours /= colours.sum(1, keepdims=True)
    centres = np.stack([colours[label:30:10].mean(0) for label in range(10)])
    nearest = ((colours[30:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == np.arange(30, 60) % 10).mean() > 0.8
