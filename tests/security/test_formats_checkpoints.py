"""Checkpoints of others run no code, change nothing in the process, and take little memory."""

from __future__ import annotations

import io
import json
import os
import pathlib
import pickle
import pickletools
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint import filesystem as library
from torch.distributed.checkpoint import metadata

from iobench.checkpoint import dcp_metadata
from iobench.checkpoint.archive import described
from iobench.checkpoint.catalog import CheckpointRoot, CheckpointTarget
from iobench.checkpoint.described import Described, flat
from iobench.checkpoint.leaves import kind, leaves
from iobench.checkpoint.pickles import Grammar, Refused, interpret
from iobench.errors import CorruptCheckpointError, IobenchError
from iobench.limits import MIN_HEADER_LIMIT
from tests.checkpoints import blank, make_state, restore, same, save
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


def fully(data: bytes, size: int | None = None) -> Any:
    return described(lambda begin, end: data[begin:end], size or len(data), ["x"])


def archive(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


class TestMetadata:
    def test_of_earlier_versions_is_read(self) -> None:
        found, truth = dcp_metadata.read(GOLDEN), pickle.loads(GOLDEN)
        assert found.state_dict_metadata == truth.state_dict_metadata
        assert found.storage_data == truth.storage_data
        assert found.planner_data == truth.planner_data
        assert found.version == truth.version

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_of_any_protocol_is_read(self, protocol: int) -> None:
        truth = pickle.loads(GOLDEN)
        assert dcp_metadata.read(pickle.dumps(truth, protocol)).storage_data == truth.storage_data

    def test_no_class_gets_an_attribute(self) -> None:
        before = dict(vars(pathlib.PosixPath))
        with pytest.raises(Refused):
            dcp_metadata.read(SLOTS)
        assert dict(vars(pathlib.PosixPath)) == before

    @pytest.mark.parametrize(
        "made",
        [
            Reduced(os.system, "false"),
            Reduced(os.getenv, "HOME"),
            Reduced(getattr, metadata.Metadata, "__init__"),
            Reduced(getattr, metadata._MEM_FORMAT_ENCODING, "__reduce_ex__"),
            Reduced(setattr, metadata.Metadata, "version", "x"),
            Reduced(eval, "1"),
            Reduced(bytearray, 8 << 30),
            Reduced(bytes, 8 << 30),
            Reduced(torch.empty, 8 << 30),
            Reduced(pathlib.PosixPath, Reduced(os.getcwd)),
            Reduced(torch.Size, (Reduced(os.getpid),)),
            Reduced(open, "/etc/hostname"),
            torch.ones(3),
            pathlib.PosixPath,
            metadata.Metadata,
        ],
        ids=[
            *("system", "getenv", "init", "reduce_ex", "setattr", "eval", "bytearray", "bytes"),
            *("empty", "path", "size", "open", "tensor", "class-of-torch", "class-of-metadata"),
        ],
    )
    def test_nothing_else_is_made(self, made: Any) -> None:
        for value in (made, metadata.Metadata({}, None, {}, made, None), {"a": made}):
            data = pickle.dumps(value)
            ended = in_child(lambda data=data: refused(dcp_metadata.read, data))
            assert ended.value
            assert ended.extra_bytes < LITTLE

    @pytest.mark.parametrize(
        "wrong",
        [
            metadata.Metadata({"a": "b"}, None, {}, None, None),  # type: ignore[dict-item]
            metadata.Metadata({}, {"a": ((((), ()),),)}, {}, None, None),
            metadata.Metadata({}, None, {"a": "b"}, None, None),
            metadata.Metadata({}, None, {metadata.MetadataIndex("a"): "b"}, None, None),
            metadata.Metadata(
                {}, None, {metadata.MetadataIndex("a"): library._StorageInfo("f", -1, 5)}
            ),
            metadata.Metadata(
                {}, None, {metadata.MetadataIndex("a"): library._StorageInfo("f", 0, 5, ("zstd",))}
            ),
            metadata.Metadata({}, None, {}, metadata.StorageMeta(modules=[1])),  # type: ignore
            metadata.Metadata({}, None, None),
            {},
            [1],
        ],
        ids=str,
    )
    def test_fields_hold_what_their_names_say(self, wrong: Any) -> None:
        assert refused(dcp_metadata.read, pickle.dumps(wrong))

    def test_every_instruction_that_is_not_needed_is_refused(self) -> None:
        used = {op.code for op, _, _ in pickletools.genops(GOLDEN)}
        for opcode in pickletools.opcodes:
            if opcode.code in used or opcode.name == "BINPERSID":
                continue
            data = GOLDEN[:11] + opcode.code.encode("latin-1") + b"\x01" * 9 + GOLDEN[11:]
            assert refused(dcp_metadata.read, data), opcode.name

    @settings(max_examples=150)
    @given(changes=st.lists(st.tuples(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))))
    def test_any_damage_is_an_error_or_metadata(self, changes: list[tuple[int, int]]) -> None:
        data = bytearray(GOLDEN)
        for place, byte in changes:
            data[place] = byte
        try:
            found = dcp_metadata.read(bytes(data))
        except (Refused, ValueError):
            return
        assert isinstance(found, metadata.Metadata)
        assert all(type(index.fqn) is str for index in found.storage_data)


def refused(read: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        read(data)
    except (Refused, ValueError) as error:
        return "\n" not in str(error)
    return False


class TestPickles:
    """Of the interpreter itself."""

    def test_a_billion_laughs_stay_few(self) -> None:
        """Tuples of one another: a tree of 2^60 leaves, and a few hundred bytes."""
        laughs = b"X\x02\x00\x00\x00hoq\x00" + b"".join(
            b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60)
        )
        assert len(interpret(b"\x80\x02(" + laughs + b"t.", Grammar())) == 61
        as_a_key = b"\x80\x02}(" + laughs[:-2] + b"Nu."
        for data in (b"\x80\x02(" + laughs + b"t.", as_a_key):
            assert refused(dcp_metadata.read, data)

    @pytest.mark.parametrize("empty", [b"}", b"]"])
    def test_a_list_or_dict_has_one_place(self, empty: bytes) -> None:
        data = b"\x80\x02]q\x00" + empty + b"q\x01h\x01\x86a."
        with pytest.raises(Refused, match="used twice"):
            interpret(data, Grammar())

    @pytest.mark.parametrize(
        "data",
        [
            b"\x80\x02" + b"(" * 100_000 + b".",
            b"\x80\x02]" + b"(]" * 100_000 + b"e" * 100_000 + b".",
        ],
    )
    def test_depth_has_a_bound(self, data: bytes) -> None:
        with pytest.raises(ValueError, match="nested more than"):
            interpret(data, Grammar())

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x80\x02",
            b"\x80\x09N.",
            b"\x80\x02NN.",
            b"\x80\x02.",
            b"\x80\x02h\x00.",
            b"\x80\x02X\xff\xff\xff\xffabc.",
            b"\x80\x02\x8a\xff\x01.",
            b"\x80\x02cnothing",
            b"\x80\x02X\x01\x00\x00\x00\xff.",
            b"\x80\x02(N.",
            b"\x80\x02}(Nu.",
            b"\x80\x02Nb.",
            b"\x80\x02NR.",
            b"\x80\x02N\x81.",
            b"\x80\x02Ne.",
            b"\x80\x02NQ.",
            b"\x80\x02}NNs.",
        ],
    )
    def test_damage(self, data: bytes) -> None:
        with pytest.raises((ValueError, Refused)) as caught:
            interpret(data, Grammar())
        assert "\n" not in str(caught.value)

    @settings(max_examples=200)
    @given(data=st.binary(max_size=80))
    def test_any_bytes(self, data: bytes) -> None:
        try:
            interpret(b"\x80\x02" + data, Grammar())
        except (Refused, ValueError):
            return


class TestArchives:
    def test_every_kind_of_leaf_is_described(self) -> None:
        state = make_state(large=300) | {
            "parameter": torch.nn.Parameter(torch.ones(3)),
            "float8": torch.ones(4).to(torch.float8_e4m3fn),
            "unsigned": torch.ones(4).to(torch.uint16),
            "view": torch.ones(10)[3:5],
            "complex": torch.ones(2, dtype=torch.complex64),
            "large": 2**70,
        }
        assert flat(fully(archive(state))) == {n: kind(leaf) for n, leaf in leaves(state).items()}

    @pytest.mark.parametrize("value", [7, -1, 2.5, "text", True])
    def test_plain_values(self, value: object) -> None:
        assert fully(archive(value)) == value

    def test_more_members_than_a_zip_file_of_old_has_numbers_for(self) -> None:
        state = {f"t{n}": torch.ones(1) for n in range(70_000 // 16)}
        assert len(flat(fully(archive(state)))) == len(state)

    @pytest.mark.parametrize(
        "made",
        [
            Reduced(os.system, "false"),
            Reduced(bytearray, 8 << 30),
            Reduced(torch.FloatStorage, 8 << 30),
            Reduced(torch.UntypedStorage, 8 << 30),
            Reduced(set, [1]),
            Reduced(complex, 1, 2),
            torch.ones(3).to_sparse(),
            torch.empty(3, device="meta"),
            b"bytes",
            [torch.ones(1)],
            (1, 2),
            None,
        ],
        ids=lambda made: str(getattr(made, "reduced", type(made).__name__)),
    )
    def test_nothing_but_tensors_and_values(self, made: Any) -> None:
        data = archive({"x": made})
        ended = in_child(lambda: refused(lambda d: flat(fully(d)), data))
        assert ended.value
        assert ended.extra_bytes < LITTLE

    def test_a_tensor_lies_within_its_memory(self) -> None:
        good = archive({"x": torch.arange(6.0).reshape(2, 3)})
        assert fully(good) == {"x": Described(torch.float32, (2, 3))}
        for old, new in (
            (b"K\x02K\x03\x86", b"K\x02K\x07\x86"),  # its shape
            (b"K\x03K\x01\x86", b"K\xffK\x01\x86"),  # its strides
            (b"QK\x00(", b"QK\x09("),  # where it begins
            (b"K\x06t", b"K\x07t"),  # elements of its storage
        ):
            if old in good:
                assert refused(fully, good.replace(old, new))
        assert b"K\x02K\x03\x86" in good

    @pytest.mark.parametrize("member", ["x/data.pkl", "x/data/0", "x/more"])
    def test_no_member_is_compressed(self, member: str) -> None:
        out = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(archive(torch.ones(1000)))) as good,
            zipfile.ZipFile(out, "w") as bad,
        ):
            names = {f"x/{n.partition('/')[2]}": good.read(n) for n in good.namelist()}
            for name, content in (names | {"x/more": bytes(1000)}).items():
                how = zipfile.ZIP_DEFLATED if name == member else zipfile.ZIP_STORED
                bad.writestr(name, content, how)
        with pytest.raises(ValueError, match=r"'.*' is compressed"):
            fully(out.getvalue())

    def test_a_name_comes_once_and_programs_are_refused(self) -> None:
        for name, why in (("x/data.pkl", "two members"), ("x/constants.pkl", "TorchScript")):
            out = io.BytesIO()
            with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as bad:
                warnings.simplefilter("ignore")  # zipfile's own, of a name that comes twice
                bad.writestr("x/data.pkl", b"\x80\x02N.")
                bad.writestr(name, b"\x80\x02N.")
            with pytest.raises((ValueError, Refused), match=why):
                fully(out.getvalue())

    def test_a_directory_of_more_than_there_is(self) -> None:
        good = archive(torch.ones(10))
        for end in (
            struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 60_000, 60_000, 46, 0, 0),
            struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 2**32 - 2, 0, 0),
            struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 46, 2**32 - 2, 0),
            struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0, 9),
        ):
            with pytest.raises(ValueError):
                fully(good[:-22] + end)
        for cut in (0, 10, 22, len(good) // 2, len(good) - 1):
            with pytest.raises(ValueError):
                fully(good[:cut])

    @settings(max_examples=150)
    @given(data=st.data())
    def test_any_damage(self, data: Any) -> None:
        good = archive({"x": torch.arange(6.0), "n": 5})
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        try:
            fully(bytes(changed))
        except (Refused, ValueError):
            return


def claimed(path: Path) -> CheckpointRoot:
    root = CheckpointRoot.open(str(path))
    root.claim()
    return root


def plant(target: CheckpointTarget, name: str, content: bytes) -> None:
    """Another file in the place of one of the checkpoint's, with a manifest that agrees."""
    import xxhash

    folder = target.path()
    assert folder is not None
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
        zipfile.ZipFile(io.BytesIO(archive({"x": torch.ones(4)}))) as good,
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
        plant(target, "rank-0000.pt", bomb := of_deflated_members(256 << 20))
        assert len(bomb) < 300_000
        assert "is compressed" in read_back("torch", target, self.STATE)

    def test_torch_of_another_state(self, tmp_path: Path) -> None:
        target = save("torch", claimed(tmp_path / "c"), 1, self.STATE)
        for other in ({"x": torch.ones(5), "n": 3}, {"x": torch.ones(4), "n": 3, "more": 1}, 5):
            plant(target, "rank-0000.pt", archive(other))
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
        folder = target.path()
        assert folder is not None
        found = pickle.loads((folder / ".metadata").read_bytes())
        data, bomb = (folder / "__0_0.distcp").read_bytes(), of_deflated_members(256 << 20)
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
        folder = target.path()
        assert folder is not None
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

    @pytest.mark.parametrize("writer", ["torch", "dcp", "safetensors", "stream"])
    def test_any_byte_may_change(self, tmp_path: Path, writer: str) -> None:
        """The state is right, or there is one error; also of files that no checksum covers."""
        torch.set_num_threads(1)
        state = make_state(large=20)
        target = save(writer, claimed(tmp_path / "c"), 1, state)
        folder = target.path()
        assert folder is not None
        files = [path for path in folder.iterdir() if path.suffix != ".json"]
        random = zlib.crc32(writer.encode())
        errors = 0
        for path in files:
            good = path.read_bytes()
            for turn in range(25):
                random = zlib.crc32(random.to_bytes(4, "little"), turn)
                bad = bytearray(good)
                place = random % len(bad) if turn % 2 else (random % 4000) % len(bad)
                bad[place] ^= 1 << random % 8
                path.write_bytes(bad)
                restored = blank(state)
                try:
                    restore(writer, target, restored)
                except IobenchError as error:
                    errors += "\n" not in str(error)
                else:
                    assert same(restored, state)
            path.write_bytes(good)
        assert errors
