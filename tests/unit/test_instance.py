"""Which instance this is, prices, and what a sample costs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analyse.compare.cost import Terms, cost, samples_per_usd
from iobench.cli.main import main
from iobench.errors import SpecError, UnknownNameError, UsageError
from iobench.measure import instance
from iobench.measure.instance import AZURE_TAG, OPT_IN, CloudInstance, recognise
from iobench.report.cost import sections
from iobench.report.render_text import render_text
from iobench.schema.instances import (
    Instance,
    builtin,
    find_instance,
    priced_at,
    read_prices,
)
from iobench.schema.job import Layout
from iobench.schema.record import TrainingRecord
from tests.servers.listener import Listener, listener
from tests.unit.test_compare import BASE, FAST, document

__all__ = ["listener"]

ALLOWED = {OPT_IN: "1"}

# Recognition


class Service(BaseHTTPRequestHandler):
    """A metadata service as strict as the real ones: without its header it refuses."""

    asked: list[str] = []  # noqa: RUF012

    def _answer(self, text: str | None) -> None:
        self.asked.append(self.path)
        self.send_response(200 if text else 403)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def do_PUT(self) -> None:
        self._answer(
            "a-token" if self.headers.get("X-aws-ec2-metadata-token-ttl-seconds") else None
        )

    def do_GET(self) -> None:
        if self.path == "/latest/meta-data/instance-type":
            self._answer(
                "p3.2xlarge" if self.headers.get("X-aws-ec2-metadata-token") == "a-token" else None
            )
        elif self.path.startswith("/computeMetadata"):
            self._answer(
                "projects/123456789/machineTypes/a2-highgpu-1g"
                if self.headers.get("Metadata-Flavor") == "Google"
                else None
            )
        else:
            self._answer("Standard_NC4as_T4_v3" if self.headers.get("Metadata") == "true" else None)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def service() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Service)
    Service.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def firmware(tmp_path: Path, **strings: str) -> Path:
    for name, text in strings.items():
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def seen(dmi: Path, url: str, **environment: str) -> CloudInstance | None:
    return recognise(dmi, environment, aws=url, gcp=url, azure=url)


def test_what_speaks_no_http_is_no_answer(tmp_path: Path) -> None:
    dmi = firmware(tmp_path, product_name="Google Compute Engine")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as caller:
                caller.sendall(b"SSH-2.0-other\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        found = seen(dmi, f"http://127.0.0.1:{listener.getsockname()[1]}", **ALLOWED)
        thread.join()
    assert found == CloudInstance("gcp", None, "the metadata service did not answer")


def test_nitro_says_its_type_itself(tmp_path: Path, service: str) -> None:
    dmi = firmware(tmp_path, sys_vendor="Amazon EC2", product_name="g5.2xlarge")
    assert seen(dmi, service, **ALLOWED) == CloudInstance("aws", "g5.2xlarge", "dmi")
    assert Service.asked == []


@pytest.mark.parametrize(
    ("strings", "found"),
    [
        (
            {"bios_vendor": "Amazon EC2", "product_name": "HVM domU"},
            CloudInstance("aws", "p3.2xlarge", "metadata service"),
        ),
        (
            {"product_name": "Google Compute Engine"},
            CloudInstance("gcp", "a2-highgpu-1g", "metadata service"),
        ),
        (
            {"chassis_asset_tag": AZURE_TAG},
            CloudInstance("azure", "Standard_NC4as_T4_v3", "metadata service"),
        ),
    ],
)
def test_the_metadata_service_is_asked_where_the_firmware_names_the_cloud(
    tmp_path: Path,
    service: str,
    strings: dict[str, str],
    found: CloudInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        instance, "TIMEOUT_S", 60.0
    )  # this machine may be busier than a metadata service
    dmi = firmware(tmp_path, **strings)
    assert seen(dmi, service, **ALLOWED) == found
    assert "123456789" not in repr(found)
    gone = seen(dmi, "http://127.0.0.1:9", **ALLOWED)
    assert gone is not None
    assert (gone.type, gone.how) == (None, "the metadata service did not answer")


def test_another_machine_asks_nobody(tmp_path: Path, service: str) -> None:
    dmi = firmware(tmp_path, sys_vendor="QEMU", product_name="Standard PC")
    assert seen(dmi, service, **ALLOWED) is None
    assert seen(tmp_path / "nothing", service, **ALLOWED) is None
    assert Service.asked == []


@pytest.mark.parametrize("environment", [{}, {OPT_IN: ""}, {OPT_IN: "0"}])
@pytest.mark.parametrize(
    ("provider", "strings"),
    [
        ("aws", {"bios_vendor": "Amazon EC2", "product_name": "HVM domU"}),
        ("gcp", {"product_name": "Google Compute Engine"}),
        ("azure", {"chassis_asset_tag": AZURE_TAG}),
    ],
)
def test_nobody_is_asked_unless_the_user_allows_it(
    provider: str,
    strings: dict[str, str],
    environment: dict[str, str],
    tmp_path: Path,
    service: str,
) -> None:
    found = seen(firmware(tmp_path, **strings), service, **environment)
    assert found is not None
    assert (found.provider, found.type) == (provider, None)
    assert OPT_IN in found.how
    assert Service.asked == []


def test_no_redirection_is_followed(tmp_path: Path, listener: Listener, service: str) -> None:
    listener.answer = (
        b"HTTP/1.1 302 CloudInstance\r\nContent-Length: 0\r\nLocation: "
        + f"{service}/computeMetadata/v1/instance/machine-type\r\n\r\n".encode()
    )
    dmi = firmware(tmp_path, product_name="Google Compute Engine")
    assert seen(dmi, listener.url, **ALLOWED) == CloudInstance(
        "gcp", None, "the metadata service did not answer"
    )
    assert len(listener.requests) > 0
    assert Service.asked == []


# The table


def test_the_table_is_dated_sourced_and_sound() -> None:
    rows = builtin()
    assert len(rows) >= 55
    assert {row.provider for row in rows.values()} == {"aws", "gcp", "azure"}
    for row in rows.values():
        assert bool(row.priced) == bool(row.usd_per_hour)
        assert (row.usd_per_hour is None) == (not row.sources), row.type
        assert row.accelerators == 0 or row.accelerator
        if row.network_baseline_gbps and row.network_peak_gbps:
            assert row.network_baseline_gbps <= row.network_peak_gbps
    assert rows["g5.xlarge"].network_bytes_per_s == pytest.approx(
        312.5e6
    )  # the baseline, not "up to 10 Gigabit"


def test_unknown_instances_and_absurd_prices() -> None:
    with pytest.raises(UnknownNameError, match=r"g5\.2xlarge"):
        find_instance("g5.2xlage")
    for price in (0.0, -1.0, 1e6, float("nan")):
        with pytest.raises(UsageError, match="--host-price-per-hour"):
            priced_at("x", price, None, None)


def test_prices_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("type,usd_per_hour\ng5.2xlarge,0.99\nmy-box,0.10\n")
    prices = read_prices(mine)
    assert find_instance("my-box", prices).usd_per_hour == 0.10
    own = find_instance("g5.2xlarge", prices)
    assert (own.usd_per_hour, own.accelerator, own.priced) == (0.99, "A10G", "of mine.csv")
    sky = tmp_path / "sky.csv"
    sky.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,Price,SpotPrice,Region\nbig,H100,2.0,8.0,9.5,3.1,r\ng5.2xlarge,,,4,,1.0,r\n"
    )
    assert read_prices(sky)["big"] == Instance(
        type="big",
        accelerator="H100",
        accelerators=2,
        cores=8,
        usd_per_hour=9.5,
        spot_usd_per_hour=3.1,
        region="r",
        priced="of sky.csv",
        spot_priced="of sky.csv",
    )
    spot = find_instance("g5.2xlarge", read_prices(sky))
    assert (spot.usd_per_hour, spot.priced) == (
        builtin()["g5.2xlarge"].usd_per_hour,
        builtin()["g5.2xlarge"].priced,
    )  # not the list's
    assert (spot.spot_usd_per_hour, spot.spot_priced) == (1.0, "of sky.csv")
    stated = priced_at("g5.2xlarge", 2.0, None, spot)
    assert (stated.priced[:6], stated.spot_priced) == ("stated", "of sky.csv")
    wrong = {
        "type,usd_per_hour\nx,1,2\n": "line 2 has more cells",
        "type,usd_per_hour,cores\nx,1,inf\n": "line 2",
    }
    wrong |= {
        "a,b\n1,2\n": "columns",
        "type,usd_per_hour\nx,-3\n": "line 2",
        "type,usd_per_hour\nx,lots\n": "line 2",
        "": "no prices",
    }
    for text, words in wrong.items():
        mine.write_text(text)
        with pytest.raises(SpecError, match=words):
            read_prices(mine)


# Cost


def test_published_examples() -> None:
    """ResNet-50 on a CPU instance and on a GPU instance, and a rate at a spot price (printed there
    as 1135.76, in thousands).
    """
    cpu, gpu = samples_per_usd(9.12, 0.357), samples_per_usd(340, 1.212)
    assert gpu / cpu == pytest.approx(11, rel=0.01)
    assert samples_per_usd(40.73, 0.1291) == pytest.approx(1_135_755, abs=50)


def run_of(rates: list[float], **changes: Any) -> TrainingRecord:
    return TrainingRecord.model_validate(document(rates, dataset__samples=1000, **changes))


MACHINE = Instance(type="m", usd_per_hour=2.0, spot_usd_per_hour=0.5, priced="2026-01-01")


@given(
    rate=st.floats(0.1, 1e6),
    price=st.floats(0.01, 100),
    hosts=st.integers(1, 64),
    epochs=st.integers(1, 100),
)
def test_money_is_time(rate: float, price: float, hosts: int, epochs: int) -> None:
    """A job's dollars are its samples over samples per dollar, however many hosts do it at full
    efficiency.
    """
    found = cost(
        run_of([rate] * 6),
        Instance(type="m", usd_per_hour=price),
        Terms(hosts=hosts, epochs=epochs),
    )
    assert found is not None
    (paid,) = found.prices
    assert paid.job_usd == pytest.approx(epochs * 1000 / paid.samples_per_usd)
    assert paid.job_s == pytest.approx(epochs * 1000 / (rate * hosts))
    assert paid.usd_per_million_samples * paid.samples_per_usd == pytest.approx(1e6)


def test_what_is_lost_and_what_is_paid_for_waiting() -> None:
    doc = run_of(BASE)
    for repetition in doc.job.repetitions:
        repetition.accelerator_utilization_strict = 0.75
    found = cost(
        doc,
        MACHINE,
        Terms(
            hosts=2,
            efficiency=0.9,
            interruptions_per_hour=0.1,
            checkpoint_every_s=1200,
            restart_s=600,
        ),
    )
    assert found is not None
    demand, spot = found.prices
    assert demand.waiting_usd_per_hour == pytest.approx(2 * 2.0 * 0.25)
    assert demand.lost_share == 0
    assert spot.lost_share == pytest.approx(
        2 * 0.1 * (600 + 600) / 3600
    )  # an interruption of one stops both
    assert spot.samples_per_s == pytest.approx(2 * 0.9 * 100.1 * (1 - spot.lost_share), rel=0.01)
    assert spot.samples_per_usd_low < spot.samples_per_usd < spot.samples_per_usd_high


def test_a_layout_of_its_own_is_paid_once() -> None:
    """1000 samples were converted in 20 s; an epoch of 5000 takes 100 s, and 10 epochs at 100/s on
    2 hosts 250 s.
    """
    doc = run_of([100.0] * 6)
    doc.job.loader.layout = Layout(seconds=20.0, bytes=1, files=1, made_earlier=False)
    found = cost(doc, MACHINE, Terms(hosts=2, epochs=10, samples=5000))
    assert found is not None
    assert found.preparation_s == 100
    assert found.prices[0].job_s == pytest.approx(100 + 250)
    assert found.prices[0].job_usd == pytest.approx(350 / 3600 * 2 * 2.0)


def test_how_many_hosts_for_a_deadline() -> None:
    """100/s and 3,600,000 samples: one host takes 10 h. In 1 h, n hosts at 80 %: 10 / 0.8 n <= 1
    from 13 on.
    """
    doc = run_of([100.0] * 6)
    found = cost(doc, MACHINE, Terms(epochs=1, samples=3_600_000, deadline_s=3600, efficiency=0.8))
    assert found is not None
    late = found.prices[0]
    assert (late.within_deadline, late.hosts_in_time) == (False, 13)
    assert late.in_time_usd == pytest.approx(10 / 0.8 * 2.0)  # host hours x USD
    found = cost(
        doc, MACHINE, Terms(hosts=13, epochs=1, samples=3_600_000, deadline_s=3600, efficiency=0.8)
    )
    assert found is not None
    assert (found.prices[0].within_deadline, found.prices[0].hosts_in_time) == (True, None)
    found = cost(doc, MACHINE, Terms(epochs=1, samples=3_600_000, deadline_s=1, efficiency=0.8))
    assert found is not None
    assert (found.prices[0].within_deadline, found.prices[0].hosts_in_time) == (False, None)


def test_all_time_lost_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """60 interruptions an hour that cost 35 minutes each: nothing is trained for any money, and no
    deadline is met.
    """
    (tmp_path / "run.json").write_text(json.dumps(document(BASE, dataset__samples=1000)))
    words = [
        "cost",
        str(tmp_path),
        "--host-price-per-hour",
        "1",
        "--host-spot-price-per-hour",
        "0.5",
        "--interruptions-per-hour",
        "60",
        "--epochs",
        "1",
        "--deadline",
        "9h",
    ]
    shown = _text(capsys, words)
    assert "nothing is trained" in shown
    spot = next(line for line in shown.splitlines() if line.startswith("  spot  "))
    assert (spot.split()[-1], "0.5" in spot.split(), "stated on" in spot) == ("-", True, True)
    assert "100.0 % of the time is lost" in shown
    assert "the job never ends" in shown
    for form in ("csv", "markdown"):
        _text(capsys, [*words, "--format", form])
    (one,) = json.loads(_text(capsys, [*words, "--json"]), parse_constant=pytest.fail)["costs"]
    assert (one["prices"][1]["usd_per_million_samples"], one["prices"][1]["within_deadline"]) == (
        None,
        False,
    )


def test_cost_as_a_user_calls_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rates in (("a", BASE), ("b", FAST)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(
            json.dumps(document(rates, dataset__samples=1000, host__instance_type="g5.2xlarge"))
        )
    both = ["cost", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main([*both, "--json"]) == 0
    slow, fast = json.loads(capsys.readouterr().out)["costs"]
    assert slow["instance"]["type"] == "g5.2xlarge"  # as recorded
    assert fast["prices"][0]["samples_per_usd"] / slow["prices"][0][
        "samples_per_usd"
    ] == pytest.approx(1.2, rel=0.01)
    for form in ("text", "csv", "markdown"):
        assert (
            main([*both, "--format", form, "--epochs", "2", "--deadline", "1s", "--budget", "100"])
            == 0
        )
        shown = capsys.readouterr().out
        assert "g5.2xlarge" in shown
        assert "2026-11-20" in shown  # every price has its date
        assert "us-east" in shown  # and its place
    assert (
        main(
            [
                *both,
                "--instance",
                "4xg5.2xlarge",
                "--instance",
                "p4d.24xlarge",
                "--efficiency",
                "0.5",
                "--json",
            ]
        )
        == 0
    )
    small, big = json.loads(capsys.readouterr().out)["costs"]
    assert [(one["hosts"], one["instance"]["type"]) for one in (small, big)] == [
        (4, "g5.2xlarge"),
        (1, "p4d.24xlarge"),
    ]
    assert small["prices"][0]["samples_per_s"] == pytest.approx(
        4 * 0.5 * small["samples_per_s"]["median"]
    )
    assert big["prices"][0]["samples_per_s"] == big["samples_per_s"]["median"]
    assert "TOO LATE" in _text(capsys, [*both, "--epochs", "2", "--deadline", "1s"])
    for words, told in (
        (["--instance", "g5.2xlage"], "g5.2xlarge"),
        (["--host-price-per-hour", "-1"], "--host-price-per-hour"),
        (["--host-price-per-hour", "1e9"], "--host-price-per-hour"),
        (["--instance", "g5.4xlarge"], "g5.4xlarge"),
        (["--instance", "0xg5.2xlarge"], "0xg5.2xlarge"),
        (["--instance", "g5.2xlarge"] * 3, "--instance"),
        (["--budget", "0"], "--budget"),
        (["--hosts", "0"], "--hosts"),
        (["--efficiency", "2"], "--efficiency"),
        (["--prices", str(tmp_path / "none.csv")], "none.csv"),
    ):
        assert main([*both, *words]) == 2, words
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert told in shown.err


def _text(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


# Ceilings of an instance


def test_size_says_whether_the_network_keeps_up(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["size", "unet3d-h100", "--accelerators", "8"]
    small = " ".join(_text(capsys, [*words, "--instance", "g5.xlarge"]).split())
    assert "network NOT enough" in small
    assert "keeps up 2.5 Gb/s" in small  # the baseline, not the burst of 10
    assert "so 8 hosts are needed" in small
    assert "network enough" in _text(capsys, [*words, "--instance", "p5.48xlarge"])
    assert main([*words, "--instance", "g5.xlarg"]) == 2
    assert main([*words, "--instance", "g5.xlarge", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["instance"]["network_baseline_gbps"] == 2.5


def test_whatif_caps_storage_at_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert main(["whatif", str(tmp_path), "--instance", "g4dn.xlarge", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["what_if"]["job"]["ceilings"]["fetch"]["samples_per_s"] == pytest.approx(62.5)
    assert found["what_if"]["job"]["ceilings"]["prep"]["samples_per_s"] == 500
    assert main(["whatif", str(tmp_path), "--instance", "p5.48xlarge", "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["what_if"]["job"]["ceilings"]["fetch"]["samples_per_s"]
        == 200
    )
    assert main(["whatif", str(tmp_path), "--instance", "a2-highgpu-1g"]) == 2
    assert "a2-highgpu-1g" in capsys.readouterr().err


def test_a_price_of_another_machine_than_the_measured_one_says_so() -> None:
    doc = run_of([100.0] * 6)
    assert cost(doc, Instance(type="m", usd_per_hour=1.0), Terms()).notes == ()  # type: ignore[union-attr]
    doc.host.cores = 2
    found = cost(
        doc,
        Instance(type="m", cores=8, accelerators=8, accelerator="H100", usd_per_hour=1.0),
        Terms(),
    )
    assert found is not None
    assert "2 cores" in found.notes[0]
    assert "8 accelerators" in found.notes[1]
    assert "the run had 2 cores, m has 8" in render_text(sections([found], []))
