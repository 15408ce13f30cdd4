"""Two machines on one host, end to end: storage of 50 and of 100 MB/s, and one core and two.

A disk is a file system in a file behind a loop device; the kernel holds its reads to a rate (cgroup
v1 blkio). Two of them in one cgroup are two storages of one host, which a command can read in
turns. The cores are those that a process may run on (its affinity), and are recorded as such. So
what ``ab``, ``compare``, ``cost`` and ``size`` have to find is known.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.plants import MB, Throttle, disk_of, on_cores, planted, throttle_for
from tests.processes import in_process, printed, wait_until

SLOW, FAST = 50 * MB, 100 * MB
SAMPLE = 200_000
DATA = f"""
name: demo
samples: 300
sample_size: {{distribution: constant, mean: {SAMPLE}}}
format: tar
samples_per_shard: 30
"""
COMPUTED = """
name: computed
samples: 400
sample_size: {distribution: constant, mean: 2000}
format: tar
samples_per_shard: 50
codec: burning:20
"""
"""Each sample takes 2 ms of CPU: one core prepares 500 of them in a second."""

WORKLOAD = """
name: machines
dataset: demo
batch_size: 4
epochs: 1
accelerator: {kind: "null"}
reader: {direct: true, crop: null, decode: false}
loader: {workers: 2, prefetch_factor: 1}
"""
SHORT = ("--repeat", "2", "--calibration", "0", "--no-ablations", "--quiet")

PRICES = """type,usd_per_hour,region,priced
small,0.10,here,2026-11-22
large,0.15,here,2026-11-22
"""
"""Twice the work for 1.5 times the price."""


@dataclass(frozen=True)
class Machines:
    """Two disks of one host, and a throttle that holds their reads to different rates."""

    slow: Path
    fast: Path
    throttle: Throttle
    scratch: Path

    def iobench(self, *words: object, cores: int | None = None) -> tuple[int, str, str]:
        """``iobench WORDS`` under the throttle: (exit code, stdout, stderr).

        ``cores``: it runs on the first ones of this host alone.
        """

        def work(scratch: Path) -> None:
            with ExitStack() as stack:
                if cores is not None:
                    stack.enter_context(on_cores(cores))
                ended = in_process(*words)
            (scratch / "ended").write_text(json.dumps(ended))

        self.throttle.run(work, self.scratch)
        code, out, err = json.loads((self.scratch / "ended").read_text())
        return code, out, err


@contextmanager
def disk(mount: Path) -> Iterator[Path]:
    """A new ext4 file system of 90 MB at ``mount``, in a file beside it.

    Skips the test where no loop device can be mounted.
    """
    image = mount.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(90 * MB)
    mount.mkdir()
    make = ("mkfs.ext4", "-q", "-F", "-m", "0", image)
    commands = (make, ("mount", "-o", "loop", image, mount))
    reason = "" if shutil.which("mkfs.ext4") else "mkfs.ext4 is missing"
    for words in () if reason else commands:
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        reason = reason or made.stderr.strip() or str(made.returncode or "")
    if reason:
        pytest.skip(f"no loop device: {reason}: the oracle of two machines did NOT run")
    unmount = ["umount", mount]
    try:
        yield mount
    finally:
        wait_until(
            lambda: not subprocess.run(unmount, capture_output=True, check=False).returncode,
            f"{mount} is still in use",
        )
        image.unlink()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    for name, text in (("demo", DATA), ("computed", COMPUTED), ("workload", WORKLOAD)):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "prices.csv").write_text(PRICES)
    with (
        planted(),
        disk(folder / "slow") as slow,
        disk(folder / "fast") as fast,
        throttle_for(slow) as throttle,
    ):
        throttle.hold(bytes_per_s=SLOW)
        replace(throttle, disk=disk_of(fast)).hold(bytes_per_s=FAST)
        for place in (slow, fast):
            printed(f"generate {folder}/demo.yaml --to {place}/data")
        printed(f"generate {folder}/computed.yaml --to {fast}/computed")
        yield Machines(slow, fast, throttle, folder)


def answer(machines: Machines, *words: object, code: int = 0) -> Any:
    """The JSON document of a command."""
    ended, out, err = machines.iobench(*words, "--json", "--quiet")
    assert ended == code, err
    return json.loads(out)


def ab(machines: Machines, one: Path, other: Path, *words: object, code: int = 0) -> Any:
    """The claim about samples/s."""
    document = answer(
        *(machines, "ab", one / "data", other / "data", *words),
        *("--workload", machines.scratch / "workload.yaml"),
        *("--max-rounds", 8, "--results", machines.scratch / "turns"),
        code=code,
    )
    (found,) = (each for each in document["claims"] if each["metric"] == "samples_per_s")
    return found


def test_in_turns_the_faster_storage_is_told(machines: Machines) -> None:
    found = ab(machines, machines.slow, machines.fast, "--fail-on", "5%")
    assert (found["answer"], found["better"]) == ("different", True)
    assert found["ratio"]["value"] == pytest.approx(FAST / SLOW, rel=0.1)
    assert found["ratio"]["low"] <= 1.03 * FAST / SLOW
    assert found["ratio"]["high"] >= 0.97 * FAST / SLOW


def test_in_turns_the_slower_storage_fails_the_gate(machines: Machines) -> None:
    found = ab(machines, machines.fast, machines.slow, "--fail-on", "5%", code=4)
    assert (found["answer"], found["better"]) == ("different", False)


def test_a_storage_does_not_differ_from_itself(machines: Machines) -> None:
    found = ab(machines, machines.slow, machines.slow)
    assert found["answer"] != "different"
    assert found["ratio"]["low"] <= 1 <= found["ratio"]["high"]


def runs(machines: Machines, data: Path, results: Path, cores: int, *words: object) -> None:
    answer_of = machines.iobench(
        *("run", machines.scratch / "workload.yaml", "--data", data, "--results", results),
        *(*SHORT, *words),
        cores=cores,
    )
    assert answer_of[0] == 0, answer_of[2]


@pytest.fixture(scope="module")
def by_cores(machines: Machines) -> Path:
    """Results of four runs on one core and four on two, in turns."""
    results = machines.scratch / "cores"
    for cores in (1, 2, 2, 1, 1, 2, 2, 1):
        runs(
            *(machines, machines.fast / "computed", results / f"{cores}", cores),
            *("--set", "dataset=computed", "--set", "reader.direct=false"),
        )
    return results


def test_hosts_of_one_core_and_of_two_are_compared(machines: Machines, by_cores: Path) -> None:
    (found,) = answer(machines, "compare", by_cores, "--by", "host.effective_cores")["comparisons"]
    claim = next(row["claim"] for row in found["rows"] if row["metric"] == "samples_per_s")
    assert (claim["answer"], claim["better"], claim["basis"]) == ("different", True, "runs")
    assert (claim["baseline_runs"], claim["candidate_runs"]) == (4, 4)
    assert claim["ratio"]["value"] == pytest.approx(2, rel=0.15)
    assert any(line.startswith("host.effective_cores: 1") for line in found["changes"])


def test_the_cheaper_work_is_ranked_first(machines: Machines, by_cores: Path) -> None:
    """The host with two cores does twice the work for 1.5 times the price."""
    (ranking,) = answer(
        *(machines, "cost", by_cores / "1", by_cores / "2", "--instance", "small"),
        *("--instance", "large", "--prices", machines.scratch / "prices.csv"),
    )["rankings"]
    first, second = ranking["options"]
    assert (first["machine"], second["machine"]) == ("large", "small")
    gained = first["figures"]["samples_per_usd"] / second["figures"]["samples_per_usd"]
    assert gained == pytest.approx(2 / 1.5, rel=0.15)


def test_hosts_grow_only_as_far_as_the_storage(machines: Machines) -> None:
    """Two hosts on a storage of 250 samples/s get no more than one, and cost twice as much."""
    results = machines.scratch / "storage"
    runs(machines, machines.slow / "data", results, 2, "--calibration", "2s")

    def figures(*words: object) -> Any:
        (ranking,) = answer(
            *(machines, "cost", results, *words),
            *("--instance", "small", "--prices", machines.scratch / "prices.csv"),
        )["rankings"]
        (option,) = ranking["options"]
        return option["figures"]

    one, two, grown = figures(), figures("--hosts", 2), figures("--hosts", 2, "--storage-grows")
    assert one["samples_per_s"] == pytest.approx(SLOW / SAMPLE, rel=0.1)
    assert two["storage_limits"]
    # Short windows of the calibration may begin with the burst that the kernel allows.
    assert two["samples_per_s"] == pytest.approx(SLOW / SAMPLE, rel=0.25)
    assert two["samples_per_usd"] < 0.65 * one["samples_per_usd"]
    assert grown["if_storage_grows"]
    assert grown["samples_per_s"] == pytest.approx(2 * one["samples_per_s"], rel=0.01)


def test_size_says_which_of_the_two_to_buy(machines: Machines) -> None:
    """An accelerator that takes 70 MB/s is fed by the storage that ``size`` says is enough."""
    emulated = (
        *("--set", "accelerator.kind=emulated"),
        *("--set", f"accelerator.step_time={4 * SAMPLE / (70 * MB):.6f}"),
    )
    workload = machines.scratch / "workload.yaml"
    sized = answer(
        *(machines, "size", workload, "--accelerators", 1, *emulated),
        *("--set", f"dataset={machines.scratch / 'demo.yaml'}"),
    )
    assert SLOW < sized["buy_bytes_per_s"] <= FAST
    fed = {}
    for disk in (machines.slow, machines.fast):
        document = answer(
            *(machines, "run", workload, "--data", disk / "data", *emulated, *SHORT[:4]),
            *("--no-ablations", "--results", machines.scratch / "sized"),
        )
        metric = document["metrics"]["accelerator_utilization_sustained"]
        fed[disk] = metric["median"] >= sized["required_accelerator_utilization"]
    assert fed == {machines.slow: False, machines.fast: True}


def test_two_equal_storages_are_equal_and_one_that_is_a_tenth_slower_is_slower(
    tmp_path: Path, make_dataset: Any
) -> None:
    """Runs on links of 20 and of 18 MB/s, in turns, so that the machine's drift hits all alike."""
    _, data = make_dataset(samples=400, format="tar", samples_per_shard=25)
    settings = "batch_size=20 epochs=1 loader.workers=1 accelerator.step_time=1ms"
    settings += " reader.decode=false reader.crop=null"
    words = " ".join(f"--set {each}" for each in settings.split())
    shares = {"base": 1.0, "again": 1.0, "slower": 0.9}
    for _ in range(4):
        for name, share in shares.items():
            url = f"throttled+{data}?bandwidth={int(share * 20 * MB)}"
            how = "--repeat 2 --calibration 0"
            printed(f"run demo --data {url} {how} {words} --results {tmp_path}/{name}")

    def difference(one: str, other: str, more: str = "", code: int = 0) -> Any:
        sides = f"{tmp_path}/{one} {tmp_path}/{other}"
        done = in_process(*f"compare {sides} --metric samples_per_s --json {more}".split())
        assert done[0] == code, done
        (found,) = json.loads(done[1])["comparisons"]
        return found

    assert difference("base", "again", "--fail-on 5%")["difference"] == "equal"
    found = difference("base", "slower", "--fail-on 5%", code=4)
    assert found["difference"] == "worse"
    (row,) = found["rows"]
    ratio = row["claim"]["ratio"]
    assert ratio["value"] == pytest.approx(0.9, abs=0.03)
    assert ratio["low"] <= 0.9 + 0.02
    assert ratio["high"] >= 0.9 - 0.02
    assert difference("slower", "base")["difference"] == "better"
