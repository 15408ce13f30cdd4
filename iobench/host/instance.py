"""Which cloud instance this is, by its firmware and by the cloud's metadata service.

The firmware's strings are read from ``/sys``. The metadata service (``http://169.254.169.254``) is
asked only if the user allows it (``IOBENCH_METADATA=1``), only on a machine whose firmware names
that cloud and not the type, and once per process. No wait for it is longer than 0.3 s, and no
redirection is followed. Only the instance type is recorded, no account, project or instance id.

Sources: AWS, "Detect whether a host is an EC2 instance" and IMDSv2; GCP, "About VM metadata";
Azure, "Azure Instance Metadata Service".
"""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Callable, Mapping
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from ..base.cgroup import read_text

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
