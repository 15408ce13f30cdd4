"""Many hosts, each a network namespace: what a run says of them, where the truth was planted.

The links end in a namespace that forwards, and S3 and NFS servers are in one of their own. The
kernel holds or delays single links. All hosts share the cores of this machine, so the planted
limits are low.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from iobench.data.generator.engine import generate
from iobench.record.run import TrainingRecord, load_run
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage
from tests.processes import Ended, in_process
from tests.servers.namespaces import Hosts, hosts, inside
from tests.servers.nfs import ganesha_v4
from tests.servers.s3 import BUCKET, ENVIRONMENT, rclone_server

MB = 1_000_000
SAMPLE = 100_000
LINK = 12 * MB
"""Bytes/s of a link: far below what the cores of a small machine can move for all hosts."""

CLEAN_RUNS = int(os.environ.get("IOBENCH_CLEAN_RUNS", "6"))
"""Runs of equal hosts; docs/hosts.md has the count of 40 of them."""

QUICK = ("--calibration", "0s", "--no-ablations", "--quiet", "--set", "loader.workers=1")
PLAIN = (
    *("--set", "accelerator.kind=null", "--set", "accelerator.sync=none", "--set", "batch_size=4"),
    *("--set", "reader.crop=null", "--set", "reader.decode=false", "--set", "epochs=1"),
)
OVER_S3 = ("--set", "storage.client=obstore")


@dataclass
class Cluster:
    """Hosts, and the URL of a dataset that all of them see."""

    net: Hosts
    url: str
    folder: Path
    more: tuple[str, ...] = ()
    runs: int = field(default=0)

    def run(
        self, *words: object, by_torchrun: bool = False, code: int = 0, **of: Any
    ) -> TrainingRecord:
        """One run on ``count`` hosts of ``net``, each of which ends with ``code``."""
        self.runs += 1
        results = self.folder / f"results-{self.runs}"
        whole = ("run", "demo", "--data", self.url, *QUICK, *PLAIN, *self.more, *words)
        whole += ("--results", results)
        if by_torchrun:
            ended = self.net.torchrun(*whole, **of).wait()
        else:
            ended = [command.wait() for command in self.net.forked(*whole, **of)]
        assert {each.code for each in ended} == {code}, errors_of(ended)
        assert not self.net.left()
        return record_in(results)


def errors_of(ended: Sequence[Ended]) -> str:
    return "\n".join(each.err[-2000:] for each in ended)


def record_in(results: Path) -> TrainingRecord:
    (found,) = results.glob("*/run.json")
    doc = load_run(found.parent)
    assert isinstance(doc, TrainingRecord)
    return doc


def rate(doc: TrainingRecord) -> float:
    """samples/s: the median over the repetitions."""
    rates = [each.samples_per_s for each in doc.job.repetitions]
    return statistics.median(each for each in rates if each is not None)


def rules(doc: TrainingRecord) -> dict[str, str]:
    """The evidence of each finding."""
    return {finding.rule: finding.evidence for finding in doc.findings}


def make(where: Path, **spec: Any) -> None:
    usual = {"sample_size": {"distribution": "constant", "mean": SAMPLE}, "format": "tar"}
    asked = {"name": "demo", "samples": 240, "samples_per_shard": 10, **usual, **spec}
    generate(build(DatasetSpec, asked, where="oracle"), LocalStorage(where), workers=0)


@contextmanager
def over_s3(net: Hosts, folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        with inside(net.server):
            server = stack.enter_context(rclone_server(folder / "s3", address="0.0.0.0"))
        make(folder / "s3" / "data" / BUCKET / "demo")
        endpoint = f"http://{net.server.address}:{server.port}"
        yield Cluster(net, f"s3://{BUCKET}/demo?endpoint={endpoint}", folder, OVER_S3)


@contextmanager
def over_nfs(net: Hosts, folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        address = net.server.address
        with inside(net.server):
            server = stack.enter_context(ganesha_v4(folder / "nfs", address=address))
        make(server.root / "demo")
        port = server.port
        url = f"nfs://{address}/export/demo?version=4&nfsport={port}&mountport={port}"
        yield Cluster(net, url, folder)


SERVED = {"s3": over_s3, "nfs": over_nfs}


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """``indirect`` parameters: the number of hosts, and what serves the dataset."""
    count, served = request.param
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with hosts(count, tmp_path) as net, SERVED[served](net, tmp_path) as found:
        yield found


# A slow host


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("cluster", [(3, "s3")], indirect=True)
def test_the_host_with_the_slow_link_is_named_and_no_other(cluster: Cluster, slow: int) -> None:
    for number, host in enumerate(cluster.net.hosts):
        cluster.net.hold(host, LINK / 2 if number == slow else LINK)
    doc = cluster.run("--repeat", 3, by_torchrun=True)
    evidence = rules(doc)["host.slow"]
    assert [n for n in range(3) if f"host {n} (h{n})" in evidence] == [slow], evidence


@pytest.mark.parametrize("cluster", [(2, "nfs")], indirect=True)
def test_the_host_with_the_slow_link_is_named_over_nfs_too(cluster: Cluster) -> None:
    for host, share in zip(cluster.net.hosts, (1.0, 0.5), strict=True):
        cluster.net.hold(host, LINK * share)
    evidence = rules(cluster.run("--repeat", 3, by_torchrun=True))["host.slow"]
    assert "host 1 (h1)" in evidence
    assert "host 0 (h0)" not in evidence


@pytest.mark.parametrize("held", [True, False], ids=["equal links", "no limit but the cores"])
@pytest.mark.parametrize("cluster", [(2, "s3")], indirect=True)
def test_of_equal_hosts_none_is_called_slow(cluster: Cluster, held: bool) -> None:
    if held:
        for host in cluster.net.hosts:
            cluster.net.hold(host, LINK)
    named = [
        evidence
        for _ in range(CLEAN_RUNS)
        if (evidence := rules(cluster.run("--repeat", 3)).get("host.slow"))
    ]
    print(f"{len(named)} of {CLEAN_RUNS} clean runs have named a host: {named}")
    assert len(named) <= CLEAN_RUNS / 20


# One warm host


@contextmanager
def kept_in_memory(folder: Path) -> Iterator[None]:
    """The kernel can't drop pages of these files, since this process has mapped and read them."""
    with ExitStack() as stack:
        for path in sorted(each for each in folder.rglob("*") if each.stat().st_size):
            if path.is_file():
                with path.open("rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                stack.enter_context(mapped)
                sum(mapped[at] for at in range(0, len(mapped), mmap.PAGESIZE))
        yield


@pytest.mark.parametrize("warm", [None, 1])
def test_one_warm_host_among_cold_ones_makes_the_run_invalid(
    tmp_path: Path, warm: int | None
) -> None:
    """Each host has its own copy of the dataset at the same place, and so its own page cache."""
    place = tmp_path / "data"
    place.mkdir()
    with hosts(2, tmp_path) as net, ExitStack() as stack:
        for number, host in enumerate(net.hosts):
            copy = tmp_path / f"copy-{number}"
            make(copy, samples=80)
            host.bottleneck[copy] = place
            if number == warm:
                stack.enter_context(kept_in_memory(copy))
        doc = Cluster(net, str(place), tmp_path).run(
            *("--repeat", 2), by_torchrun=True, code=0 if warm is None else 1
        )  # torchrun ends with 1, whatever the code of iobench is
    found = {each.rule: each for each in doc.findings}.get("cache.cold-residency")
    if warm is None:
        assert found is None
        assert doc.validity != "invalid"
    else:
        assert found.level == "invalid"
        assert "host 1 (h1)" in found.evidence
        assert "host 0 (h0)" not in found.evidence
        assert doc.validity == "invalid"


# Sums


@pytest.mark.parametrize("cluster", [(2, "s3")], indirect=True)
def test_the_sum_over_hosts_is_that_of_one_host_with_as_many_ranks(cluster: Cluster) -> None:
    """The storage's own link is the limit, for the two hosts as for the one."""
    larger(cluster, samples=2400, mean=40_000)
    cluster.net.hold(cluster.net.server, LINK)
    same = ("--repeat", 2, "--set", "accelerator.sync=step", "--accelerators-per-host")
    one = cluster.run(*same, 4, "--hosts", "here", count=1)
    two = cluster.run(*same, 2)
    ratio = rate(two) / rate(one)
    print(f"two hosts over one with as many ranks: {ratio:.3f}, {rate(two):.0f}, {rate(one):.0f}")
    assert [sum(epoch.bytes_read for epoch in each.epochs) for each in two.job.repetitions] == [
        sum(epoch.bytes_read for epoch in each.epochs) for each in one.job.repetitions
    ]
    assert ratio == pytest.approx(1, abs=0.05)


def larger(cluster: Cluster, *, samples: int, mean: int) -> None:
    """Let the cluster read a dataset beside which the starts and the queues of links are small."""
    cluster.url = cluster.url.replace("/demo?", "/larger?")
    place = cluster.folder / "s3" / "data" / BUCKET / "larger"
    size = {"distribution": "constant", "mean": mean}
    make(place, samples=samples, sample_size=size, samples_per_shard=50)


# The barrier and the clocks


def round_trip_s(net: Hosts) -> float:
    """The median of a byte's way between the first two hosts and back, by plain sockets."""
    with inside(net.hosts[0]):
        listener = socket.create_server(("0.0.0.0", 0))
    with listener:

        def answer() -> None:
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with accepted:
                while byte := accepted.recv(1):
                    accepted.send(byte)

        thread = threading.Thread(target=answer)
        thread.start()
        with inside(net.hosts[1]):
            asking = socket.create_connection((net.hosts[0].address, listener.getsockname()[1]))
        took = []
        with asking:
            asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(100):
                began = time.monotonic()
                asking.send(b"x")
                asking.recv(1)
                took.append(time.monotonic() - began)
        thread.join()
    return statistics.median(took)


@pytest.mark.parametrize("delay_s", [0.002, 0.008])
def test_a_barrier_costs_one_round_trip(tmp_path: Path, delay_s: float) -> None:
    make(tmp_path / "data", samples=80)
    with hosts(2, tmp_path, delay_s=delay_s) as net:
        trip_s = round_trip_s(net)
        cluster = Cluster(net, str(tmp_path / "data"), tmp_path)
        step = ("--set", "accelerator.sync=step", "--set", "batch_size=1")
        doc = cluster.run("--repeat", 1, *step, by_torchrun=True)
    (repetition,) = doc.job.repetitions
    waits_s = [each.sync_s * len(repetition.ranks) / repetition.steps for each in repetition.ranks]
    print(f"round trip {1e3 * trip_s:.2f} ms, barrier {1e3 * doc.job.barrier_s:.2f} ms")
    print(f"waits in a step of the run: {[f'{1e3 * each:.2f} ms' for each in waits_s]}")
    assert trip_s == pytest.approx(2 * delay_s, rel=0.25)
    assert doc.job.barrier_s / trip_s == pytest.approx(1, rel=0.2)
    assert max(waits_s) == pytest.approx(doc.job.barrier_s, rel=0.2)


@pytest.mark.parametrize("ahead_s", [1000, 0])
def test_the_offset_of_a_clock_is_found_within_its_error(tmp_path: Path, ahead_s: int) -> None:
    """Both hosts have the clock of one kernel, but one's is shifted by its time namespace."""
    make(tmp_path / "data", samples=80)
    with hosts(2, tmp_path) as net:
        net.hosts[1].ahead_s = ahead_s
        cluster = Cluster(net, str(tmp_path / "data"), tmp_path)
        doc = cluster.run("--repeat", 1, by_torchrun=True)
    host = doc.job.hosts[1]
    print(f"offset {host.offset_s:.9f} s, error {1e6 * host.offset_error_s:.1f} us")
    assert abs(host.offset_s - ahead_s) <= host.offset_error_s
    assert host.offset_error_s < 0.01
    (repetition,) = doc.job.repetitions
    assert repetition.samples == 80
    # A start that ignored the offset would be late by 1,000 s, or at once.
    assert all((each.start_skew_s or 0.0) < 1 for each in repetition.hosts)


# More hosts than were measured


@pytest.mark.parametrize("cluster", [(4, "s3")], indirect=True)
def test_a_fourth_host_is_predicted_from_one_to_three(cluster: Cluster) -> None:
    """Each host's training takes 4 MB/s, and the storage has 6 MB/s for all of them."""
    larger(cluster, samples=3000, mean=25_000)
    cluster.net.hold(cluster.net.server, 6 * MB)
    changed = ("kind=emulated", "step_time=12500us", "sync=step")
    words = [word for each in changed for word in ("--set", f"accelerator.{each}")]
    words += ["--set", "batch_size=2", "--repeat", "1", "--calibration", "2s"]
    folders = {}
    for count in (1, 2, 3, 4):
        cluster.run(*words, count=count)
        (folders[count],) = (cluster.folder / f"results-{cluster.runs}").iterdir()
    found = what_if([folders[n] for n in (1, 2, 3)], 4)
    measured = what_if(list(folders.values()), 4)["measured"]
    predicted = found["what_if"]["samples_per_s"]
    errors = {each["hosts"]: each["error"] for each in found["leave_one_out"]}
    print(f"measured {measured}, predicted {predicted}, errors of those left out {errors}")
    assert predicted["value"] == pytest.approx(measured[-1]["samples_per_s"], rel=0.05)


def what_if(folders: Sequence[Path], count: int) -> Any:
    """What ``iobench whatif`` answers for so many hosts."""
    code, out, err = in_process("whatif", *folders, "--hosts", count, "--json")
    assert code == 0, err
    return json.loads(out)
