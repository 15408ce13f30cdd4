"""A real engine of vector search: its recall is right, its queries are fresh, its index is kept."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import DatasetError, StorageError, UsageError
from iobench.record.manifest import Manifest
from iobench.record.run import load_run
from iobench.record.serving import ServingRun
from iobench.serve import lance
from iobench.serve.lance import LanceIndex, VectorSet, check_vectors
from iobench.settings.scenario import EngineSpec
from iobench.storage import open_storage
from tests.conftest import MakeDataset
from tests.processes import completed, document, refused

NEEDS = "the extra lancedb is not installed (make test-nightly installs it)"

SPEC: dict[str, Any] = {
    "samples": 1500,
    "sample_size": {"mean": 32, "distribution": "constant"},
    "format": "tokens",
    "samples_per_shard": 700,
}
ENGINE: dict[str, Any] = {
    "kind": "lancedb",
    "partitions": 4,
    "sub_vectors": 8,
    "clusters": 30,
    "top": 5,
    "queries": 40,
    "curve": ((1, 0), (4, 60)),
}


@pytest.fixture
def vectors(make_dataset: MakeDataset, tmp_path: Path) -> tuple[Manifest, Path]:
    """In a directory that no other test builds an index in."""
    manifest, path = make_dataset(**SPEC)
    return manifest, Path(shutil.copytree(path, tmp_path / "vectors"))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no engine: the version that an index is built by."""
    monkeypatch.setattr(lance, "_version", lambda: "0.0")


def test_the_nearest_vectors_are_those_of_plain_arithmetic(
    vectors: tuple[Manifest, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over chunks and shards; the bytes of the samples are the noise around few centres."""
    manifest, path = vectors
    monkeypatch.setattr(lance, "CHUNK", 256)
    found = VectorSet(manifest, open_storage(str(path)), 30)
    firsts, parts = zip(*found.chunks(), strict=True)
    every = np.vstack(parts)
    assert firsts == (0, 256, 512, 700, 956, 1212, 1400)
    assert every.shape == (1500, 32)
    queries = found.queries(3, 20)
    distances = ((queries[:, None] - every[None]) ** 2).sum(axis=2)
    truth = np.argsort(distances, axis=1)[:, :5]
    assert [set(row) for row in found.nearest(queries, 5)] == [set(row) for row in truth]
    near = np.sort(distances, axis=1)
    assert (near[:, 0] < 0.5 * near[:, 750]).all()  # neighbours are near, unlike in pure noise


def test_queries_are_fresh_and_a_seed_makes_them_again(vectors: tuple[Manifest, Path]) -> None:
    found = VectorSet(vectors[0], open_storage(str(vectors[1])), 30)
    some = np.vstack([found.queries(seed, 50) for seed in range(5)])
    assert len(np.unique(some, axis=0)) == len(some)
    assert (found.queries(4, 50) == some[200:]).all()


@pytest.mark.parametrize(
    ("changed", "engine", "told"),
    [
        ({}, {"sub_vectors": 7}, "engine.sub_vectors to a divisor of 32, such as 4"),
        ({}, {"partitions": 2000}, "needs 2,000"),
        ({"samples": 100}, {}, "needs 256"),
        ({"format": "tar"}, {}, "generate vectors"),
    ],
)
@pytest.mark.usefixtures("built")
def test_dimensions_and_data_that_do_not_fit_are_refused(
    make_dataset: MakeDataset, changed: dict[str, Any], engine: dict[str, Any], told: str
) -> None:
    manifest, path = make_dataset(**SPEC | changed)
    with pytest.raises(UsageError) as error:
        check_vectors(manifest, open_storage(str(path)), EngineSpec(**ENGINE | engine))
    assert told in f"{error.value} {error.value.remedy}"


def test_without_the_engine_one_line_says_what_to_install(tmp_path: Path) -> None:
    document("generate vectors --to v --samples 300", cwd=tmp_path)
    if lance_is_there():
        pytest.skip("the extra lancedb is installed")
    err = refused("serve vector-search-lancedb --data v --rate 5", cwd=tmp_path)
    assert "[lancedb]" in err


def lance_is_there() -> bool:
    try:
        lance._version()
    except UsageError:
        return False
    return True


def engine(test: Any) -> Any:
    """A test of the engine itself."""
    return pytest.mark.nightly(pytest.mark.skipif(not lance_is_there(), reason=NEEDS)(test))


def index_of(vectors: tuple[Manifest, Path], **changed: Any) -> LanceIndex:
    spec, storage = EngineSpec(**ENGINE | changed), open_storage(str(vectors[1]))
    check_vectors(vectors[0], storage, spec)
    return LanceIndex.of(vectors[0], storage, spec, lambda: None)


def recall(index: LanceIndex, nprobes: int, refine: int, seed: int = 1) -> float:
    searches = index.searches(seed, 60, 3, nprobes, refine)
    issued = searches.issue(np.zeros(60, np.int64), np.arange(60), drain_s=60)
    assert not issued.failed.any(), issued.failure
    searches.close()
    return float(np.mean(index.recall(searches)))


@engine
def test_recall_is_1_where_all_is_compared_and_less_where_little_is(
    vectors: tuple[Manifest, Path],
) -> None:
    """4 of 4 partitions, and every candidate refined: the engine compares as the truth does."""
    index = index_of(vectors)
    assert recall(index, 4, 300) == 1.0
    assert recall(index, 1, 0) < 0.95
    other = VectorSet(vectors[0], open_storage(str(vectors[1])), 30)
    other._centres = other._centres[::-1].copy()  # the truth of other vectors is another one
    assert recall(LanceIndex(other, index.spec, index.folder, index.layout, False), 4, 300) < 0.5


@engine
def test_an_index_is_kept_and_one_of_another_kind_is_refused(
    vectors: tuple[Manifest, Path],
) -> None:
    first = index_of(vectors)
    assert first.built
    assert not index_of(vectors).built
    with pytest.raises(UsageError, match="8 partitions"):
        index_of(vectors, partitions=8)
    record = first.folder / "layout.json"
    for key, value in (("package", "lancedb 0.1"), ("dataset", "x")):
        changed = json.loads(record.read_text()) | {key: value}
        record.write_text(json.dumps(changed))
        with pytest.raises(UsageError, match="was built"):
            index_of(vectors)


@engine
@pytest.mark.parametrize("text", [b"s3://other/x", b"/etc/passwd", b"../../x.lance"])
def test_an_index_of_others_that_names_other_places_is_refused(
    vectors: tuple[Manifest, Path], text: bytes
) -> None:
    index = index_of(vectors)
    versions = index.folder / "vectors.lance/_versions"
    manifest = next(versions.glob("*.manifest"))
    before = manifest.read_bytes()
    manifest.write_bytes(before[:20] + text + before[20:])
    with pytest.raises(DatasetError, match="not one that iobench built"):
        index_of(vectors)
    manifest.write_bytes(before)
    assert not index_of(vectors).built
    (versions / "1.manifest").write_bytes(before)  # in none of the records
    with pytest.raises(DatasetError, match=r"1\.manifest"):
        index_of(vectors)


@engine
def test_a_damaged_index_is_one_line(vectors: tuple[Manifest, Path]) -> None:
    index = index_of(vectors)
    for key in index.keys:
        path = vectors[1] / key
        if path.suffix in (".lance", ".idx", ".manifest"):
            os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StorageError, match="LanceDB failed to") as error:
        recall(index, 4, 1)
    assert "\n" not in str(error.value)


@engine
def test_a_run_has_one_curve_cold_and_its_files_are_removed_with_the_dataset(
    tmp_path: Path,
) -> None:
    document("generate vectors --to v --samples 3000", cwd=tmp_path)
    words = "--rate 20 --duration 1s --repeat 1 --set engine.partitions=8 --set engine.queries=40"
    ran = completed(*shlex.split(f"serve vector-search-lancedb --data v {words}"), cwd=tmp_path)
    assert ran.returncode in (0, 3), ran  # a busy machine issues its requests late
    (directory,) = (tmp_path / "results").iterdir()
    job = load_run(directory).job
    assert isinstance(job, ServingRun)
    points = job.of("recall")
    assert [(one.nprobes, one.refine) for one in points] == list(job.scenario.engine.curve)
    recalls = [one.recall for one in points]
    assert recalls[0] < recalls[-1] == max(recalls)
    assert all(one.recall_low <= one.recall <= one.recall_high for one in points)
    assert all(one.requests_per_s > 0 and one.latency_p99_s > 0 for one in points)
    assert len({one.seed for one in job.trials}) >= len(points) + 1
    assert all(one.residency_before == 0 for one in job.of("repetition") + points)
    assert all(one.bytes > 0 for one in points)  # that the storage delivered, past all caches
    assert job.index.built_s > 0
    document("clean v", cwd=tmp_path)
    assert not (tmp_path / "v").exists()
