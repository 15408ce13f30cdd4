"""Checkpoints of others run no code, change nothing in the process, and take little memory."""

from __future__ import annotations

import io
import json
import os
import pathlib
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import filesystem as library
from torch.distributed.checkpoint import metadata

from iobench.checkpoint import archive, dcp_metadata
from iobench.checkpoint.catalog import CheckpointRoot, CheckpointTarget
from iobench.errors import CorruptCheckpointError
from iobench.limits import MIN_HEADER_LIMIT
from tests.checkpoints import blank, restore, save
from tests.children import in_child

TESTS = Path(__file__).parent.parent
GOLDEN = next((TESTS / "golden").glob("0.1.0/checkpoints/dcp/step-*/.metadata")).read_bytes()
SLOTS = (TESTS / "corpus/dcp/slots.metadata").read_bytes()
LITTLE = 100 << 20
"""Bytes that no refusal needs."""


class Reduced:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def looked_at(data: bytes) -> None:
    archive.check(lambda begin, end: data[begin:end], len(data), ["x"])


def archived(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def refused(read: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        read(data)
    except ValueError as error:
        return "\n" not in str(error)
    return False


class TestMetadata:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_of_any_protocol_is_read(self, protocol: int) -> None:
        truth = pickle.loads(GOLDEN)
        found = dcp_metadata.read(pickle.dumps(truth, protocol))
        assert found.storage_data == truth.storage_data
        assert found.state_dict_metadata.keys() == truth.state_dict_metadata.keys()
        for name, leaf in truth.state_dict_metadata.items():
            same_kind = found.state_dict_metadata[name]
            assert type(same_kind) is type(leaf)
            if isinstance(leaf, metadata.TensorStorageMetadata):
                assert (same_kind.size, same_kind.chunks) == (leaf.size, leaf.chunks)

    def test_no_class_gets_an_attribute(self) -> None:
        before = dict(vars(pathlib.PosixPath))
        assert refused(dcp_metadata.read, SLOTS)
        assert dict(vars(pathlib.PosixPath)) == before

    @pytest.mark.parametrize(
        "made",
        [
            Reduced(os.mkdir, "made"),
            Reduced(eval, "open('made', 'w')"),
            Reduced(setattr, metadata.Metadata, "version", "x"),
            Reduced(bytearray, 8 << 30),
            Reduced(torch.empty, 8 << 30),
            Reduced(pathlib.PosixPath, Reduced(os.mkdir, "made")),
            torch.ones(3),
            pathlib.PosixPath,
            metadata.Metadata,
        ],
        ids=[
            "mkdir",
            "eval",
            "setattr",
            "bytearray",
            "empty",
            "path",
            "tensor",
            "class",
            "torch's",
        ],
    )
    def test_nothing_is_executed_and_nothing_else_is_made(
        self, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        whole = pickle.dumps(metadata.Metadata({}, None, {}, made, None))
        part = pickle.dumps(metadata.Metadata({"a": made}, None, {}))
        ended = in_child(
            lambda: [refused(dcp_metadata.read, d) for d in (pickle.dumps(made), part)]
        )
        assert ended.value == [True, True]
        assert ended.extra_bytes < LITTLE
        with suppress(ValueError):  # a field that no restore needs
            dcp_metadata.read(whole)
        assert list(tmp_path.iterdir()) == []
        assert metadata.Metadata({}).version is None

    @pytest.mark.parametrize(
        "wrong",
        [
            metadata.Metadata({"a": "b"}, None, {}),  # type: ignore[dict-item]
            metadata.Metadata({}, None, {"a": "b"}),
            metadata.Metadata({}, None, {metadata.MetadataIndex("a"): "b"}),
            metadata.Metadata(
                {}, None, {metadata.MetadataIndex("a"): library._StorageInfo("f", -1, 5)}
            ),
            metadata.Metadata(
                {}, None, {metadata.MetadataIndex("a"): library._StorageInfo("f", 0, 5, ("zstd",))}
            ),
            metadata.Metadata({}, None, None),
            {},
            [1],
        ],
        ids=str,
    )
    def test_fields_hold_what_their_names_say(self, wrong: Any) -> None:
        assert refused(dcp_metadata.read, pickle.dumps(wrong))

    @settings(max_examples=40)
    @given(changes=st.lists(st.tuples(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))))
    def test_any_damage_is_an_error_or_metadata(self, changes: list[tuple[int, int]]) -> None:
        data = bytearray(GOLDEN)
        for place, byte in changes:
            data[place] = byte
        try:
            found = dcp_metadata.read(bytes(data))
        except ValueError:
            return
        assert all(type(index.fqn) is str for index in found.storage_data)


class TestPickles:
    """Of those that are read without being run."""

    def test_tuples_of_tuples_are_no_keys(self) -> None:
        """A tree of 2^60 leaves in a few hundred bytes would take forever to hash."""
        laughs = b"X\x02\x00\x00\x00hoq\x00" + b"".join(
            b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60)
        )
        for key in (b"\x80\x02}(" + laughs[:-2] + b"Nu.", b"\x80\x02}" + laughs[:-2] + b"Ns."):
            assert refused(archive.unpickled, key)
        as_a_set = b"\x80\x04\x8f(" + laughs[:-2] + b"\x90."
        assert refused(archive.unpickled, as_a_set)

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
        ended = in_child(lambda: refused(archive.unpickled, data))
        assert ended.value
        assert ended.extra_bytes < LITTLE

    @settings(max_examples=60)
    @given(data=st.binary(max_size=80))
    def test_any_bytes(self, data: bytes) -> None:
        with suppress(ValueError):
            archive.unpickled(b"\x80\x02" + data)


class TestArchives:
    def test_more_members_than_a_zip_file_of_old_has_numbers_for(self) -> None:
        looked_at(archived({f"t{n}": torch.ones(1) for n in range(70_000 // 16)}))

    @pytest.mark.parametrize("member", ["x/data.pkl", "x/data/0", "x/more"])
    def test_no_member_is_compressed(self, member: str) -> None:
        out = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(archived(torch.ones(1000)))) as good,
            zipfile.ZipFile(out, "w") as bad,
        ):
            names = {f"x/{n.partition('/')[2]}": good.read(n) for n in good.namelist()}
            for name, content in (names | {"x/more": bytes(1000)}).items():
                how = zipfile.ZIP_DEFLATED if name == member else zipfile.ZIP_STORED
                bad.writestr(name, content, how)
        with pytest.raises(ValueError, match=r"'.*' is compressed"):
            looked_at(out.getvalue())

    def test_a_name_comes_once(self) -> None:
        out = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as bad:
            warnings.simplefilter("ignore")  # zipfile's own, of a name that comes twice
            for _ in range(2):
                bad.writestr("x/data.pkl", b"\x80\x02N.")
        assert refused(looked_at, out.getvalue())

    def test_a_directory_of_more_than_there_is(self) -> None:
        good = archived(torch.ones(10))
        for end in (
            struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 2**32 - 2, 0, 0),
            struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 46, 2**32 - 2, 0),
        ):
            without_wide = good[:-42]  # the locator of the record of 64 bits
            assert refused(looked_at, without_wide + end)
        for cut in (0, 10, 22, len(good) // 2, len(good) - 1):
            assert refused(looked_at, good[:cut])

    @settings(max_examples=40)
    @given(data=st.data())
    def test_any_damage(self, data: Any) -> None:
        good = archived({"x": torch.arange(6.0), "n": 5})
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        with suppress(ValueError):
            looked_at(bytes(changed))


def claimed(path: Path) -> CheckpointRoot:
    root = CheckpointRoot.open(str(path))
    root.claim()
    return root


def folder_of(target: CheckpointTarget) -> Path:
    folder = target.path()
    assert folder is not None
    return folder


def plant(target: CheckpointTarget, name: str, content: bytes) -> None:
    """Another file in the place of one of the checkpoint's, with a manifest that agrees."""
    import xxhash

    folder = folder_of(target)
    (folder / name).write_bytes(content)
    part = json.loads((folder / "rank-0000.json").read_text())
    part["files"][name] = len(content)
    (folder / "rank-0000.json").write_text(json.dumps(part))
    manifest = json.loads((folder / "checkpoint.json").read_text())
    digest = xxhash.xxh3_64_hexdigest((folder / "rank-0000.json").read_bytes())
    manifest["parts"][0] |= {"files": part["files"], "xxh3": digest}
    (folder / "checkpoint.json").write_text(json.dumps(manifest))


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

    def test_torch_of_the_old_kinds(self, tmp_path: Path) -> None:
        target = save("torch", claimed(tmp_path / "c"), 1, self.STATE)
        old = io.BytesIO()
        torch.save(self.STATE, old, _use_new_zipfile_serialization=False)
        for data in (old.getvalue(), pickle.dumps(self.STATE)):
            plant(target, "rank-0000.pt", data)
            assert "torch.save" in read_back("torch", target, self.STATE)

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
            (lambda p: setattr(p, "length", -5), "not a whole number"),
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
            import xxhash

            digest = xxhash.xxh3_64_digest(text)
            data = b"IOBCKPT1" + len(text).to_bytes(8, "little") + digest + text
        plant(target, name, data)
        assert "does not begin with a valid header" in read_back(writer, target, self.STATE)
