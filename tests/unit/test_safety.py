"""Targets that are refused, and why the message helps."""

from __future__ import annotations

import codecs
import os
import tempfile
from pathlib import Path

import pytest

from iobench.errors import StorageError, TargetRefusedError
from iobench.safety import check_target, remove_exactly


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/etc",
        "/usr/local/x",
        "/home",
        "/home/user",
        "/tmp",
        "/proc/self",
        "/dev",
        "/dev/null",
        "/mnt",
        "~",
        "/root",
    ],
)
def test_refused(target: str) -> None:
    with pytest.raises(TargetRefusedError) as caught:
        check_target(target)
    assert "\n" not in str(caught.value)
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
    with pytest.raises(TargetRefusedError, match="nowhere"):
        check_target(tmp_path / "nowhere")
    (tmp_path / "real").mkdir()
    (tmp_path / "fine").symlink_to(tmp_path / "real")
    assert check_target(tmp_path / "fine") == tmp_path.resolve() / "real"


def test_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TargetRefusedError, match="not a directory"):
            check_target(path)


def test_what_cannot_be_read_is_not_left_without_its_marker() -> None:
    """A folder that can't be listed stays, so the marker must stay, too: else nothing could ever clean the rest."""
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
