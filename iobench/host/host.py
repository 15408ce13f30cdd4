"""Facts about this machine that decide how fast it can load data. An unknown fact is None.

Which cloud instance this is, by its firmware and by the cloud's metadata service.

The firmware's strings are read from ``/sys``. The metadata service (``http://169.254.169.254``) is
asked only if the user allows it (``IOBENCH_METADATA=1``), only on a machine whose firmware names
that cloud and not the type, and once per process. No wait for it is longer than 0.3 s, and no
redirection is followed. Only the instance type is recorded, no account, project or instance id.

Sources: AWS, "Detect whether a host is an EC2 instance" and IMDSv2; GCP, "About VM metadata";
Azure, "Azure Instance Metadata Service".
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..base import cgroup, memory
from ..base.cgroup import read_text, selected
from ..base.extras import package_version

DMI = Path("/sys/class/dmi/id")
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # the chassis tag of all virtual machines in Azure
TIMEOUT_S = 0.3  # of each wait; AWS needs two requests, with half of it for each
SERVICE = "http://169.254.169.254"  # the same for all three clouds
OPT_IN = "IOBENCH_METADATA"
"""The environment variable that allows the request; unset, empty and ``0`` do not."""

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,60}")
_EC2 = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")


class CloudInstance(NamedTuple):
    provider: str  # aws, gcp, azure
    type: str | None
    how: str  # dmi, metadata service, or why the type is unknown


@lru_cache(maxsize=1)
def this_instance() -> CloudInstance | None:
    """This machine's instance; None if its firmware names no cloud. Determined once per process."""
    return recognise(DMI, os.environ)


def recognise(
    dmi: Path,
    environment: Mapping[str, str],
    *,
    aws: str = SERVICE,
    gcp: str = SERVICE,
    azure: str = SERVICE,
) -> CloudInstance | None:
    """The instance, from the strings in the folder ``dmi``.

    ``aws``, ``gcp`` and ``azure``: the URLs of the metadata services.
    """
    said = {
        name: (read_text(dmi / name) or "").strip()
        for name in ("sys_vendor", "product_name", "chassis_asset_tag", "bios_vendor")
    }
    asking = environment.get(OPT_IN, "") not in ("", "0")
    if "amazon" in f"{said['sys_vendor']} {said['bios_vendor']}".lower():
        if _EC2.fullmatch(said["product_name"]):
            return CloudInstance("aws", said["product_name"], "dmi")
        return _from_service("aws", asking, lambda: _aws(aws))
    if said["product_name"] == "Google Compute Engine" or said["sys_vendor"] == "Google":
        return _from_service(
            "gcp",
            asking,
            lambda: _ask(
                f"{gcp}/computeMetadata/v1/instance/machine-type", {"Metadata-Flavor": "Google"}
            ),
        )
    if said["chassis_asset_tag"] == AZURE_TAG:
        path = "/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text"
        return _from_service("azure", asking, lambda: _ask(azure + path, {"Metadata": "true"}))
    return None


def _from_service(provider: str, asking: bool, ask: Callable[[], str]) -> CloudInstance:
    if not asking:
        return CloudInstance(
            provider, None, f"the metadata service is queried only if {OPT_IN}=1 is set"
        )
    try:
        answer = ask()
    except (OSError, ValueError, HTTPException):  # HTTPException: the answer is not HTTP
        return CloudInstance(provider, None, "the metadata service did not answer")
    # The last part of projects/<number>/machineTypes/<type>; the number identifies an account.
    name = answer.rpartition("/")[2]
    if not _TYPE.fullmatch(name):
        return CloudInstance(provider, None, "the metadata service gave an unexpected answer")
    return CloudInstance(provider, name, "metadata service")


def _aws(base: str) -> str:
    half = TIMEOUT_S / 2
    token = _ask(
        f"{base}/latest/api/token",
        {"X-aws-ec2-metadata-token-ttl-seconds": "60"},
        method="PUT",
        timeout_s=half,
    )
    return _ask(
        f"{base}/latest/meta-data/instance-type",
        {"X-aws-ec2-metadata-token": token},
        timeout_s=half,
    )


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """The server that answers must not choose the next server."""

    def redirect_request(self, *_: object) -> None:
        return None


def _ask(
    url: str, headers: Mapping[str, str], *, method: str = "GET", timeout_s: float | None = None
) -> str:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    # A link-local address is never reached through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirection())
    with opener.open(request, timeout=TIMEOUT_S if timeout_s is None else timeout_s) as answer:
        return str(answer.read(1000).decode("ascii").strip())


_PACKAGES = (
    "torch",
    "numpy",
    "pyarrow",
    "zstandard",
    "lz4",
    "simplejpeg",
    "xxhash",
    "crc32c",
    "fsspec",
    "s3fs",
    "pydantic",
)

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_REF = re.compile(r"refs/[\w./+@-]+")


_CALLS = (
    "open",
    "read",
    "pread",
    "preadv",
    "preadv2",
    "write",
    "pwrite",
    "posix_fadvise",
    "fdatasync",
    "fsync",
)
"""System calls on which figures rest: what answers them in place of the C library could lie."""


class _Symbol(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def interposed() -> dict[str, str]:
    """Which library answers these calls in place of the C library, by the name of the call.

    Empty: none does. Such libraries are loaded by LD_PRELOAD or /etc/ld.so.preload, and forked
    ranks have them, too. Where this can't be asked, nothing is found. Source: dladdr(3).
    """
    found = {}
    try:
        program = ctypes.CDLL(None)
        own = _library(program, "getpid")
        for call in _CALLS:
            for name in (call, f"{call}64"):
                library = _library(program, name)
                if library and library != own and "libpthread" not in library:
                    found[call] = library
    except (AttributeError, OSError):
        return {}
    return found


def _library(program: ctypes.CDLL, name: str) -> str:
    """The file of the library whose function is called by this name; empty: there is none."""
    if not hasattr(program, name):
        return ""
    symbol = _Symbol()
    address = ctypes.cast(program[name], ctypes.c_void_p)
    known = program.dladdr(address, ctypes.byref(symbol)) and symbol.file
    return Path(os.fsdecode(known)).name if known else ""


def fingerprint() -> dict[str, Any]:
    """All facts, ready for JSON. Never raises.

    They hold the node's name, but no other identity and no environment variables.
    """
    affinity = _affinity()
    cloud = this_instance()
    return {
        "node": platform.node() or None,
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count(),
        "affinity_cores": len(affinity) if affinity else None,
        "affinity_cpus": _ranges(affinity) if affinity else None,
        "cgroup_version": cgroup.version(),
        "cpu_quota_cores": cgroup.cpu_quota_cores(),
        "effective_cores": effective_cores(),
        "memory_bytes": memory.meminfo("MemTotal"),
        "cgroup_memory_limit_bytes": cgroup.memory_limit_bytes(),
        "effective_memory_bytes": memory.total_bytes(),
        "numa_nodes": _numa_nodes(),
        "transparent_hugepage": _transparent_hugepage(),
        "hugetlb": {
            "total": memory.meminfo("HugePages_Total"),
            "free": memory.meminfo("HugePages_Free"),
            "page_bytes": memory.meminfo("Hugepagesize"),
        },
        "virtualisation": _virtualisation(),
        "instance_provider": cloud.provider if cloud else None,
        "instance_type": cloud.type if cloud else None,
        "instance_how": cloud.how if cloud else None,
        "interposed": interposed(),
        "kernel": platform.release() or None,
        "python": platform.python_version(),
        "gpus": gpus(),
        "iobench_version": __version__,
        "iobench_commit": checkout_commit(Path(__file__).resolve().parents[2]),
        "packages": {name: package_version(name) for name in _PACKAGES},
    }


def checkout_commit(folder: Path) -> str | None:
    """The commit that is checked out in ``folder``; None if it is no checkout of git.

    It is read from git's files, because that takes no process. Changes that were not committed are
    not seen. Source: gitrepository-layout(5).
    """
    git = folder / ".git"
    if git.is_file():  # a worktree, or a submodule
        git = folder / (read_text(git) or "").removeprefix("gitdir: ").strip()
    head = (read_text(git / "HEAD") or "").strip()
    if not head.startswith("ref: "):
        return head if _COMMIT.fullmatch(head) else None
    ref = head.removeprefix("ref: ")
    if not _REF.fullmatch(ref):
        return None
    shared = git / (read_text(git / "commondir") or ".").strip()
    found = read_text(git / ref) or read_text(shared / ref)
    if found is None:
        lines = (read_text(shared / "packed-refs") or "").splitlines()
        found = next((line[: -len(ref)] for line in lines if line.endswith(f" {ref}")), "")
    return found.strip() if _COMMIT.fullmatch(found.strip()) else None


def effective_cores() -> float:
    """Cores that this process can use: the lowest of the machine's, affinity and cgroup quota."""
    affinity = _affinity()
    limits = [float(len(affinity))] if affinity else [float(os.cpu_count() or 1)]
    quota = cgroup.cpu_quota_cores()
    return min([*limits, *([quota] if quota else [])])


def gpus(timeout_s: float = 3.0) -> list[dict[str, Any]] | None:
    """NVIDIA GPUs by ``nvidia-smi``.

    [] without that tool; None if it fails or hangs, since a GPU may exist.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [
        tool,
        "--query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Parse lines of ``nvidia-smi --format=csv,noheader,nounits``.

    Each has the name, MiB of memory, driver, PCIe generation and PCIe lanes.
    """
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 5:
            name, mebibytes, driver, generation, lanes = fields
            number = [
                int(field) if field.isdigit() else None for field in (mebibytes, generation, lanes)
            ]
            size = number[0] << 20 if number[0] is not None else None
            found.append(
                {
                    "name": name,
                    "memory_bytes": size,
                    "driver": driver,
                    "pcie_generation": number[1],
                    "pcie_lanes": number[2],
                }
            )
    return found


def _affinity() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return []


def _ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``0-2,5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _cpu_model() -> str | None:
    for line in (read_text(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or None


def _numa_nodes() -> int | None:
    try:
        return (
            sum(
                1
                for entry in os.listdir("/sys/devices/system/node")
                if entry[:4] == "node" and entry[4:].isdigit()
            )
            or None
        )
    except OSError:
        return None


def _transparent_hugepage() -> dict[str, str | None]:
    base = Path("/sys/kernel/mm/transparent_hugepage")
    return {
        name: selected(read_text(base / name)) for name in ("enabled", "defrag", "shmem_enabled")
    }


def _virtualisation() -> dict[str, Any]:
    dmi = Path("/sys/class/dmi/id")
    flags = next(
        (
            line
            for line in (read_text(Path("/proc/cpuinfo")) or "").splitlines()
            if line.startswith("flags")
        ),
        None,
    )
    return {
        "vendor": read_text(dmi / "sys_vendor") or None,
        "product": read_text(dmi / "product_name") or None,
        "hypervisor": "hypervisor" in flags.split() if flags else None,
    }
