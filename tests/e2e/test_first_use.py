"""What a new user meets first: data of one's own, labels beside samples, tables, lists."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from iobench.cli.main import main

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


def test_a_folder_of_files_is_sent_to_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(4):
        Path(f"photos/{number}.bin").write_bytes(bytes([number]) * 3000)
    assert main(["run", "demo", "--data", "photos"]) == 1
    assert "iobench scan photos" in re.sub(r"\S+/photos", "photos", capsys.readouterr().err)
    assert main(["scan", "photos", "--save", "mine.yaml"]) == 0
    capsys.readouterr()
    assert main(["run", "demo", "--data", "mine.yaml"]) == 1
    assert "mine.manifest" in capsys.readouterr().err
    Path("other.yaml").write_text("{}")
    assert main(["run", "demo", "--data", "other.yaml"]) == 1
    assert re.search(r"iobench generate \S*other\.yaml --to", capsys.readouterr().err)


@pytest.mark.parametrize("alone", [False, True])
def test_labels_in_hdf5_are_no_samples(
    tmp_path: Path, alone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "h5"
    folder.mkdir()
    with h5py.File(folder / "x.h5", "w") as file:
        if not alone:
            for number in range(7):
                file.create_dataset(f"images/{number}", data=np.arange(900, dtype=np.uint8))
        file.create_dataset("labels", data=np.arange(7 * 9, dtype=np.int64).reshape(7, 9))
    assert main(["scan", str(folder), "--save", str(tmp_path / "s.yaml")]) == 0
    told = capsys.readouterr().out
    assert "7 samples in 1 shard" in told
    assert ("labels" in told.partition("note:")[2]) == (not alone)


def test_a_bare_list_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    from iobench.cli.list import KINDS

    assert main(["list"]) == 0
    told = capsys.readouterr().out
    assert [line[:-1] for line in told.splitlines() if line.endswith(":")] == list(KINDS)
    assert "iobench list instances" in told


def test_one_is_not_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "d")
    assert main(["generate", "demo", "--to", place, "--samples", "1", "--workers", "1"]) == 0
    assert main(["verify", place, "--workers", "1"]) == 0
    told = capsys.readouterr().out
    assert "1 samples" not in told
    assert "in 1 sample and 1 shard at" in told
