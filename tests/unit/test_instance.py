"""Which instance this is, and what its network can carry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.host import host
from iobench.host.host import AZURE_TAG, OPT_IN, CloudInstance, recognise
from tests import processes
from tests.processes import printed, refused
from tests.servers.listener import Listener, listener
from tests.servers.scripted import Asked, ScriptedServer, answer
from tests.unit.test_compare import BASE, document

__all__ = ["listener"]

ALLOWED = {OPT_IN: "1"}
CLOUDS = {
    "aws": {"bios_vendor": "Amazon EC2", "product_name": "HVM domU"},
    "gcp": {"product_name": "Google Compute Engine"},
    "azure": {"chassis_asset_tag": AZURE_TAG},
}
"""What the firmware of each cloud's machines says."""

# Recognition


TYPE = "projects/123456789/machineTypes/a2-highgpu-1g"
ANSWERS = {
    "PUT /latest/api/token": ("x-aws-ec2-metadata-token-ttl-seconds", "", "a-token"),
    "GET /latest/meta-data/instance-type": ("x-aws-ec2-metadata-token", "a-token", "p3.2xlarge"),
    "GET /computeMetadata/v1/instance/machine-type": ("metadata-flavor", "Google", TYPE),
    "GET /metadata/instance/compute/vmSize": ("metadata", "true", "Standard_NC4as_T4_v3"),
}
"""What is asked -> the header that must come with it, its value if that matters, the answer."""


def strict(asked: Asked) -> bytes:
    """As metadata services answer: without its header they refuse."""
    header, value, text = ANSWERS[f"{asked.method} {asked.path.partition('?')[0]}"]
    given = asked.headers.get(header)
    return answer(200, text.encode()) if given and value in ("", given) else answer(403)


@pytest.fixture
def service() -> Iterator[ScriptedServer]:
    with ScriptedServer(strict) as server:
        yield server


def firmware(tmp_path: Path, **strings: str) -> Path:
    for name, text in strings.items():
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def seen(dmi: Path, url: str, **environment: str) -> CloudInstance | None:
    return recognise(dmi, environment, aws=url, gcp=url, azure=url)


def test_nitro_says_its_type_itself(tmp_path: Path, service: ScriptedServer) -> None:
    dmi = firmware(tmp_path, sys_vendor="Amazon EC2", product_name="g5.2xlarge")
    assert seen(dmi, service.url, **ALLOWED) == CloudInstance("aws", "g5.2xlarge", "dmi")
    assert service.asked == []


@pytest.mark.parametrize(
    ("strings", "found"),
    [
        (CLOUDS["aws"], ("aws", "p3.2xlarge")),
        (CLOUDS["gcp"], ("gcp", "a2-highgpu-1g")),
        (CLOUDS["azure"], ("azure", "Standard_NC4as_T4_v3")),
    ],
    ids=CLOUDS,
)
def test_the_metadata_service_is_asked_where_the_firmware_names_the_cloud(
    tmp_path: Path,
    service: ScriptedServer,
    strings: dict[str, str],
    found: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        host, "TIMEOUT_S", 60.0
    )  # this machine may be busier than a metadata service
    dmi = firmware(tmp_path, **strings)
    assert seen(dmi, service.url, **ALLOWED) == CloudInstance(*found, "metadata service")
    gone = seen(dmi, "http://127.0.0.1:9", **ALLOWED)
    assert (gone.type, gone.how) == (None, "the metadata service did not answer")


def test_another_machine_asks_nobody(tmp_path: Path, service: ScriptedServer) -> None:
    dmi = firmware(tmp_path, sys_vendor="QEMU", product_name="Standard PC")
    assert seen(dmi, service.url, **ALLOWED) is None
    assert seen(tmp_path / "nothing", service.url, **ALLOWED) is None
    assert service.asked == []


@pytest.mark.parametrize("environment", [{}, {OPT_IN: ""}, {OPT_IN: "0"}])
@pytest.mark.parametrize(("provider", "strings"), CLOUDS.items(), ids=CLOUDS)
def test_nobody_is_asked_unless_the_user_allows_it(
    provider: str,
    strings: dict[str, str],
    environment: dict[str, str],
    tmp_path: Path,
    service: ScriptedServer,
) -> None:
    found = seen(firmware(tmp_path, **strings), service.url, **environment)
    assert (found.provider, found.type) == (provider, None)
    assert OPT_IN in found.how
    assert service.asked == []


def test_no_redirection_is_followed(
    tmp_path: Path, listener: Listener, service: ScriptedServer
) -> None:
    listener.answer = (
        b"HTTP/1.1 302 CloudInstance\r\nContent-Length: 0\r\nLocation: "
        + f"{service.url}/computeMetadata/v1/instance/machine-type\r\n\r\n".encode()
    )
    dmi = firmware(tmp_path, product_name="Google Compute Engine")
    assert seen(dmi, listener.url, **ALLOWED) == CloudInstance(
        "gcp", None, "the metadata service did not answer"
    )
    assert len(listener.requests) > 0
    assert service.asked == []


# Ceilings of an instance


def test_size_says_whether_the_network_keeps_up() -> None:
    size = "size unet3d-h100 --accelerators 8 --instance"
    for instance_type, enough in (("g5.xlarge", False), ("p5.48xlarge", True)):
        assert ("network is NOT enough" not in printed(size, instance_type)) is enough
    assert refused(size, "g5.xlarg")
    # the baseline, not the burst of 10
    assert processes.document(size, "g5.xlarge")["instance"]["network_baseline_gbps"] == 2.5


def test_whatif_caps_storage_at_the_network(tmp_path: Path) -> None:
    """200 samples/s of 10 MB are 2 GB/s; a baseline of 5 Gbit/s carries 62.5 of them in a
    second.
    """
    doc = document(
        BASE, dataset__samples=1000, dataset__stored_bytes=10**10, dataset__sample_bytes_mean=1e7
    )
    doc["job"]["workload"]["accelerator"] = {"kind": "emulated", "step_time": 0.01}
    doc["job"]["ceilings"] = {
        name: {"samples_per_s": rate, "bytes_per_s": rate * 1e7}
        for name, rate in (("fetch", 200.0), ("prep", 500.0))
    }
    (tmp_path / "run.json").write_text(json.dumps(doc))
    for instance_type, fetch in (("g4dn.xlarge", 62.5), ("p5.48xlarge", 200)):
        found = processes.document("whatif", tmp_path, "--instance", instance_type)["what_if"]
        ceilings = found["job"]["ceilings"]
        assert ceilings["fetch"]["samples_per_s"] == pytest.approx(fetch)
        assert ceilings["prep"]["samples_per_s"] == 500
    assert "a2-highgpu-1g" in refused("whatif", tmp_path, "--instance", "a2-highgpu-1g")
