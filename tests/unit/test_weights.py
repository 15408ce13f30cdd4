"""The walk of safetensors headers: sets that the format's own library wrote, and files that lie."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from iobench.base.errors import DatasetError, StorageError
from iobench.serve.weights import INDEX, WEIGHTS, read_weights
from iobench.storage import open_storage
from tests.weights import TYPES, write_every_type

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


def test_a_place_without_weights_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    save_file({"a": torch.zeros(2)}, tmp_path / "below" / "x.safetensors")
    with pytest.raises(DatasetError, match="iobench generate"):
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
        "[]",
        '{"model": "m", "layers": -1, "vocabulary": 1, "seed": 0, "shard_bytes": 1}',
        '{"model": 1, "layers": 1, "vocabulary": 1, "seed": 0, "shard_bytes": 1}',
        '{"model": "m", "layers": 1, "vocabulary": 1, "seed": 1e3, "shard_bytes": 1}',
        '{"model": "m", "layers": 1, "vocabulary": 1, "seed": 0}',
        "[" * 10_000,
    ],
)
def test_a_marker_that_says_nothing_makes_no_weights_ours(tmp_path: Path, said: str) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    (tmp_path / WEIGHTS.marker).write_text(said)
    assert read_weights(open_storage(str(tmp_path))).made is None
