"""Checkpoints of others run no code, change nothing in the process, and take little memory."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.base.errors import CorruptCheckpointError
from iobench.base.limits import MIN_HEADER_LIMIT
from iobench.checkpoint.catalog import CheckpointRoot, CheckpointTarget
from tests.checkpoints import blank, plant, restore, save
from tests.children import in_child

TESTS = Path(__file__).parent.parent
GOLDEN = next((TESTS / "golden").glob("0.1.0/checkpoints/dcp/step-*/.metadata")).read_bytes()
SLOTS = (TESTS / "corpus/dcp/slots.metadata").read_bytes()
LITTLE = 100 << 20
"""Bytes that no refusal needs."""


def library() -> Any:
    """The module of torch with the classes of metadata.

    It takes a second to import, which only a process that runs these tests should take.
    """
    from torch.distributed.checkpoint import metadata

    return metadata


def unpickled(data: bytes) -> Any:
    from iobench.checkpoint.dcp_compat import unpickle_metadata

    return unpickle_metadata(data)


class Reduced:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def archived(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def damaged(data: bytes) -> bool:
    """Whether metadata is refused, whatever the error is: a restore makes one line of it."""
    try:
        unpickled(data)
    except Exception:
        return True
    return False


class TestMetadata:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_of_any_protocol_is_read(self, protocol: int) -> None:
        truth = pickle.loads(GOLDEN)
        found = unpickled(pickle.dumps(truth, protocol))
        assert found.storage_data == truth.storage_data
        assert found.state_dict_metadata == truth.state_dict_metadata

    def test_no_class_gets_an_attribute(self) -> None:
        before = dict(vars(pathlib.PosixPath))
        assert damaged(SLOTS)
        assert dict(vars(pathlib.PosixPath)) == before

    @pytest.mark.parametrize("name", ["Metadata", "_MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST"])
    def test_nothing_of_the_library_gets_an_attribute(self, name: str) -> None:
        changed = attrgetter(name)(library())
        slots = pickle.dumps(changed)[:-1] + pickle.dumps((None, {"planted": 1}))[2:-1] + b"b."
        assert pickle.loads(slots) is changed  # so the pickle is one that would do it
        del changed.planted
        assert damaged(slots)
        assert not hasattr(changed, "planted")

    @pytest.mark.parametrize(
        "made",
        [
            Reduced(os.mkdir, "made"),
            Reduced(eval, "open('made', 'w')"),
            lambda: Reduced(setattr, library().Metadata, "version", "x"),
            Reduced(bytearray, 8 << 30),
            Reduced(torch.empty, 8 << 30),
            Reduced(pathlib.PosixPath, Reduced(os.mkdir, "made")),
            torch.ones(3),
        ],
        ids=["mkdir", "eval", "setattr", "bytearray", "empty", "path", "tensor"],
    )
    def test_nothing_is_executed_and_nothing_else_is_made(
        self, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        made = made() if callable(made) else made
        whole = pickle.dumps(library().Metadata({}, None, {}, made, None))
        part = pickle.dumps(library().Metadata({"a": made}, None, {}))
        ended = in_child(lambda: [damaged(d) for d in (pickle.dumps(made), part, whole)])
        assert ended.value == [True, True, True]
        assert ended.extra_bytes < LITTLE
        assert list(tmp_path.iterdir()) == []
        assert library().Metadata({}).version is None

    @settings(max_examples=40)
    @given(changes=st.lists(st.tuples(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))))
    def test_any_damage_is_an_error_or_metadata(self, changes: list[tuple[int, int]]) -> None:
        data = bytearray(GOLDEN)
        for place, byte in changes:
            data[place] = byte
        with suppress(Exception):
            assert isinstance(unpickled(bytes(data)), library().Metadata)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x80\x09N.",
            b"\x80\x02.",
            b"\x80\x02h\x00.",
            b"\x80\x02X\xff\xff\xff\xffabc.",
            b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x00.",
            b"\x80\x02Nr\xff\xff\xff\x7f",
            b"\x80\x02X\x01\x00\x00\x00\xff.",
            b"\x80\x02Nb.",
            b"\x80\x02NR.",
            b"\x80\x02}NNs",
        ],
    )
    def test_damage_takes_no_memory(self, data: bytes) -> None:
        ended = in_child(lambda: damaged(data))
        assert ended.value
        assert ended.extra_bytes < LITTLE


def claimed(path: Path) -> CheckpointRoot:
    root = CheckpointRoot.open(str(path))
    root.claim()
    return root


def folder_of(target: CheckpointTarget) -> Path:
    folder = target.path()
    assert folder is not None
    return folder


def read_back(writer: str, target: CheckpointTarget, state: dict[str, Any]) -> Any:
    """The error of a restore in a child, which takes little memory."""
    ended = in_child(lambda: restore(writer, target, blank(state)).bytes)
    assert ended.extra_bytes < LITTLE
    assert isinstance(ended.error, CorruptCheckpointError), ended
    return str(ended.error)


def of_deflated_members(size: int) -> bytes:
    """A file of torch.save whose one tensor of ``size`` bytes is deflated."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archived({"x": torch.ones(4)}))) as good,
        zipfile.ZipFile(out, "w") as bad,
    ):
        for name in good.namelist():
            if name.endswith("data/0"):
                bad.writestr(name, bytes(size), zipfile.ZIP_DEFLATED)
            else:
                bad.writestr(name, good.read(name))
    return out.getvalue()


class TestRestores:
    STATE: dict[str, Any] = {"x": torch.ones(4), "n": 3}  # noqa: RUF012

    def test_torch_of_deflated_members(self, tmp_path: Path) -> None:
        target = save("torch", claimed(tmp_path / "c"), 1, self.STATE)
        plant(target, "rank-0000.pt", bomb := of_deflated_members(160 << 20))
        assert len(bomb) < 200_000
        assert "is compressed" in read_back("torch", target, self.STATE)

    def test_torch_of_another_state(self, tmp_path: Path) -> None:
        target = save("torch", claimed(tmp_path / "c"), 1, self.STATE)
        for other in ({"x": torch.ones(5), "n": 3}, {"x": torch.ones(4), "n": 3, "more": 1}, 5):
            plant(target, "rank-0000.pt", archived(other))
            assert "corrupt" in read_back("torch", target, self.STATE)

    def test_torch_of_less_than_it_says(self, tmp_path: Path) -> None:
        target = save("torch", claimed(tmp_path / "c"), 1, self.STATE)
        good = (folder_of(target) / "rank-0000.pt").read_bytes()
        larger = good.replace(b"K\x04tq", b"K\xfftq", 1)  # the tensor's elements
        assert larger != good
        by_the_storage = CheckpointRoot.open(f"throttled+{tmp_path}/c?bandwidth=1GB").step(1)
        for wrong in (b"", good[:22], good[: len(good) // 2], good[:-1], larger):
            plant(target, "rank-0000.pt", wrong)
            assert "corrupt" in read_back("torch", by_the_storage, self.STATE)

    def test_dcp_of_metadata_that_the_manifest_does_not_vouch_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = save("dcp", claimed(tmp_path / "c"), 1, self.STATE)
        monkeypatch.chdir(tmp_path)
        file = folder_of(target) / ".metadata"
        good, command = file.read_bytes(), pickle.dumps(Reduced(os.mkdir, "made"))
        file.write_bytes(command.ljust(len(good), b"\0"))
        assert "differs from what was saved" in read_back("dcp", target, self.STATE)
        assert not Path("made").exists()

    @pytest.mark.parametrize("leaf", ["rank-0000/x", "rank-0000/n"])
    def test_dcp_of_deflated_members(self, tmp_path: Path, leaf: str) -> None:
        target = save("dcp", claimed(tmp_path / "c"), 1, self.STATE)
        folder = folder_of(target)
        found = pickle.loads((folder / ".metadata").read_bytes())
        data, bomb = (folder / "__0_0.distcp").read_bytes(), of_deflated_members(160 << 20)
        for index, place in found.storage_data.items():
            if index.fqn == leaf:
                place.offset, place.length = len(data), len(bomb)
        plant(target, "__0_0.distcp", data + bomb)
        plant(target, ".metadata", pickle.dumps(found))
        assert "is compressed" in read_back("dcp", target, self.STATE)

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda p: setattr(p, "relative_path", "rank-0000.json"), "not in the manifest"),
            (lambda p: setattr(p, "relative_path", "../../secret"), "not in the manifest"),
            (lambda p: setattr(p, "offset", 1 << 40), "beyond the end"),
            (lambda p: setattr(p, "length", -5), "before the beginning"),
        ],
    )
    def test_dcp_of_places_elsewhere(
        self, tmp_path: Path, change: Callable[[Any], None], why: str
    ) -> None:
        target = save("dcp", claimed(tmp_path / "c"), 1, self.STATE)
        folder = folder_of(target)
        found = pickle.loads((folder / ".metadata").read_bytes())
        change(next(iter(found.storage_data.values())))
        plant(target, ".metadata", pickle.dumps(found))
        assert why in read_back("dcp", target, self.STATE)

    def test_dcp_of_a_class_that_is_changed(self, tmp_path: Path) -> None:
        target = save("dcp", claimed(tmp_path / "c"), 1, self.STATE)
        plant(target, ".metadata", SLOTS)
        before = dict(vars(pathlib.PosixPath))
        with pytest.raises(CorruptCheckpointError, match="nothing was executed"):
            restore("dcp", target, blank(self.STATE))
        assert dict(vars(pathlib.PosixPath)) == before

    @pytest.mark.parametrize("writer", ["safetensors", "stream"])
    def test_headers_have_a_bound(self, tmp_path: Path, writer: str) -> None:
        target = save(writer, claimed(tmp_path / "c"), 1, self.STATE)
        name = {"safetensors": "rank-0000.safetensors", "stream": "rank-0000.tensors"}[writer]
        text = b" " * (MIN_HEADER_LIMIT + 8)
        if writer == "safetensors":
            data = len(text).to_bytes(8, "little") + text
        else:
            digest = xxhash.xxh3_64_digest(text)
            data = b"IOBCKPT1" + len(text).to_bytes(8, "little") + digest + text
        plant(target, name, data)
        assert "does not begin with a valid header" in read_back(writer, target, self.STATE)
