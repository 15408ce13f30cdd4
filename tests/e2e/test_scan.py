"""Data of other writers: scanned, run, cloned, and bit for bit what it was before."""

from __future__ import annotations

import io
import json
import os
import resource
import struct
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from tfrecord import TFRecordWriter

from iobench import make_loader
from iobench.base.errors import DatasetError, TargetRefusedError, UsageError
from iobench.data.dataset import find_dataset, load_manifest
from iobench.data.scan.contents import classify
from iobench.data.scan.saving import save
from iobench.data.scan.scanner import scan
from iobench.storage import open_storage
from iobench.storage.base import Entry
from iobench.storage.local.storage import LocalStorage
from tests.datasets import tree
from tests.processes import completed, document, printed, refused

QUICK = (
    "--no-ablations --repeat 1 --calibration 0 --set batch_size=8 --set epochs=1 "
    "--set loader.workers=1 --set accelerator.step_time=1ms"
)


def photo(seed: int, side: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=80)
    return out.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """ImageNet's layout: a folder for each class, and what lies about in such folders."""
    root = tmp_path / "train"
    for number in range(40):
        folder = root / f"n{number % 4:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.JPEG").write_bytes(photo(number, 24 + number))
    (root / "labels.txt").write_text("a b c")
    (root / ".hidden").write_text("x")
    os.symlink("/etc/passwd", root / "link.JPEG")
    return root


@pytest.fixture
def hdf5(tmp_path: Path) -> Path:
    root = tmp_path / "cubes"
    root.mkdir()
    data = np.random.default_rng(0).integers(0, 9, (100, 2000))
    with h5py.File(root / "a.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(1, 2000), compression=1)
    return root


@pytest.fixture
def mds(tmp_path: Path) -> Path:
    """As mosaicml-streaming writes it: columns by name, and the lengths of those that vary."""
    root = tmp_path / "shards"
    root.mkdir()
    described = {
        "column_encodings": ["int", "jpeg"],
        "column_names": ["class", "image"],
        "column_sizes": [8, None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    told = json.dumps(described, sort_keys=True).encode()
    for shard in range(2):
        images = [photo(20 * shard + each, 24 + each) for each in range(20)]
        rows = [struct.pack("<Iq", len(each), 7) + each for each in images]
        ends = np.cumsum([4 + 4 * 21 + len(told), *map(len, rows)]).astype("<u4")
        whole = struct.pack("<I", 20) + ends.tobytes() + told + b"".join(rows)
        (root / f"shard.{shard:05d}.mds").write_bytes(whole)
    (root / "index.json").write_text("{}")
    return root


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("images", (40, 40, "files", "jpeg")),
        ("hdf5", (100, 1, "hdf5", "raw")),
        ("mds", (40, 2, "mds", "jpeg")),
    ],
)
def test_scanned_run_and_cloned_and_left_as_it_was(
    kind: str,
    expected: tuple[object, ...],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    root: Path = request.getfixturevalue(kind)
    before = tree(root)
    found = document(f"scan {root} --save mine.yaml --checksums")
    told = tuple(found[key] for key in ("samples", "shards", "format", "content"))
    assert told == expected
    mine = f"mine.manifest --origin {root}"
    printed(f"plan resnet50-h100 --data {mine}")
    doc = document(f"run resnet50-h100 --data {mine} {QUICK} --set reader.check=content")
    assert doc["validity"] == "valid"
    assert doc["job"]["repetitions"][0]["samples"] == found["samples"]
    assert doc["job"]["dataset"]["changed"] == []
    assert "ok" in printed(f"verify {mine}")
    printed("generate mine.yaml --to clone")
    assert "ok" in printed("verify clone")
    assert "(generated)" in printed(f"plan demo --data clone --set dataset={root.name}")
    theirs, clone = (load_manifest(tmp_path / name) for name in ("mine.manifest", "clone"))
    assert clone.sample_count == found["samples"]
    assert clone.header.sample_bytes == pytest.approx(theirs.header.sample_bytes, rel=0.1)
    if kind == "hdf5":
        stored = [each.samples["stored"].sum() for each in (clone, theirs)]
        assert stored[0] == pytest.approx(stored[1], rel=0.2)
    assert tree(root) == before


@pytest.mark.parametrize("cut", [3, 50, 200, 2000])
def test_a_damaged_mds_shard_is_named(mds: Path, cut: int) -> None:
    shard = mds / "shard.00001.mds"
    shard.write_bytes(shard.read_bytes()[:cut])
    with pytest.raises(DatasetError, match=r"shard\.00001\.mds"):
        scan(LocalStorage(mds), workers=0)


def test_compressed_mds_shards_are_told(tmp_path: Path) -> None:
    (tmp_path / "shard.00000.mds.zstd").write_bytes(b"packed")
    assert any("MDS" in note for note in scan(LocalStorage(tmp_path), workers=0).notes)


def test_verify_finds_a_sample_that_can_not_be_decoded(images: Path, tmp_path: Path) -> None:
    printed(f"scan {images} --save {tmp_path / 'mine.yaml'}")
    photo = images / "n00000001/21.JPEG"
    photo.write_bytes(b"\x89PNG".ljust(photo.stat().st_size, b"\0"))
    done = completed("verify", tmp_path / "mine.manifest", "--origin", images)
    assert done.returncode == 1
    assert "n00000001/21.JPEG: sample" in done.stdout
    assert "can't be decoded as jpeg" in done.stdout


def test_a_file_of_tokens_is_one_sample_and_the_scan_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(1000))
    report = scan(LocalStorage(tmp_path))
    assert report.manifest.sample_count == 1
    assert any("not divide it into tokens" in note for note in report.notes)


def test_samples_of_several_members_are_one_range(tmp_path: Path) -> None:
    root = tmp_path / "d"
    root.mkdir()
    with webdataset.TarWriter(str(root / "a.tar")) as sink:
        for number in range(5):
            sink.write({"__key__": f"{number}", "npy": np.arange(100 + number), "txt": "caption"})
    manifest = scan(LocalStorage(root)).manifest
    assert manifest.sample_count == 5
    whole = (root / "a.tar").read_bytes()
    for number in range(5):
        offset, size = (int(manifest.samples[name][number]) for name in ("offset", "stored"))
        assert b"caption" in whole[offset : offset + size]


@pytest.mark.parametrize("name", ["train.tfrecord-00000-of-00001", "train-00000-of-00001"])
def test_records_of_another_writer(tmp_path: Path, name: str) -> None:
    """The second name is that of ImageNet's records, which have no suffix."""
    root = tmp_path / "d"
    root.mkdir()
    writer = TFRecordWriter(str(root / name))
    for number in range(8):
        writer.write({"x": (bytes([number]) * (50 + number), "byte")})
    writer.close()
    (root / "dataset_info.json").write_text("{}")
    folder = save(scan(LocalStorage(root)), tmp_path / "x.yaml")
    loader = make_loader(
        folder, origin=str(root), batch_size=3, loader={"workers": 0, "transport": "tensor"}
    )
    samples: list[torch.Tensor] = [sample for batch in loader for sample in batch]
    assert len(samples) == 8
    assert {bytes(sample.numpy())[-1] for sample in samples} == set(range(8))


def test_parts_that_hold_no_records_are_samples(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"train-{number:05d}-of-00003").write_bytes(bytes(100 + number))
    manifest = scan(LocalStorage(tmp_path)).manifest
    assert (manifest.spec.format, manifest.sample_count) == ("files", 3)


def test_of_suffixes_that_are_equally_many_the_first_one_counts() -> None:
    """As of images that are named by numbers with dots between them, each with a suffix alone."""
    assert classify([Entry(f"1.2.840.{number}", 9) for number in range(50)]).suffix == ".0"


@pytest.mark.parametrize("url", ["{}", "throttled+file://{}?latency=1us", "local://{}"])
def test_nothing_is_saved_into_the_data_or_over_anything(
    images: Path, tmp_path: Path, url: str
) -> None:
    before = tree(images)
    report = scan(open_storage(url.format(images)))
    (tmp_path / "mine.yaml").write_text("precious")
    for place in (images / "x.yaml", images / "new" / "x.yaml", tmp_path / "mine.yaml"):
        with pytest.raises(TargetRefusedError):
            save(report, place)
    assert tree(images) == before
    assert (tmp_path / "mine.yaml").read_text() == "precious"
    assert not (tmp_path / "mine.manifest").exists()
    assert "+" not in report.manifest.header.origin  # wrappers are for who runs it
    saved, origin = str(save(report, tmp_path / "x.yaml")), report.manifest.header.origin
    assert find_dataset(saved, origin=origin)[1] == origin
    assert find_dataset(f"throttled+{saved}?latency=1us", origin=origin)[1] == (
        f"throttled+{origin}?latency=1us"
    )


def test_a_save_that_fails_leaves_nothing_in_the_way(images: Path, tmp_path: Path) -> None:
    report = scan(LocalStorage(images))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(UsageError, match=r"deep|x\."):
            save(report, tmp_path / "deep/x.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert save(report, tmp_path / "deep/x.yaml").is_dir()


def test_links_and_texts_beside_the_data_are_named(images: Path, tmp_path: Path) -> None:
    """Symbolic links are not followed, and a label beside each image is no sample."""
    assert any("links" in note and "link.JPEG" in note for note in scan(LocalStorage(images)).notes)
    mixed, links = tmp_path / "mixed", tmp_path / "links"
    for folder in (mixed, links):
        folder.mkdir()
    for number in range(3):
        (mixed / f"{number}.png").write_bytes(bytes(1000))
        (mixed / f"{number}.txt").write_bytes(b"1")
        (links / f"{number}.png").symlink_to(mixed / f"{number}.png")
    (mixed / "x.bmp").write_bytes(bytes(1000))
    report = scan(LocalStorage(mixed))
    assert report.manifest.sample_count == 4
    assert report.notes == ["each file is one sample: 3 .png, 1 .bmp"]
    with pytest.raises(DatasetError, match=r"no data; symbolic links.*: 3, e\.g\. 0\.png"):
        scan(LocalStorage(links))


def tar_header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    header = bytearray(512)
    header[: len(name)], header[124:136], header[156:157] = name, size, kind
    header[257:265] = b"ustar\x0000"
    header[148:156] = b"%06o\0 " % (sum(header) + 8 * 32)
    return bytes(header)


THREE = b"".join(
    tar_header(b"%d.bin" % number, b"%011o\0" % 512) + b"x" * 512 for number in range(3)
)
"""Members of a tar."""


@pytest.mark.parametrize(
    "size", [b"-0000001000\0", b"\xff" * 10 + b"\xfc\0"], ids=["-512", "-1024 b"]
)
def test_a_tar_that_leads_back_to_itself_ends(tmp_path: Path, size: bytes) -> None:
    """A member of a negative size ends where it begins, or before: a walk that believes it has no
    end.
    """
    member = tar_header(b"a.bin", b"%011o\0" % 512) + bytes(512)
    shard = member + tar_header(b"b.bin", size) + member + bytes(1024)
    (tmp_path / "a.tar").write_bytes(shard)
    with pytest.raises(DatasetError, match=r"a\.tar cannot be read"):
        scan(LocalStorage(tmp_path))


@pytest.mark.parametrize("damage", ["header", "cut", "large"])
def test_a_tar_whose_later_members_are_lost_is_named(tmp_path: Path, damage: str) -> None:
    """tarfile takes the first header that it can't read for the end: what follows must not be lost
    without a word.
    """
    shard = bytearray(THREE + bytes(1024))
    if damage == "header":
        shard[1024 + 3] ^= 1
    elif damage == "cut":
        del shard[2048 + 100 :]
    else:
        shard[1024:1024] = tar_header(b"x", b"%011o\0" % (2 << 20), b"x") + bytes(2 << 20)
    (tmp_path / "a.tar").write_bytes(shard)
    with pytest.raises(DatasetError, match=r"a\.tar cannot be read"):
        scan(LocalStorage(tmp_path))


def test_a_tar_without_an_end_is_whole_as_far_as_it_goes(tmp_path: Path) -> None:
    """Some writers leave the closing blocks out."""
    (tmp_path / "a.tar").write_bytes(THREE)
    assert scan(LocalStorage(tmp_path)).manifest.sample_count == 3


def test_hidden_members_of_a_tar_are_left_out(tmp_path: Path) -> None:
    """The tar of macOS puts one beside each file."""
    root = tmp_path / "d"
    root.mkdir()
    with tarfile.open(root / "a.tar", "w") as archive:
        for number in range(3):
            for name in (f"./._{number}.jpg", f"./{number}.jpg", f"./._{number}.cls"):
                content = b"hidden" if "._" in name else photo(number, 24)
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    manifest = scan(LocalStorage(root)).manifest
    assert (manifest.sample_count, manifest.spec.content) == (3, "jpeg")


def test_names_that_lead_out_of_the_archive_do_no_harm(tmp_path: Path) -> None:
    root = tmp_path / "d"
    root.mkdir()
    with tarfile.open(root / "a.tar", "w") as archive:
        for number in range(3):
            info = tarfile.TarInfo(f"../../evil{number}.bin")
            info.size = 100
            archive.addfile(info, io.BytesIO(bytes(100)))
    before = sorted(tmp_path.rglob("*"))
    assert scan(LocalStorage(root)).manifest.sample_count == 3
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["a.parquet", "a.h5", "a.lmdb", "a.tar", "a.tfrecord"])
def test_a_damaged_file_ends_a_scan_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_bytes(b"nothing of the kind" * 100)
    assert name in refused("scan d --save x.yaml", code=1, cwd=tmp_path)
    assert not (tmp_path / "x.yaml").exists()
