"""Targets that are refused, and why the message helps."""

from __future__ import annotations

import codecs
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import StorageError, TargetRefusedError
from iobench.base.safety import check_target, remove_exactly
from tests.processes import mounted

SYSTEM = "/ /etc /usr/local/x /home /home/user /tmp /proc/self /dev /dev/null /mnt ~ /root"


@pytest.mark.parametrize("target", SYSTEM.split())
def test_refused(target: str) -> None:
    with pytest.raises(TargetRefusedError) as caught:
        check_target(target)
    assert caught.value.remedy


def test_mount_roots_are_refused() -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in {m for m in mounts if Path(m).is_dir()}:
        with pytest.raises(TargetRefusedError):
            check_target(mount)


def test_new_and_empty_directories_are_fine(tmp_path: Path) -> None:
    assert check_target(tmp_path / "a" / "b") == tmp_path.resolve() / "a" / "b"
    assert check_target(tmp_path) == tmp_path.resolve()
    assert not (tmp_path / "a").exists()
    assert check_target("/dev/shm/iobench-test-of-a-name") == Path(
        "/dev/shm/iobench-test-of-a-name"
    )


def test_links_are_seen_through(tmp_path: Path) -> None:
    (tmp_path / "trap").symlink_to("/etc")
    with pytest.raises(TargetRefusedError, match="/etc"):
        check_target(tmp_path / "trap")
    with pytest.raises(TargetRefusedError, match="/etc"):
        check_target(tmp_path / "trap" / "below")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for path in ("nowhere", "nowhere/below"):
        with pytest.raises(TargetRefusedError, match="nowhere is a symbolic link"):
            check_target(tmp_path / path)
    (tmp_path / "real").mkdir()
    (tmp_path / "fine").symlink_to(tmp_path / "real")
    assert check_target(tmp_path / "fine") == tmp_path.resolve() / "real"


def test_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TargetRefusedError, match="not a directory"):
            check_target(path)


def test_what_cannot_be_read_is_not_left_without_its_marker() -> None:
    """A folder that can't be listed stays, so the marker must stay, too: else nothing could ever
    clean the rest.
    """
    with tempfile.TemporaryDirectory() as place:  # where others may go, unlike pytest's own
        root = Path(place)
        (root / "closed").mkdir()
        (root / "closed/data").write_bytes(b"x")
        (root / "marker").write_bytes(b"x")
        for path in (root, root / "closed"):
            os.chown(path, 65534 if os.geteuid() == 0 else -1, -1)
        (root / "closed").chmod(0)
        before = os.geteuid()
        codecs.lookup("ascii")  # which nobody may not be able to import
        if before == 0:
            os.seteuid(65534)  # nobody's rights: root may read everything
        try:
            with pytest.raises(StorageError, match=r"cannot remove .*closed"):
                remove_exactly(root, lambda name: True, last=("marker",), folders=lambda name: True)
            assert (root / "marker").exists()
        finally:
            os.seteuid(before)
            (root / "closed").chmod(0o700)


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Files of ours in two folders, a marker, and the notes of somebody else in one of them."""
    root = tmp_path / "d"
    for name in ("marker", "header", "data/0/ours-1", "data/1/ours-2", "data/1/notes.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"1234")
    return root


def ours(name: str) -> bool:
    return name in ("marker", "header") or Path(name).name.startswith("ours-")


def folders(name: str) -> bool:
    return not name or name.startswith("data")


def test_what_is_not_ours_stays_and_is_named(dataset: Path) -> None:
    removal = remove_exactly(dataset, ours, last=("marker",), folders=folders, first=("header",))
    assert tree(dataset) == {"data", "data/1", "data/1/notes.txt"}
    assert (removal.files, removal.bytes) == (4, 16)
    assert removal.foreign == ["data/1/notes.txt"]
    (dataset / "data/1/notes.txt").unlink()
    removal = remove_exactly(dataset, ours, last=("marker",), folders=folders)
    assert (removal.files, removal.foreign) == (0, [])
    assert not dataset.exists()


def test_a_folder_that_is_not_ours_is_named_unless_its_contents_are(dataset: Path) -> None:
    (dataset / "empty").mkdir()
    (dataset / "theirs").mkdir()
    (dataset / "theirs/thesis").write_bytes(b"x")
    removal = remove_exactly(dataset, ours, last=("marker",), folders=folders)
    assert removal.foreign == ["data/1/notes.txt", "empty", "theirs/thesis"]
    assert {"empty", "theirs/thesis"} <= tree(dataset)


@pytest.mark.parametrize("kind", ["folder", "link", "nothing"])
def test_only_a_file_goes_first(dataset: Path, tmp_path: Path, kind: str) -> None:
    """What has the name of the file that says that all is complete, and is no file of ours."""
    (dataset / "header").unlink()
    other = tmp_path / "other"
    other.write_bytes(b"x")
    if kind == "folder":
        (dataset / "header").mkdir()
    elif kind == "link":
        (dataset / "header").symlink_to(other)
    removal = remove_exactly(dataset, ours, last=("marker",), folders=folders, first=("header",))
    assert removal.files == 3
    assert ("header" in removal.foreign) is (kind != "nothing")
    assert os.path.lexists(dataset / "header") is (kind != "nothing")
    assert other.read_bytes() == b"x"


def test_a_folder_that_somebody_uses_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file appears between the last look into the folder and its removal."""
    root = tmp_path / "d"
    root.mkdir()
    real = os.listdir

    def look(place: Any) -> list[str]:
        found = real(place)
        if place == root:
            (root / "new").write_bytes(b"x")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", look)
        removal = remove_exactly(root, ours, last=(), folders=folders)
    assert not removal.root_removed
    assert (root / "new").exists()


def test_a_root_on_another_file_system_is_left_alone(dataset: Path) -> None:
    place = dataset / "data/0"
    with mounted("-t", "tmpfs", "tmpfs", on=place):
        (place / "ours-9").write_bytes(b"theirs")
        removal = remove_exactly(place, ours, last=(), folders=lambda name: True, within=dataset)
        assert (removal.files, removal.foreign) == (0, ["."])
        assert (place / "ours-9").exists()
