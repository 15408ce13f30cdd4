"""Each problem that would be taken for slow storage is found, and a healthy machine has none."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import doctor as cli
from iobench.measure import doctor

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
    facts["host"].update(
        cores=None,
        affinity_cores=None,
        affinity_cpus=None,
        memory_bytes=None,
        numa_nodes=None,
        cpu_model=None,
    )
    facts["host"]["transparent_hugepage"] = dict.fromkeys(("enabled", "defrag", "shmem_enabled"))
    facts["storage"].update(
        fs_type=None,
        mount_point=None,
        mount_options=None,
        source=None,
        free_inodes=None,
        devices=[],
    )
    assert doctor.findings(facts) == []
    assert doctor.lines(facts)


def test_warnings_come_first() -> None:
    facts = copy.deepcopy(HEALTHY)
    facts["storage"]["is_network"] = True
    facts["fio"] = {"version": None, "install": "apt-get install -y fio"}
    assert [finding.level for finding in doctor.findings(facts)] == ["warning", "info"]


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(argparse.Namespace(path=str(tmp_path), json=True)) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"host", "storage", "page_cache", "fio", "findings"} <= set(document)
    assert document["storage"]["path"] == str(tmp_path.resolve())


def test_text_names_what_the_user_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(argparse.Namespace(path=str(tmp_path), json=False)) == 0
    out = capsys.readouterr().out
    for word in (
        "cores",
        "memory",
        "huge pages",
        "file system",
        "mount options",
        "O_DIRECT",
        "page cache",
        "fio",
        "torch",
        "GPU",
        str(tmp_path),
    ):
        assert word in out


def test_fio_missing_shows_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")
    (tmp_path / "apt-get").chmod(0o755)
    assert cli.run(argparse.Namespace(path=str(tmp_path), json=False)) == 0
    assert "apt-get install -y fio" in capsys.readouterr().out
