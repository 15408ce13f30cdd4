"""The catalog of released models, against what was published, and weights that are made of it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from iobench.base.errors import (
    DatasetError,
    NoRoomError,
    StorageError,
    TargetRefusedError,
    UsageError,
)
from iobench.serve.generate import generate_weights
from iobench.serve.models import SERVED_MODELS, find_served_model, shards_of
from iobench.serve.weights import INDEX, WEIGHTS, MadeBy, made_by, read_weights
from iobench.storage import open_storage
from tests.weights import TINY, TYPES, tiny, write_every_type

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


# The walk of safetensors headers: sets that the library wrote, and files that lie

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
names = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
sets = st.dictionaries(names, st.tuples(st.sampled_from(TYPES), shapes), max_size=8)


@given(st.lists(sets, min_size=1, max_size=3))
def test_what_the_library_wrote_is_found_where_it_is(
    tmp_path_factory: pytest.TempPathFactory, files: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("w")
    for number, file in enumerate(files):
        tensors = {
            f"{number}.{name}": (torch.arange(math.prod(shape) * 8) % 2)
            .to(torch.uint8)
            .view(dtype)[: math.prod(shape)]
            .reshape(shape)
            .clone()
            for name, (dtype, shape) in file.items()
        }
        save_file(tensors, folder / f"{number}.safetensors", metadata={"iobench": "no"})
    weights = read_weights(open_storage(str(folder)))
    found = {tensor.name: tensor for tensor in weights.tensors}
    seen = 0
    for shard in weights.shards:
        data = (folder / shard.key).read_bytes()
        assert shard.size == len(data)
        with safe_open(folder / shard.key, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (it is no dict)
                tensor, stored = file.get_tensor(name), found[name]
                flat = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
                assert data[stored.offset : stored.offset + stored.nbytes] == flat.numpy().tobytes()
                assert (stored.shard, stored.shape) == (shard.key, tuple(tensor.shape))
                seen += 1
    assert seen == len(weights.tensors)
    assert weights.file_bytes > weights.nbytes == sum(t.nbytes for t in weights.tensors)


def header(entries: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: int = 0, end: int = 4, dtype: Any = "F32", shape: Any = (1,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


BAD = {
    "nothing": (b"", "only 0 bytes"),
    "a length beyond the file": (header({}, length=1 << 20), "header has 1048576 bytes"),
    "the largest length": (header({}, length=(1 << 64) - 1), "the limit is 100000000"),
    "no JSON": (header(b"{nonsense"), "header is damaged"),
    "nested": (header(b"[" * 100_000), "header is damaged"),
    "nested within": (header({"a": json.loads("[" * 60 + "]" * 60)}), "header is damaged"),
    "no UTF-8": (header(b'{"\xff": 1}'), "header is damaged"),
    "a huge number": (header(b'{"a": 1' + b"0" * 10_000 + b"}"), "header is damaged"),
    "an entry that is none": (header({"a": 3}), "other keys"),
    "an entry with more": (header({"a": entry() | {"b": 1}}, bytes(4)), "other keys"),
    "an unknown type": (header({"a": entry(dtype="F4")}, bytes(4)), "'F4', which is not"),
    "a type that is no text": (header({"a": entry(dtype=["F32"])}, bytes(4)), "not supported"),
    "a negative length": (header({"a": entry(shape=(-1,))}, bytes(4)), "shape of 'a'"),
    "a length of true": (header({"a": entry(shape=(True,))}, bytes(4)), "shape of 'a'"),
    "too many dimensions": (header({"a": entry(shape=[1] * 65)}, bytes(4)), "shape of 'a'"),
    "an endless shape": (header({"a": entry(shape=[1 << 60] * 40)}, bytes(4)), "but has 4 bytes"),
    "a shape of other bytes": (header({"a": entry(shape=(2,))}, bytes(4)), "but has 4 bytes"),
    "offsets the wrong way": (header({"a": entry(4, 0)}, bytes(4)), "but has -4 bytes"),
    "three offsets": (
        header({"a": entry() | {"data_offsets": [0, 4, 8]}}, bytes(8)),
        "has the offsets",
    ),
    "an overlap": (
        header({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)),
        "'b' overlap the tensor before",
    ),
    "a hole": (header({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12)), "'b' begin behind a hole"),
    "a name twice": (
        header(
            b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},'
            b'"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}',
            bytes(2),
        ),
        "begin behind a hole",
    ),
    "bytes of nobody": (header({"a": entry()}, bytes(5)), "the file has"),
    "a truncated file": (header({"a": entry(0, 8, shape=(2,))}, bytes(5)), "the file has"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_lies_is_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    data, why = BAD[name]
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(DatasetError) as error:
        read_weights(open_storage(str(tmp_path)))
    assert why in str(error.value)
    assert f"{tmp_path}/x.safetensors" in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_million_tensors_are_refused_before_they_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iobench.serve.weights._MAX_TENSORS", 3)
    tensors = {f"t{n}": torch.zeros(1) for n in range(4)}
    save_file(tensors, tmp_path / "x.safetensors")
    monkeypatch.setattr("iobench.serve.weights.parse_json", None)
    with pytest.raises(DatasetError, match="4 tensors; the limit is 3"):
        read_weights(open_storage(str(tmp_path)))


def test_tensors_of_all_shards_together_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iobench.serve.weights._MAX_TENSORS", 3)
    for name in "ab":
        save_file({f"{name}{n}": torch.zeros(1) for n in (0, 1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(DatasetError, match="more than 3 tensors"):
        read_weights(open_storage(str(tmp_path)))


def with_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Two shards and an index that was changed."""
    for name in "ab":
        save_file({name: torch.zeros(2)}, folder / f"{name}.safetensors")
    document = {"metadata": {}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    changed = change(document)
    text = changed if isinstance(changed, str) else json.dumps(document)
    (folder / INDEX).write_text(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: "{", "can't be used"),
        (lambda d: "[" * 100_000, "can't be used"),
        (lambda d: d.pop("weight_map"), "no 'weight_map'"),
        (lambda d: d.update(weight_map=["a"]), "no 'weight_map'"),
        (lambda d: d["weight_map"].update(a="gone.safetensors"), "gone.safetensors, which is not"),
        (lambda d: d["weight_map"].update(a="../a.safetensors"), "no *.safetensors file beside"),
        (lambda d: d["weight_map"].update(a="/a.safetensors"), "no *.safetensors file beside"),
        (lambda d: d["weight_map"].update(a="a.bin"), "no *.safetensors file beside"),
        (lambda d: d["weight_map"].update(a=["a.safetensors"]), "no *.safetensors file beside"),
        (lambda d: d["weight_map"].update(c="a.safetensors"), "a.safetensors has no tensor 'c'"),
        (lambda d: d["weight_map"].update(a="b.safetensors"), "b.safetensors has no tensor 'a'"),
    ],
)
def test_an_index_that_lies_is_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], why: str
) -> None:
    (tmp_path / "w").mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")  # where a lie would lead to
    with_index(tmp_path / "w", change)
    with pytest.raises(DatasetError) as error:
        read_weights(open_storage(str(tmp_path / "w")))
    assert why in str(error.value)
    assert INDEX in str(error.value)


def test_an_index_says_which_of_the_files_belong_to_the_model(tmp_path: Path) -> None:
    with_index(tmp_path, lambda document: None)
    save_file({"a": torch.zeros(2), "b": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    assert [shard.key for shard in read_weights(open_storage(str(tmp_path))).shards] == [
        "a.safetensors",
        "b.safetensors",
    ]


def test_without_an_index_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        save_file({"same": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(DatasetError, match=r"'same' is in a\.safetensors, too"):
        read_weights(open_storage(str(tmp_path)))


def test_two_indices_are_refused(tmp_path: Path) -> None:
    write_every_type(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    with pytest.raises(DatasetError, match="several indices"):
        read_weights(open_storage(str(tmp_path)))


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "out.safetensors")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "x.safetensors").symlink_to(tmp_path / "out.safetensors")
    with pytest.raises((DatasetError, StorageError)):
        read_weights(open_storage(str(tmp_path / "w")))


@pytest.mark.parametrize(
    "said",
    [
        "{}",
        '{"model": "m", "layers": -1, "vocabulary": 1, "seed": 0, "shard_bytes": 1}',
        '{"model": "m", "layers": 1, "vocabulary": 1, "seed": 1e3, "shard_bytes": 1}',
        '{"model": "m", "layers": 1, "vocabulary": 1, "seed": 0}',
        "[" * 10_000,
    ],
)
def test_a_marker_that_says_nothing_makes_no_weights_ours(tmp_path: Path, said: str) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    (tmp_path / WEIGHTS.marker).write_text(said)
    assert read_weights(open_storage(str(tmp_path))).made is None
