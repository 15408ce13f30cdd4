"""mountinfo as machines have it: escapes, nested and covered mounts, NFS; and O_DIRECT found by
trying.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from iobench.base import filesystem
from iobench.base.errors import StorageError

MOUNTINFO = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
25 22 0:23 / /proc rw,nosuid - proc proc rw
30 22 0:40 / /mnt/nas rw,noatime shared:5 master:1 - nfs4 filer.example:/vol/data rw,vers=4.2,rsize=1048576,nconnect=8
31 30 259:3 / /mnt/nas/scratch rw - xfs /dev/nvme0n1p3 rw,attr2
32 22 8:1 / /mnt/my\040disk\011\134x ro - ext4 /dev/disk\040one ro
33 22 0:50 / /data rw - tmpfs tmpfs rw,size=8m
34 33 0:51 /sub /data rw - fuse.sshfs host:/x rw
a broken line
40 22 0:60 / /short rw - overlay overlay
"""  # noqa: E501


@pytest.fixture(scope="module")
def mounts() -> list[filesystem.Mount]:
    return filesystem.parse_mountinfo(MOUNTINFO)


@pytest.mark.parametrize(
    ("path", "fs_type", "point"),
    [
        ("/etc/hosts", "ext4", "/"),
        ("/mnt/nas", "nfs4", "/mnt/nas"),
        ("/mnt/nas/scratch/x", "xfs", "/mnt/nas/scratch"),
        ("/mnt/nas/scratchy", "nfs4", "/mnt/nas"),  # a common prefix of the text is no parent
        ("/data/x", "fuse.sshfs", "/data"),  # the later mount covers the earlier
        ("/mnt/my disk\t\\x/y", "ext4", "/mnt/my disk\t\\x"),
    ],
)
def test_the_longest_mount_above_a_path_is_its_own(
    mounts: list[filesystem.Mount], path: str, fs_type: str, point: str
) -> None:
    found = filesystem.find_mount(path, mounts)
    assert (found.fs_type, found.point) == (fs_type, point)


def test_optional_fields_and_escapes_are_understood(mounts: list[filesystem.Mount]) -> None:
    nfs = next(mount for mount in mounts if mount.fs_type == "nfs4")
    assert nfs.source == "filer.example:/vol/data"
    assert "nconnect=8" in nfs.super_options
    assert next(mount for mount in mounts if mount.device == "8:1").source == "/dev/disk one"
    assert len(mounts) == 8


@pytest.mark.parametrize(
    ("fs_type", "network"),
    [("nfs4", True), ("fuse.sshfs", True), ("fuse.ntfs-3g", False), (None, False)],
)
def test_network_file_systems(fs_type: str | None, network: bool) -> None:
    assert filesystem.is_network(fs_type) is network


def test_an_unreadable_place_is_one_clear_line(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StorageError, match="cannot examine"):
        filesystem.describe_path(loop)


def test_direct_is_found_by_reading_an_existing_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(os.urandom(1 << 17))
    found = filesystem.try_direct_io(file)
    written = filesystem.try_direct_io(tmp_path)
    assert found["supported"] == written["supported"]
    assert found["alignment_bytes"] == written["alignment_bytes"]
    assert (
        filesystem.try_direct_io(tmp_path, write=False)["supported"] == found["supported"]
    )  # finds the file by itself
    if found["supported"]:
        assert found["alignment_bytes"] in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


def test_a_file_system_that_refuses_direct_io_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert filesystem.try_direct_io(tmp_path)["supported"] is False
    assert os.listdir(tmp_path) == []


def test_a_partition_leads_to_its_disk(tmp_path: Path) -> None:
    disk = tmp_path / "devices/pci/nvme0n1"
    (disk / "nvme0n1p3").mkdir(parents=True)
    (disk / "nvme0n1p3/partition").write_text("3\n")
    (disk / "queue").mkdir()
    for name, text in {
        "rotational": "0",
        "scheduler": "[none] mq-deadline",
        "read_ahead_kb": "128",
        "logical_block_size": "4096",
    }.items():
        (disk / "queue" / name).write_text(text + "\n")
    (disk / "size").write_text("2048\n")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block/259:3").symlink_to(disk / "nvme0n1p3")
    partition, whole = filesystem.block_devices(os.makedev(259, 3), sys=tmp_path)
    assert (partition["name"], partition["partition"]) == ("nvme0n1p3", True)
    assert (whole["name"], whole["scheduler"], whole["rotational"], whole["read_ahead_kb"]) == (
        "nvme0n1",
        "none",
        False,
        128,
    )
    assert whole["size_bytes"] == 1 << 20
    assert whole["model"] is None
    assert filesystem.block_devices(os.makedev(0, 40), sys=tmp_path) == []
