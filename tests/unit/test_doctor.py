"""Each problem that would be taken for slow storage is found, and a healthy machine has none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from iobench.host import doctor

HEALTHY: dict[str, Any] = {
    "host": {
        "node": "n1",
        "cpu_model": "Some CPU",
        "cores": 16,
        "affinity_cores": 16,
        "affinity_cpus": "0-15",
        "cpu_quota_cores": None,
        "memory_bytes": 64 << 30,
        "cgroup_memory_limit_bytes": None,
        "numa_nodes": 1,
        "transparent_hugepage": {
            "enabled": "madvise",
            "defrag": "madvise",
            "shmem_enabled": "never",
        },
        "virtualisation": {"vendor": "QEMU", "product": "Standard PC", "hypervisor": True},
        "kernel": "6.8.0",
        "python": "3.12.1",
        "gpus": [],
        "iobench_version": "0.1.0",
        "packages": {"torch": None},
    },
    "storage": {
        "path": "/mnt/fast",
        "probed": "/mnt/fast",
        "fs_type": "xfs",
        "mount_point": "/mnt/fast",
        "mount_options": "rw,noatime",
        "source": "/dev/nvme0n1",
        "total_bytes": 10**12,
        "free_bytes": 5 * 10**11,
        "free_inodes": 10**8,
        "read_only": False,
        "is_nfs": False,
        "is_network": False,
        "is_tmpfs": False,
        "devices": [
            {
                "name": "nvme0n1",
                "partition": False,
                "model": "X",
                "rotational": False,
                "scheduler": "none",
                "read_ahead_kb": 4096,
                "nr_requests": 1023,
            }
        ],
        "direct": {"supported": True, "alignment_bytes": 512, "how": "read an existing file"},
    },
    "page_cache": "cachestat",
    "fio": {"version": "fio-3.36", "install": None},
}


def test_a_healthy_machine_has_no_findings() -> None:
    assert doctor.findings(HEALTHY) == []


@pytest.mark.parametrize(
    ("where", "value", "rule", "word"),
    [
        ("host.affinity_cores", 2, "host.affinity", "2 of 16"),
        ("host.cpu_quota_cores", 1.5, "host.cpu-quota", "1.5 of 16"),
        ("host.cgroup_memory_limit_bytes", 1 << 30, "host.memory-limit", "1.00 GiB"),
        ("host.transparent_hugepage.enabled", "never", "host.huge-pages", "off"),
        ("host.gpus", None, "host.gpu", "nvidia-smi"),
        ("storage.is_tmpfs", True, "storage.memory", "memory"),
        ("storage.read_only", True, "storage.read-only", "read-only"),
        ("storage.direct.supported", False, "storage.no-direct-io", "O_DIRECT"),
        ("storage.direct.supported", None, "storage.direct-io", "not known"),
        ("storage.free_bytes", 10**9, "storage.space", "free"),
        ("storage.free_inodes", 0, "storage.inodes", "inodes"),
        ("storage.devices.0.read_ahead_kb", 128, "storage.read-ahead", "128 KiB"),
        ("storage.devices.0.scheduler", "bfq", "storage.scheduler", "bfq"),
        ("storage.devices.0.backing_file", "/images/one.img", "storage.loop", "one.img"),
        ("storage.is_network", True, "storage.network", "server"),
        ("fio.version", None, "tools.fio", "fio"),
        ("page_cache", None, "tools.page-cache", "cold"),
    ],
)
def test_one_thing_wrong_is_one_finding_with_a_remedy(
    where: str, value: object, rule: str, word: str
) -> None:
    facts = copy.deepcopy(HEALTHY)
    *parents, last = where.split(".")
    inner: Any = facts
    for key in parents:
        inner = inner[int(key) if key.isdigit() else key]
    inner[last] = value
    (found,) = doctor.findings(facts)
    assert found.rule == rule
    assert word in found.evidence
    assert found.remedy
    assert doctor.lines(facts)  # and it can be shown


def test_a_quota_above_the_cores_is_no_finding() -> None:
    facts = copy.deepcopy(HEALTHY)
    facts["host"]["cpu_quota_cores"] = 16.0
    assert doctor.findings(facts) == []


def test_missing_facts_are_no_findings_and_can_be_shown() -> None:
    facts = copy.deepcopy(HEALTHY)
    of_host = ("cores", "affinity_cores", "affinity_cpus", "memory_bytes", "numa_nodes")
    facts["host"] |= dict.fromkeys((*of_host, "cpu_model"))
    facts["host"]["transparent_hugepage"] = dict.fromkeys(("enabled", "defrag", "shmem_enabled"))
    of_mount = ("fs_type", "mount_point", "mount_options", "source", "free_inodes")
    facts["storage"] |= {**dict.fromkeys(of_mount), "devices": []}
    assert doctor.findings(facts) == []
    assert doctor.lines(facts)
