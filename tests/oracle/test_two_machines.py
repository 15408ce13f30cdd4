"""Two machines on one host: one core and two, and storages of known speed.

The cores are those that a process may run on (its affinity), and are recorded as such. So what
``compare`` and ``cost`` have to find is known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.plants import MB, on_cores, planted
from tests.processes import document, in_process, printed

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
dataset: computed
batch_size: 4
epochs: 1
accelerator: {kind: "null"}
reader: {direct: false, crop: null, decode: false}
loader: {workers: 2, prefetch_factor: 1}
"""

PRICES = """type,usd_per_hour,region,priced
small,0.10,here,2026-11-22
large,0.15,here,2026-11-22
"""
"""Twice the work for 1.5 times the price."""


@pytest.fixture
def by_cores(tmp_path: Path) -> Path:
    """Results of four runs on one core and four on two, in turns."""
    (tmp_path / "computed.yaml").write_text(COMPUTED)
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    with planted():
        printed(f"generate {tmp_path}/computed.yaml --to {tmp_path}/data")
        for cores in (1, 2, 2, 1, 1, 2, 2, 1):
            with on_cores(cores):
                printed(
                    f"run {tmp_path}/workload.yaml --data {tmp_path}/data --repeat 2 "
                    f"--calibration 0 --no-ablations --results {tmp_path}/results/{cores}"
                )
    return tmp_path / "results"


def test_hosts_of_one_core_and_of_two_are_compared_and_ranked_by_cost(by_cores: Path) -> None:
    """The host with two cores does twice the work for 1.5 times the price."""
    (found,) = document(f"compare {by_cores} --by host.effective_cores")["comparisons"]
    claim = next(row["claim"] for row in found["rows"] if row["metric"] == "samples_per_s")
    assert (claim["answer"], claim["better"], claim["basis"]) == ("different", True, "runs")
    assert (claim["baseline_runs"], claim["candidate_runs"]) == (4, 4)
    assert claim["ratio"]["value"] == pytest.approx(2, rel=0.15)
    assert any(line.startswith("host.effective_cores: 1") for line in found["changes"])
    prices = by_cores / "prices.csv"
    prices.write_text(PRICES)
    machines = f"--instance small --instance large --prices {prices}"
    (ranking,) = document(f"cost {by_cores}/1 {by_cores}/2 {machines}")["rankings"]
    first, second = ranking["options"]
    assert (first["machine"], second["machine"]) == ("large", "small")
    gained = first["figures"]["samples_per_usd"] / second["figures"]["samples_per_usd"]
    assert gained == pytest.approx(2 / 1.5, rel=0.15)


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
