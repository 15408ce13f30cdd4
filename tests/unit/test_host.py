"""Limits are read from the files of both cgroup versions (fixtures), and nothing that is missing
becomes an error or a zero.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from iobench.base import cgroup, memory
from iobench.host import host, resources
from tests.processes import document


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


V2 = {
    "proc/self/cgroup": "0::/pod/app\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory io\n",
    "sys/fs/cgroup/cgroup.procs": "",
    "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/pod/memory.max": "max\n",
    "sys/fs/cgroup/pod/app/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/app/memory.max": "2147483648\n",
    "sys/fs/cgroup/pod/app/cpu.stat": (
        "usage_usec 900\nnr_periods 10\nnr_throttled 3\nthrottled_usec 2500000\n"
    ),
}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/box\n4:memory:/box\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/cgroup.procs": "",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu,cpuacct/box/cpu.stat": (
        "nr_periods 4\nnr_throttled 2\nthrottled_time 1500000000\n"
    ),
    "sys/fs/cgroup/memory/cgroup.procs": "",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1073741824\n",
}


def test_version_2_limits_of_a_parent_hold(tmp_path: Path) -> None:
    root = tree(tmp_path, V2)
    assert cgroup.cpu_quota_cores(root) == 1.5
    assert cgroup.memory_limit_bytes(root) == 2 << 30
    assert cgroup.throttling(root) == {root / "sys/fs/cgroup/pod/app": (3, 2.5)}
    assert cgroup.version(root) == "v2"


def test_version_1_limits(tmp_path: Path) -> None:
    root = tree(tmp_path, V1)
    assert cgroup.cpu_quota_cores(root) == 0.5
    assert cgroup.memory_limit_bytes(root) == 1 << 30
    assert cgroup.throttling(root) == {root / "sys/fs/cgroup/cpu,cpuacct/box": (2, 1.5)}
    assert cgroup.version(root) == "v1"


def test_a_group_above_that_was_throttled_long_ago_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, V2)
    (root / "sys/fs/cgroup/pod/cpu.stat").write_text("nr_throttled 900\nthrottled_usec 100000000\n")
    throttling = cgroup.throttling
    monkeypatch.setattr(cgroup, "throttling", lambda: throttling(root))
    before = resources.Snapshot.take()
    app = root / "sys/fs/cgroup/pod/app/cpu.stat"
    app.write_text("nr_throttled 8\nthrottled_usec 6500000\n")
    used = resources.diff(before, resources.Snapshot.take())
    assert (used.throttled_periods, used.throttled_s) == (5, 4.0)


def test_a_group_path_of_the_host_falls_back_to_the_containers_root(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            **V2,
            "proc/self/cgroup": "0::/kubepods/seen-by-the-host-only\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
        },
    )
    assert cgroup.cpu_quota_cores(root) == 2.0


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert cgroup.cpu_quota_cores(tmp_path) is None
    assert cgroup.memory_limit_bytes(tmp_path) is None
    assert cgroup.throttling(tmp_path) == {}
    assert cgroup.version(tmp_path) is None


def test_a_quota_below_the_affinity_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(cgroup, "cpu_quota_cores", lambda: 2.5)
    assert host.effective_cores() == 2.5
    monkeypatch.setattr(cgroup, "cpu_quota_cores", lambda: 8.0)
    assert host.effective_cores() == 4


MEMINFO = "MemTotal: 8388608 kB\nMemFree: 100 kB\nMemAvailable: 4194304 kB\n"


def test_what_is_available_is_what_is_left_below_the_groups_limit(tmp_path: Path) -> None:
    """Version 2: the limit of the inner group is 2 GiB, and files in the page cache are free."""
    stat = "anon 1\ninactive_file 104857600\nactive_file 104857600\nshmem 5\n"
    inner = {
        "proc/meminfo": MEMINFO,
        "sys/fs/cgroup/pod/app/memory.current": f"{1 << 30}\n",
        "sys/fs/cgroup/pod/app/memory.stat": stat,
    }
    root = tree(tmp_path, {**V2, **inner})
    assert memory.total_bytes(root) == 2 << 30
    assert memory.available_bytes(root) == (1 << 30) + 2 * 104857600


def test_everything_that_asks_for_memory_gets_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that has little memory: buffers, plans and --memory-multiple all know it."""
    from iobench.base import buffers
    from iobench.base.errors import NoMemoryError

    monkeypatch.setattr(cgroup, "memory_limit_bytes", lambda root=None: 64 << 20)
    monkeypatch.setattr(cgroup, "memory_left_bytes", lambda root=None: 48 << 20)
    assert buffers.available() == 48 << 20
    with pytest.raises(NoMemoryError):
        buffers.private(100 << 20)
    assert document("plan demo")["memory_bytes"] == 64 << 20
    assert document("plan resnet50")["memory_available_bytes"] == 48 << 20
    made = document(f"generate demo --to {tmp_path}/d --memory-multiple 0.01 --workers 1")
    assert made["sample_bytes"] == pytest.approx(0.01 * (64 << 20), rel=0.2)


def test_fingerprint_is_json_and_holds_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell-4711")
    found = host.fingerprint()
    text = json.dumps(found)
    assert "4711" not in text
    assert found["kernel"] == os.uname().release
    assert found["memory_bytes"] == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.01
    )
    assert found["packages"]["numpy"]


def test_fingerprint_survives_a_machine_without_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (host, cgroup):
        monkeypatch.setattr(module, "read_text", lambda path: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: (_ for _ in ()).throw(OSError("no")))
    found = host.fingerprint()
    assert found["memory_bytes"] is None
    assert found["affinity_cpus"] is None
    assert found["transparent_hugepage"]["enabled"] is None


def test_gpus_from_nvidia_smi() -> None:
    text = "NVIDIA H100 80GB HBM3, 81559, 550.54, 5, 16\nNVIDIA GB10, [N/A], 580.1, 5, [N/A]\n"
    first, second = host.parse_gpus(text)
    assert first == {
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 85520809984,
        "driver": "550.54",
        "pcie_generation": 5,
        "pcie_lanes": 16,
    }
    assert second["memory_bytes"] is None


def test_a_broken_nvidia_smi_is_unknown_and_an_absent_one_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.gpus() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert host.gpus() is None


def test_diskstats_of_one_device() -> None:
    text = (
        " 254       0 vda 100 5 2048 70 200 6 4096 90 0 1500 160 0 0 0 0 0 0\n 254 1 vda1 1 1 8 1 "
        "1 1 8 1 0 1 1\n"
    )
    assert resources.parse_diskstats(text, 254, 0) == ("vda", 1 << 20, 2 << 20, 1.5)
    assert resources.parse_diskstats(text, 8, 0) is None


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({".git/HEAD": COMMIT}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/a", ".git/packed-refs": f"{COMMIT} refs/heads/a"}, COMMIT),
        (
            {
                ".git": "gitdir: real/worktrees/w\n",
                "real/worktrees/w/HEAD": "ref: refs/heads/w\n",
                "real/worktrees/w/commondir": "../..\n",
                "real/refs/heads/w": COMMIT,
            },
            COMMIT,
        ),
        ({".git/HEAD": "ref: refs/heads/unborn\n"}, None),
        ({".git/HEAD": "ref: ../../secret\n", "secret": COMMIT}, None),
    ],
)
def test_the_commit_of_a_checkout(tmp_path: Path, files: dict[str, str], found: str | None) -> None:
    assert host.checkout_commit(tree(tmp_path, files)) == found
