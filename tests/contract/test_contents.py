"""The contract of every registered content, and independent readers of what it builds."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from iobench.data.contents import CONTENTS
from iobench.data.contents.base import Content
from iobench.settings import dataset as schema_of_datasets
from iobench.testing.data import ContentContract, built, decoded

NAMES = sorted(CONTENTS.entries())


class TestContents(ContentContract):
    @pytest.fixture(params=NAMES)
    def content(self, request: pytest.FixtureRequest) -> Content:
        return CONTENTS.open(request.param)

    def test_a_sample_says_which_it_is(self, content: Content) -> None:
        data = built(content, 2000, seed=2**63 - 1, index=10**10)
        assert content.identify(memoryview(data)) == (2**63 - 1, 10**10)


class TestNpz:
    content = CONTENTS.open("npz")

    @pytest.mark.parametrize("ratio", [1.0, 1.3, 500.0])
    @pytest.mark.parametrize(
        "size",
        [
            content.min_bytes,
            4096,
            262_144,
            266_604,
            270_700,
            532_481,
            5_000_001,
        ],
    )
    def test_numpy_reads_it(self, size: int, ratio: float) -> None:
        data = built(self.content, size, seed=3, index=4, ratio=ratio)
        with np.load(io.BytesIO(data)) as arrays:  # checks the CRC on the way
            assert arrays.files == ["x"]
            assert arrays["x"].dtype == np.uint8
            assert arrays["x"].ndim == 1
            assert arrays["x"].tobytes() == decoded(self.content, data)

    def test_many_are_located_at_once_if_all_have_the_same_layout(self) -> None:
        """Whatever byte of one of them is another, no other place is told than ``locate`` tells."""
        size = 5000
        memory = bytearray(b"".join(built(self.content, size, index=each) for each in range(3)))
        starts = np.arange(3) * size
        begin, end = self.content.locate(memoryview(memory)[:size])
        assert self.content.locate_alike(memory, starts, size) == (begin, end)
        for place in (*range(begin), *range(end, size)):
            memory[size + place] ^= 1
            told = self.content.locate_alike(memory, starts, size)
            try:
                assert told in (None, self.content.locate(memoryview(memory)[size : 2 * size]))
            except ValueError:
                assert told is None
            memory[size + place] ^= 1

    def test_zip_tools_find_no_fault(self) -> None:
        with zipfile.ZipFile(io.BytesIO(built(self.content, 70_000))) as archive:
            assert archive.testzip() is None
            assert [info.compress_type for info in archive.infolist()] == [zipfile.ZIP_STORED]

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_foreign_files_are_read(self, save: Any) -> None:
        arrays = {
            "a": np.arange(30_000, dtype="<f4").reshape(100, 300),
            "b": np.arange(7, dtype=np.int16),
            "c": np.array(5),
        }
        file = io.BytesIO()
        save(file, **arrays)
        assert decoded(self.content, file.getvalue()) == b"".join(
            a.tobytes() for a in arrays.values()
        )

    def test_objects_are_never_unpickled(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (str(tmp_path / "executed"),)

        for each in ({"x": 1}, Bomb()):
            file = io.BytesIO()
            np.savez(file, a=np.array([each], dtype=object))
            with pytest.raises(ValueError, match="objects"):
                decoded(self.content, file.getvalue())
        assert not list(tmp_path.iterdir())

    def test_a_header_cannot_claim_memory(self) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, a=np.zeros(1000, dtype=np.uint8))
        with zipfile.ZipFile(file) as archive:
            member = archive.read("a.npy")
        forged = io.BytesIO()
        with zipfile.ZipFile(forged, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", member.replace(b"(1000,), }        ", b"(900000000000,), }"))
        with pytest.raises(ValueError, match="size"):
            decoded(self.content, forged.getvalue())

    def test_any_damaged_byte_of_deflated_arrays_is_found(self) -> None:
        """By the deflate stream or its CRC, while it is inflated."""
        file = io.BytesIO()
        np.savez_compressed(file, a=np.random.default_rng(0).integers(0, 9, 30_000, np.uint8))
        good = file.getvalue()
        room = memoryview(bytearray(30_000))
        for position in range(60, good.rindex(b"PK\x01\x02"), 37):
            bad = bytearray(good)
            bad[position] ^= 0x41
            with pytest.raises(ValueError):
                self.content.decode(memoryview(bad), room)

    def test_members_that_lie_upon_one_another_are_refused(self) -> None:
        """A directory of many names for one member: little that would become much."""
        file = io.BytesIO()
        np.savez_compressed(file, a=np.zeros(1_000_000, np.uint8))
        data = file.getvalue()
        start, end = data.rindex(b"PK\x01\x02"), data.rindex(b"PK\x05\x06")
        entries = data[start:end] * 50
        count = struct.pack("<HH", 50, 50)
        forged = (
            data[:start]
            + entries
            + data[end : end + 8]
            + count
            + struct.pack("<I", len(entries))
            + data[end + 16 :]
        )
        assert len(zipfile.ZipFile(io.BytesIO(forged)).infolist()) == 50
        with pytest.raises(ValueError, match=r"claims a size|verlapped"):
            decoded(CONTENTS.open("arrays"), forged)


class TestJpeg:
    content = CONTENTS.open("jpeg")

    @pytest.mark.parametrize("size", [1024, 1025, 1500, 9999, 60_000, 114_660, 322_957, 2_000_001])
    def test_decoders_read_it_at_its_exact_size(self, size: int) -> None:
        """The field's reference benchmark makes images of another size than asked for, and counts
        the asked-for one.
        """
        data = built(self.content, size, index=size)
        assert len(data) == size
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            width, height = image.size
            assert image.mode == "RGB"
        pixels = simplejpeg.decode_jpeg(data, strict=True)
        assert pixels.shape == (height, width, 3)
        assert decoded(self.content, data) == pixels.tobytes()

    def test_images_are_like_photographs_and_little_is_padding(self) -> None:
        size = 114_660
        data = built(self.content, size)
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        assert 0.4 < size / (height * width) < 0.8
        padding = int.from_bytes(data[4:6], "big")
        assert padding < 0.08 * size

    def test_a_header_cannot_claim_memory(self) -> None:
        flat = io.BytesIO()
        Image.new("L", (4000, 3000), 128).save(flat, "JPEG", quality=20, optimize=True)
        assert len(decoded(self.content, flat.getvalue())) == 36_000_000  # as small as one can be
        data = bytearray(built(self.content, 5000))
        start = data.rindex(b"\xff\xc0") + 5
        data[start : start + 4] = struct.pack(">HH", 65_000, 65_000)
        with pytest.raises(ValueError, match="65000"):
            self.content.decoded_bytes(memoryview(data))

    def test_a_foreign_jpeg_is_read(self) -> None:
        file = io.BytesIO()
        Image.new("RGB", (50, 30), (200, 10, 10)).save(file, "JPEG", progressive=True)
        assert len(decoded(self.content, file.getvalue())) == 50 * 30 * 3
        assert self.content.identify(memoryview(file.getvalue())) is None


def test_the_schema_knows_the_names_of_all_contents() -> None:
    assert {*schema_of_datasets.CONTENTS} == {*NAMES}
