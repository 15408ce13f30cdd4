"""The catalog of released models, against what was published, and weights that are made of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from safetensors import safe_open

from iobench.base.errors import (
    NoRoomError,
    StorageError,
    TargetRefusedError,
    UsageError,
)
from iobench.serve.generate import generate_weights
from iobench.serve.models import SERVED_MODELS, find_served_model, shards_of
from iobench.serve.weights import INDEX, WEIGHTS, MadeBy, made_by
from iobench.storage import open_storage
from tests.weights import TINY, tiny

PUBLISHED = {
    "llama3-8b": (16.06, 4, 291),
    "llama3-70b": (141.1, 30, 723),
    "llama3-405b": (811.7, 191, 1_137),
    "qwen3-0.6b": (1.5, 1, 311),
    "qwen3-32b": (65.5, 17, 707),
    "qwen3-30b-a3b": (61.1, 16, 18_867),
    "deepseek-v3": (688.6, 163, 91_991),
}
"""GB, shards and tensors, as each model's index and repository say."""


@pytest.mark.parametrize("name", SERVED_MODELS)
def test_a_model_has_the_bytes_shards_and_tensors_that_were_published(name: str) -> None:
    gigabytes, shards, count = PUBLISHED[name]
    model = find_served_model(name)
    tensors = model.tensors()
    assert sum(tensor.nbytes for tensor in tensors) / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert len(shards_of(tensors, model.shard_bytes)) == shards
    assert len({tensor.name for tensor in tensors}) == len(tensors) == count


@pytest.mark.parametrize("asked", [{"layers": 0}, {"layers": 33}, {"vocabulary": 128_257}])
def test_a_model_can_only_become_smaller(asked: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="llama3-8b can't have"):
        find_served_model("llama3-8b").tensors(**asked)


def test_the_library_reads_what_was_made_and_its_index(tmp_path: Path) -> None:
    made = tiny(open_storage(str(tmp_path)))
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == made.nbytes
    found = {}
    for shard in made.shards:
        with safe_open(tmp_path / shard.key, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no dict)
                found[name] = tuple(file.get_slice(name).get_shape())
                assert index["weight_map"][name] == shard.key
    assert found == {tensor.name: tensor.shape for tensor in TINY.tensors()}
    assert made.made == MadeBy("tiny", 4, 3000, 0, 600_000)


def test_bytes_follow_from_the_seed_and_do_not_repeat(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two", "other")]
    for place, seed in zip(places, (0, 0, 1), strict=True):
        tiny(open_storage(str(place)), seed=seed)
    one, two, other = (
        [path.read_bytes() for path in sorted(place.glob("*.safetensors"))] for place in places
    )
    assert one == two
    assert all(a != b for a, b in zip(one, other, strict=True))
    blocks = [data[i : i + 4096] for data in one for i in range(0, len(data) - 4096, 4096)]
    assert len(set(blocks)) == len(blocks)


def test_an_interrupted_call_is_continued(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    tiny(open_storage(str(whole)))
    written = 0

    def interrupt(count: int) -> None:
        nonlocal written
        written += count
        if written > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_weights(TINY, open_storage(str(part)), shard_bytes=600_000, progress=interrupt)
    left = {path.name for path in part.iterdir()}
    assert 0 < len(left) < len(list(whole.iterdir()))
    assert not any(name.endswith(".part") for name in left)
    before = {path.name: path.stat().st_mtime_ns for path in part.glob("model*")}
    tiny(open_storage(str(part)))
    assert {p.name: p.read_bytes() for p in part.glob("model*")} == {
        p.name: p.read_bytes() for p in whole.glob("model*")
    }
    assert all((part / name).stat().st_mtime_ns == then for name, then in before.items())


def test_what_a_killed_call_left_is_written_anew(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    shards = tiny(open_storage(str(first))).shards
    WEIGHTS.claim(open_storage(str(again)), made_by(open_storage(str(first)))._asdict())
    (again / f"{shards[0].key}.part").write_bytes(b"half")
    assert tiny(open_storage(str(again))).shards == shards
    assert not list(again.glob("*.part"))


@pytest.mark.parametrize(
    "name", ["README.md", "model-00001-of-00004.safetensors", INDEX, "model.safetensors"]
)
def test_a_place_with_other_files_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"somebody else's")
    with pytest.raises(TargetRefusedError, match="has no weights of iobench"):
        tiny(open_storage(str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_write_that_fails_leaves_no_part_of_a_shard(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        tiny(open_storage(f"faulty+{tmp_path / 'w'}?fail_write_at=20"))
    for path in (tmp_path / "w").glob("model*"):
        with safe_open(path, framework="pt") as file:
            assert len(list(file.keys())) > 0


def test_a_full_disk_is_seen_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 100, 4096

    monkeypatch.setattr("iobench.base.filesystem.os.statvfs", lambda path: Full)
    with pytest.raises(NoRoomError, match="the weights need"):
        tiny(open_storage(str(tmp_path / "w")))
    assert not (tmp_path / "w").exists()


def test_a_pieces_number_is_never_used_twice() -> None:
    from iobench.serve.generate import first_pieces

    sizes = {f"t{n}": random.Random(n).randrange(20 << 20) for n in range(50)} | {"none": 0}
    first = first_pieces(sizes.items())
    used = [
        number
        for name, nbytes in sizes.items()
        for number in range(first[name], first[name] + -(-nbytes // (4 << 20)))
    ]
    assert len(set(used)) == len(used)
