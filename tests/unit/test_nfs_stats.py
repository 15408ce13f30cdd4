"""mountstats as kernels write it: NFSv3, NFSv4.2 over several connections, an old kernel, names
with spaces; and what changed meanwhile.
"""

# ruff: noqa: E101 (recorded text has the tabs and the long lines of the kernel)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.base import filesystem
from iobench.host import nfs, resources

V3 = r"""device filer.example:/vol/data mounted on /mnt/nas\040one with fstype nfs statvers=1.1
	opts:	rw,vers=3,rsize=1048576,wsize=524288,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=10.0.0.9,mountvers=3,mountport=20048,mountproto=udp,local_lock=none
	age:	7210
	caps:	caps=0x3fcf,wtmult=4096,dtsize=32768,bsize=0,namlen=255
	sec:	flavor=1,pseudoflavor=1
	events:	92 20480 113 340 41 39 20571 16 0 8 0 41 0 6 71 0 0 33 0 0 0 0 0 0 0 0 0
	bytes:	104857600 8192 0 0 104890368 8192 25608 2
	RPC iostats version: 1.1  p/v: 100003/3 (nfs)
	xprt:	tcp 874 1 1 0 3 1312 1311 1 2048 0 16 77 31
	per-op statistics
	        NULL: 1 1 0 40 24 0 0 0 0
	     GETATTR: 92 92 0 10304 10304 1 40 44 0
	     SETATTR: 0 0 0 0 0 0 0 0 0
	      LOOKUP: 41 41 0 5412 9512 0 20 21 30
	      ACCESS: 39 39 0 4680 4680 0 19 20 0
	        READ: 1000 1003 1 128000 104918368 50 12000 12100 0
	       WRITE: 2 2 0 8448 320 0 7 7 0
	READDIRPLUS: 4 4 0 576 8120 0 9 9 0
	      COMMIT: 1 1 0 132 152 0 4 4 0
"""  # noqa: E501

V42 = """device [fd00::9]:/ mounted on /mnt/new with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,proto=tcp6,nconnect=4,timeo=600,retrans=2,sec=sys,clientaddr=fd00::5,local_lock=none
	age:	60
	impl_id:	name='',domain='',date='0,0'
	caps:	caps=0xfffbffdf,wtmult=512,dtsize=1048576,bsize=0,namlen=255
	nfsv4:	bm0=0xfdffbfff,bm1=0xf9be3e,bm2=0x68800,acl=0x3,sessions,pnfs=not configured,lease_time=90,lease_expired=0
	sec:	flavor=1,pseudoflavor=1
	events:	10 200 3 4 5 6 207 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
	bytes:	0 0 8388608 0 8388608 0 0 0
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
	xprt:	tcp 0 0 1 0 2 24 24 0 40 0 2 3 0
	xprt:	tcp 0 0 1 0 2 23 23 0 40 0 2 3 0
	xprt:	tcp 0 0 1 0 2 23 23 0 40 0 2 3 0
	xprt:	tcp 0 0 1 0 2 23 23 0 40 0 2 3 0
	per-op statistics
	        NULL: 5 5 0 220 120 0 1 1 0
	        READ: 8 8 0 1568 8389344 0 24 26 0
	   READ_PLUS: 0 0 0 0 0 0 0 0 0
	    SEQUENCE: 2 2 0 256 248 0 1 2 0
	   LAYOUTGET: 0 0 0 0 0 0 0 0 0
"""  # noqa: E501

OLD = """device old:/x mounted on /old with fstype nfs statvers=1.0
	opts:	ro,vers=3,rsize=8192,wsize=8192,proto=udp
	age:	5
	bytes:	0 0 0 0 16384 0 0 0
	RPC iostats version: 1.0  p/v: 100003/3 (nfs)
	xprt:	udp 800 1 5 5 0 5 0
	per-op statistics
	        READ: 2 2 0 264 16640 0 3 3
"""

WHOLE = (
    "device sysfs mounted on /sys with fstype sysfs\ndevice proc mounted on /proc with fstype "
    f"proc\n{V3}\n{V42}\n" + (f"device /dev/vda mounted on / with fstype ext4\n{OLD}\n")
)


@pytest.fixture(scope="module")
def mounts() -> list[nfs.MountStats]:
    return nfs.parse_mountstats(WHOLE)


def test_only_nfs_mounts_are_found(mounts: list[nfs.MountStats]) -> None:
    assert [(mount.source, mount.point, mount.fs_type) for mount in mounts] == [
        ("filer.example:/vol/data", "/mnt/nas one", "nfs"),
        ("[fd00::9]:/", "/mnt/new", "nfs4"),
        ("old:/x", "/old", "nfs"),
    ]


def test_version_3(mounts: list[nfs.MountStats]) -> None:
    mount = mounts[0]
    options = [mount.options[name] for name in ("vers", "rsize", "wsize", "hard")]
    assert options == ["3", "1048576", "524288", ""]
    assert (mount.age_s, mount.connections) == (7210, 1)
    assert (mount.read_bytes, mount.written_bytes) == (104_890_368, 8192)
    assert mount.operations["READ"] == nfs.Operation(
        1000, 1003, 1, 128_000, 104_918_368, 50, 12_000, 12_100, 0
    )
    assert mount.operations["LOOKUP"].errors == 30
    assert not {"events", "xprt"} & set(mount.operations)


def test_version_4_over_four_connections(mounts: list[nfs.MountStats]) -> None:
    mount = mounts[1]
    assert (mount.options["vers"], mount.options["nconnect"], mount.connections) == ("4.2", "4", 4)
    assert mount.read_bytes == 8 << 20  # direct reads count as well
    assert mount.operations["READ"].rtt_ms == 24
    assert set(mount.operations) == {"NULL", "READ", "READ_PLUS", "SEQUENCE", "LAYOUTGET"}


def later(text: str = V3) -> nfs.MountStats:
    """The same mount after 10 s: 200 reads more (of 20,971,520 bytes), of which 4 were sent
    again.
    """
    changed = {
        "age:	7210": "age:	7220",
        "104890368 8192 25608": "125861888 8192 25608",
        "READ: 1000 1003 1 128000 104918368 50 12000 12100 0": (
            "READ: 1200 1207 2 153600 125895488 60 13000 13300 1"
        ),
        "GETATTR: 92 92 0 10304 10304 1 40 44 0": "GETATTR: 192 192 0 21504 21504 1 60 64 0",
    }
    for before, after in changed.items():
        assert before in text
        text = text.replace(before, after)
    return nfs.parse_mountstats(text)[0]


def test_a_difference_is_of_the_time_between(mounts: list[nfs.MountStats]) -> None:
    found = nfs.diff(mounts[0], later())
    assert (found.read_ops, found.read_bytes, found.written_bytes) == (200, 20_971_520, 0)
    assert (found.read_rtt_ms, found.read_execute_ms) == (5.0, 6.0)
    assert (found.retransmits, found.timeouts, found.errors) == (4, 1, 1)
    assert list(found.operations) == ["READ", "GETATTR"]  # what was not used is left out
    asked = found.operations["GETATTR"]
    assert (asked.ops, asked.retransmits, asked.rtt_ms, asked.execute_ms) == (100, 0, 0.2, 0.2)


def test_a_mount_that_is_another_now_has_no_difference(mounts: list[nfs.MountStats]) -> None:
    assert nfs.diff(mounts[0], mounts[1]) is None
    assert nfs.diff(later(), mounts[0]) is None  # younger than before: mounted again
    assert nfs.diff(None, mounts[0]) is nfs.diff(mounts[0], None) is None


MOUNTINFO = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 22 0:40 / /mnt/nas\040one rw,noatime - nfs filer.example:/vol/data rw,vers=3,rsize=1048576,wsize=524288,hard,proto=tcp,addr=10.0.0.9
31 22 0:41 / /mnt/new rw - nfs4 [fd00::9]:/ rw,vers=4.2,rsize=1048576,wsize=1048576,proto=tcp6,nconnect=4,addr=fd00::9
"""  # noqa: E501


def test_a_path_on_such_a_mount_has_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with the kernel's two files as recorded."""
    target = tmp_path / "set"
    info = (
        MOUNTINFO + f"40 22 0:60 / {tmp_path} rw,noatime - nfs4 filer:/vol "
        "rw,vers=4.1,rsize=65536,wsize=65536,proto=tcp,addr=10.0.0.9\n"
    )
    stats = {"text": WHOLE + V3.replace(r"/mnt/nas\040one", str(tmp_path))}

    def recorded(path: Path) -> str | None:
        return {"/proc/self/mountinfo": info, "/proc/self/mountstats": stats["text"]}.get(
            str(path), ""
        )

    for module in (filesystem, nfs):
        monkeypatch.setattr(module, "read_text", recorded)
    facts: dict[str, Any] = filesystem.describe_path(target)
    assert facts["is_nfs"] is facts["is_network"] is True
    told = facts["nfs"]
    assert (told["server"], told["version"], told["rsize"]) == ("filer", "4.1", 65536)
    assert told["options"].startswith("rw,noatime")
    before = resources.Snapshot.take(target)
    stats["text"] = stats["text"].replace("READ: 1000 1003 1 128000", "READ: 1001 1004 1 128000")
    used = nfs.diff(before.nfs, resources.Snapshot.take(target).nfs)
    assert (used.mount_point, used.read_ops, used.retransmits) == (str(tmp_path), 1, 0)
