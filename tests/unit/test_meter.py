"""One loader is counted alike, whether iobench or a training of the user's own drives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import iobench
from iobench.host.timeline import read_events
from iobench.record.job import UserFacts
from iobench.record.run import EVENTS_FILE, load_training
from iobench.settings.workload import LoaderSpec
from iobench.subject.loader import UserLoader
from tests import planted_loaders

pytestmark = pytest.mark.filterwarnings("ignore")

OF_FILES = ("of_files", "of_generator", "slow_stream", "slow_collate", "Module")
"""Planted loaders that read the files of a directory."""

COUNTED = ("type", "workers", "batches", "samples", "delivered_bytes", "fetches")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("files")
    for number in range(24):
        (folder / f"{number:02}.jpg").write_bytes(np.random.default_rng(number).bytes(2000))
    return str(folder)


def driven(name: str, arguments: dict[str, Any], data: str) -> tuple[UserFacts, list[int]]:
    """What ``run --loader`` counts, and the samples of each batch."""
    spec = LoaderSpec(kind="user", factory=f"tests.planted_loaders:{name}", args=arguments)
    loader = UserLoader(spec, data=data, root=data, batch_size=8, stored_bytes=2000)
    sizes = [cast(Any, batch).stats.samples for batch in loader]
    facts = loader.facts()
    loader.shutdown()
    return facts, sizes


def watched(
    name: str, arguments: dict[str, Any], data: str, results: Path
) -> tuple[UserFacts, list[int]]:
    """What ``iobench.watch`` counts, and the samples of each step."""
    made = getattr(planted_loaders, name)(*([data] if name in OF_FILES else []), **arguments)
    if name == "Module":
        made.setup("fit")
        made = made.train_dataloader()
    with (watch := iobench.watch(made, results=results, data=data)) as batches:
        for _ in batches:
            pass
    assert watch.directory is not None
    facts = load_training(watch.directory).job.loader.user
    assert facts is not None
    return facts, read_events(watch.directory / EVENTS_FILE)["samples"].tolist()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("of_files", {"workers": 0}),
        ("of_files", {"workers": 2, "batch": 7}),
        ("of_generator", {}),
        ("slow_stream", {}),
        ("slow_collate", {"workers": 0}),
        ("of_dicts", {}),
        ("of_stream", {"workers": 1}),
        ("of_kind", {"kind": "bytes"}),
        ("of_kind", {"kind": "ragged"}),
        ("of_lists_of_samples", {"shape": 3}),
        ("of_lists_of_samples", {"shape": 4}),
        ("Module", {}),
    ],
)
def test_both_count_the_same(
    name: str, arguments: dict[str, Any], data: str, tmp_path: Path
) -> None:
    ours, sizes = driven(name, arguments, data)
    theirs, steps = watched(name, arguments, data, tmp_path)
    assert len(sizes) == ours.batches > 1
    assert steps == sizes
    for key in COUNTED:
        assert getattr(theirs, key) == getattr(ours, key), key
    assert theirs.not_measured.keys() - ours.not_measured.keys() == set()
    for found in (ours, theirs):
        assert found.wait_s is not None
        assert (found.collate_s or 0) <= (found.fetch_wall_s or 0)
    assert (theirs.collate_s is None) == (ours.collate_s is None)
    if name == "slow_collate":
        assert (theirs.collate_s or 0) >= ours.batches * 0.01
    assert theirs.files_inside == ours.files_inside == (24 if name in OF_FILES else 0)
