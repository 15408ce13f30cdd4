"""Two machines on one host, end to end: storage of 50 and of 100 MB/s, and one core and two.

The disks are held by the kernel and the cores are taken away, so what ``ab``, ``compare``, ``cost``
and ``size`` have to find is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.machines import Machines, two_machines
from tests.oracle.plants import MB, planted
from tests.processes import in_process

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
SHORT = ("--repeat", "2", "--calibration", "0", "--no-knockouts", "--quiet")

PRICES = """type,usd_per_hour,region,priced
small,0.10,here,2026-11-22
large,0.15,here,2026-11-22
"""
"""Twice the work for 1.5 times the price."""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    for name, text in (("demo", DATA), ("computed", COMPUTED), ("workload", WORKLOAD)):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "prices.csv").write_text(PRICES)
    with planted(), two_machines(folder, size=90 * MB, slow=SLOW, fast=FAST) as found:
        for place, spec in (
            (found.slow / "data", "demo"),
            (found.fast / "data", "demo"),
            (found.fast / "computed", "computed"),
        ):
            code, _, err = in_process("generate", folder / f"{spec}.yaml", "--to", place)
            assert code == 0, err
        yield found


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
        *("--max-turns", 8, "--results", machines.scratch / "turns"),
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
            *("--no-knockouts", "--results", machines.scratch / "sized"),
        )
        metric = document["metrics"]["accelerator_utilization_sustained"]
        fed[disk] = metric["median"] >= sized["required_accelerator_utilization"]
    assert fed == {machines.slow: False, machines.fast: True}
