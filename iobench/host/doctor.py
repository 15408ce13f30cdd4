"""Whether this machine and this storage are fit to measure.

Facts about both, and remedies for those that would look like slow storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..base.filesystem import describe_path
from ..base.pagecache import method
from ..base.units import format_bytes, format_count
from ..record.host import cpu_limit_file
from ..record.run import Finding
from . import fio
from .host import fingerprint

_READ_AHEAD_KB = 1024
"""With less read-ahead, buffered sequential reads leave a fast device idle between requests. The
kernel's default is 128."""
_LITTLE_FREE = 0.05  # fraction of the file system's space


def examine(path: Path | str) -> dict[str, Any]:
    """Facts about this host, the storage of ``path``, and the tools.

    Raises StorageError if the path cannot be examined.
    """
    return {
        "host": fingerprint(),
        "storage": describe_path(path),
        "page_cache": method(),
        "fio": {
            "version": fio.version(),
            "install": None if fio.available() else fio.install_hint(),
        },
    }


def findings(facts: dict[str, Any]) -> list[Finding]:
    """What is wrong or worth knowing, worst first; empty if there is nothing."""
    found = [*_host(facts["host"]), *_storage(facts["storage"]), *_tools(facts)]
    return sorted(found, key=lambda finding: finding.level != "warning")


def _host(host: dict[str, Any]) -> Iterator[Finding]:
    cores, affinity, quota = host["cores"], host["affinity_cores"], host["cpu_quota_cores"]
    if cores and affinity and affinity < cores:
        evidence = (
            f"this process may run on {affinity} of {cores} cores (CPUs {host['affinity_cpus']})"
        )
        yield _warning(
            "host.affinity",
            evidence,
            "start iobench without taskset, cpuset or a scheduler's core binding, or use as many "
            "workers as it has cores",
        )
    if quota and quota < (affinity or cores or 0):
        evidence = f"a cgroup quota allows {quota:g} of {affinity or cores} cores"
        yield _warning(
            "host.cpu-quota",
            evidence,
            f"raise the container's CPU limit ({cpu_limit_file(host.get('cgroup_version'))}): a "
            "throttled reader looks like slow storage",
        )
    limit, memory = host["cgroup_memory_limit_bytes"], host["memory_bytes"]
    if limit and memory and limit < memory:
        evidence = (
            f"a cgroup limits memory to {format_bytes(limit)} of {format_bytes(memory)}, "
            "page cache included"
        )
        yield _info(
            "host.memory-limit", evidence, "expect fewer cache hits than without this limit"
        )
    if host["transparent_hugepage"]["enabled"] == "never":
        remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield _warning(
            "host.huge-pages",
            "transparent huge pages are off: direct reads into 4 KiB pages reach about half the "
            "speed",
            remedy,
        )
    if host["gpus"] is None:
        yield _info(
            "host.gpu",
            "nvidia-smi is installed, but it failed or did not end",
            "run it by hand; iobench emulates accelerators either way",
        )


def _storage(storage: dict[str, Any]) -> Iterator[Finding]:
    where = storage["mount_point"] or storage["path"]
    if storage["is_tmpfs"]:
        yield _warning(
            "storage.memory",
            f"{where} is {storage['fs_type']}, which is memory and not storage",
            "name a directory on the storage that you want to measure",
        )
    if storage["read_only"]:
        yield _warning(
            "storage.read-only",
            f"{where} is read-only: datasets can be read there, but not generated",
            f"mount -o remount,rw {where}",
        )
    direct = storage["direct"]
    if direct["supported"] is False:
        remedy = (
            "reads go through the page cache there: evict before each epoch, and expect more "
            "CPU time per GB"
        )
        yield _warning(
            "storage.no-direct-io", f"O_DIRECT does not work on {where} ({direct['how']})", remedy
        )
    elif direct["supported"] is None:
        remedy = "name a directory that you can write to, or a file on it"
        yield _unknown(
            "storage.direct-io", f"whether O_DIRECT works is not known ({direct['how']})", remedy
        )
    total, free, inodes = storage["total_bytes"], storage["free_bytes"], storage["free_inodes"]
    if total and free < _LITTLE_FREE * total and not storage["read_only"]:
        yield _warning(
            "storage.space",
            f"{format_bytes(free)} of {format_bytes(total)} are free on {where}",
            "free some space: file systems slow down when full",
        )
    if inodes == 0:
        yield _warning(
            "storage.inodes",
            f"{where} has no free inodes: no file can be created",
            "remove small files, or use a format that has shards",
        )
    disk = storage["devices"][-1] if storage["devices"] else None
    queue = next(
        (device for device in storage["devices"] if device["read_ahead_kb"] is not None), None
    )
    if queue and queue["read_ahead_kb"] < _READ_AHEAD_KB:
        evidence = (
            f"read-ahead of {queue['name']} is {queue['read_ahead_kb']} KiB: buffered sequential "
            "reads may not use the whole speed of the device"
        )
        yield _info(
            "storage.read-ahead",
            evidence,
            f"echo 4096 > /sys/block/{queue['name']}/queue/read_ahead_kb, or read with O_DIRECT",
        )
    for device in storage["devices"]:
        if device.get("backing_file") and not device.get("backing_direct"):
            yield _warning(
                "storage.loop",
                f"{device['name']} is a loop device whose image {device['backing_file']} this "
                "host's page cache may hold: reads from it are not proven cold",
                f"losetup --direct-io=on /dev/{device['name']}",
            )
    if disk and disk["name"].startswith("nvme") and disk["scheduler"] not in (None, "none"):
        remedy = f"echo none > /sys/block/{disk['name']}/queue/scheduler"
        yield _info(
            "storage.scheduler",
            f"{disk['name']} uses the scheduler {disk['scheduler']}, which costs CPU time on NVMe",
            remedy,
        )
    if storage["is_network"]:
        evidence = f"{where} is {storage['fs_type']}: its server has a cache, too"
        yield _info(
            "storage.network",
            evidence,
            "data that is cold for this host may be cached by the server: use a dataset larger "
            "than the server's memory",
        )


def _tools(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["fio"]["version"] is None:
        yield _warning(
            "tools.fio",
            "fio is not installed: the storage's raw speed will not be measured",
            facts["fio"]["install"] or "install fio",
        )
    if facts["page_cache"] is None:
        evidence = "neither cachestat nor mincore works: whether reads are cold cannot be proven"
        yield _warning(
            "tools.page-cache",
            evidence,
            "allow one of these system calls in the container's seccomp profile, or read with "
            "O_DIRECT",
        )


def _warning(rule: str, evidence: str, remedy: str) -> Finding:
    return Finding(rule=rule, level="warning", evidence=evidence, remedy=remedy)


def _info(rule: str, evidence: str, remedy: str) -> Finding:
    return Finding(rule=rule, level="info", evidence=evidence, remedy=remedy)


def _unknown(rule: str, evidence: str, remedy: str) -> Finding:
    return Finding(rule=rule, level="unknown", evidence=evidence, remedy=remedy)


def lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts as (label, text), in the order of interest."""
    host, storage = facts["host"], facts["storage"]
    quota = f"{host['cpu_quota_cores']:g} cores" if host["cpu_quota_cores"] else "none"
    virtual = host["virtualisation"]
    machine = " ".join(filter(None, (virtual["vendor"], virtual["product"]))) or (
        "virtual machine" if virtual["hypervisor"] else "?"
    )
    limit = host["cgroup_memory_limit_bytes"]
    pages = host["transparent_hugepage"]
    rows = [
        ("machine", f"{host['node']}, {machine}, kernel {host['kernel']}"),
        ("processor", host["cpu_model"] or "?"),
        ("NUMA nodes", str(host["numa_nodes"] or "?")),
        (
            "cores",
            f"{host['cores']}, affinity {host['affinity_cores']} "
            f"(CPUs {host['affinity_cpus']}), cgroup quota {quota}",
        ),
        (
            "memory",
            f"{_bytes(host['memory_bytes'])}, cgroup limit {_bytes(limit) if limit else 'none'}",
        ),
        (
            "huge pages",
            f"transparent {pages['enabled']}, defrag {pages['defrag']}, "
            f"shared memory {pages['shmem_enabled']}",
        ),
        (
            "path",
            storage["path"]
            + (
                ""
                if storage["probed"] == storage["path"]
                else f" (does not exist yet; examined {storage['probed']})"
            ),
        ),
        (
            "file system",
            f"{storage['fs_type'] or '?'} on {storage['mount_point'] or '?'} "
            f"from {storage['source'] or '?'}",
        ),
        ("mount options", storage["mount_options"] or "?"),
        (
            "space",
            f"{_bytes(storage['free_bytes'])} free of {_bytes(storage['total_bytes'])}, "
            f"{_count(storage['free_inodes'])} free inodes",
        ),
        *(("device", _device(device)) for device in storage["devices"]),
        ("O_DIRECT", _direct(storage["direct"])),
        (
            "page cache",
            f"measured by {facts['page_cache']}" if facts["page_cache"] else "cannot be measured",
        ),
        ("fio", facts["fio"]["version"] or f"not installed: {facts['fio']['install']}"),
        (
            "python",
            f"{host['python']}, torch {host['packages']['torch'] or 'not installed'}, "
            f"iobench {host['iobench_version']}",
        ),
    ]
    gpus = [
        f"{gpu['name']}, {_bytes(gpu['memory_bytes'])}, driver {gpu['driver']}"
        for gpu in host["gpus"] or []
    ]
    return rows + [
        ("GPU", text) for text in gpus or ["unknown" if host["gpus"] is None else "none"]
    ]


def _bytes(value: int | None) -> str:
    return "?" if value is None else format_bytes(value)


def _count(value: int | None) -> str:
    return "?" if value is None else format_count(value)


def _direct(direct: dict[str, Any]) -> str:
    answer = {True: "works", False: "does not work", None: "unknown"}[direct["supported"]]
    return (
        f"{answer}, alignment {direct['alignment_bytes']} bytes"
        if direct["alignment_bytes"]
        else f"{answer} ({direct['how']})"
    )


def _device(device: dict[str, Any]) -> str:
    if device["partition"]:
        return f"{device['name']}, partition"
    kind = {True: "rotational", False: "solid state", None: "?"}[device["rotational"]]
    parts = [
        device["name"],
        device["model"],
        kind,
        f"scheduler {device['scheduler'] or '?'}",
        f"read-ahead {device['read_ahead_kb']} KiB",
    ]
    return ", ".join(filter(None, [*parts, f"{device['nr_requests']} requests"]))
