"""What ``size`` and ``whatif`` make of a model's loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.ask.capacity.loads import load_costs, load_need, loads_at
from iobench.base.errors import UsageError
from iobench.base.units import Quantity
from iobench.record.run import RUN_FILE, ModelLoadRecord
from iobench.settings.instances import Instance
from tests.processes import document, printed, refused
from tests.unit.test_model_load import GB, each_round, plain, record

RATE = 0.5e9


def half_of_it_storage() -> ModelLoadRecord:
    """Loads of 1 GB in 2 s, or in 1 s without the storage, which delivers 0.5 GB/s."""
    rounds = [*each_round(2.0, 2.0, 2.0), *each_round(1.0, 1.0, 1.0, left_out="storage")]
    more = each_round(5.0, 5.0, 5.0, replicas=4)
    return record(rounds + more, spec={"replicas": [1, 4]}, plain=plain(RATE) + plain(RATE, 4))


def test_without_a_run_the_storage_has_all_the_time() -> None:
    need = load_need("m", 10 * GB, replicas=8, ready_s=20)
    assert (need.storage_bytes_per_s, need.host_bytes_per_s) == (4e9, 0.5e9)
    assert (need.rest_s, need.measured_bytes_per_s) == (0, None)


def test_what_a_load_takes_besides_is_taken_from_the_time() -> None:
    """A model of twice the bytes takes twice as long beside the storage."""
    run = half_of_it_storage().job
    need = load_need("m", 2 * GB, replicas=8, ready_s=10, engine_start_s=4, run=run)
    assert need.rest_s == pytest.approx(2)
    assert need.storage_bytes_per_s == pytest.approx(8 * 2e9 / 4)
    assert need.measured_bytes_per_s == RATE
    assert need.measured_ready_s == pytest.approx(4 + 2 + 8 * 2e9 / RATE)


def test_the_hosts_cost_what_their_hours_cost() -> None:
    instance = Instance(type="x", usd_per_hour=36, network_baseline_gbps=8)
    need = load_need("m", 10 * GB, replicas=8, ready_s=20, instance=instance)
    assert need.loading_usd == pytest.approx(8 * 36 * 20 / 3600)
    assert need.network_bytes_per_s == 1e9
    assert (
        load_need("m", GB, replicas=8, ready_s=20, instance=Instance(type="y")).loading_usd is None
    )


def test_a_start_costs_what_its_hosts_cost_until_it_is_ready() -> None:
    """Two hosts of 36 USD an hour, of which one has a price as a spot instance: 2 s and 4 s."""
    rounds = [*each_round(2.0, 2.0, 4.0), *each_round(8.0, 8.0, 8.0, replicas=4)]
    run = record(rounds, spec={"replicas": [1, 4], "engine_start_s": 8.0}).job
    one = Instance(type="x", usd_per_hour=36, spot_usd_per_hour=18)
    two = Instance(type="y", usd_per_hour=36)
    found = load_costs("r", run, [(1, one), (1, two)])
    assert {each.kind for each in found} == {"on demand"}
    usd = {each.replicas: (each.usd, each.usd_low, each.usd_high) for each in found}
    assert usd[1] == pytest.approx((0.02 * 10, 0.02 * 10, 0.02 * 12))
    assert usd[4] == pytest.approx((0.02 * 16,) * 3)
    spot = load_costs("r", run, [(3, one)])
    assert {(each.kind, each.machine) for each in spot} == {
        (kind, "3 x x") for kind in ("on demand", "spot")
    }
    assert min(each.usd for each in spot) == pytest.approx(3 * 18 * 10 / 3600)
    assert load_costs("r", run, [(1, Instance(type="z"))]) == []


def test_the_command_prices_loads_beside_trainings() -> None:
    runs = Path(__file__).parents[1] / "golden/0.1.0/runs"
    words = f"cost {runs}/model-load {runs}/throttled --host-price-per-hour 3.6"
    found = document(words)
    assert {each["model"] for each in found["loads"]} == {"qwen3-0.6b"}
    assert len(found["rankings"]) == 1
    first = min(found["loads"], key=lambda each: each["usd"])
    assert first["usd"] == pytest.approx(0.001 * first["seconds"])
    for form in ("text", "markdown", "csv", "html"):
        assert "qwen3-0.6b" in printed(f"{words} --format {form}") or form == "csv"
    assert "price" in refused(f"cost {runs}/model-load")


@pytest.mark.parametrize("ready_s", [5.0, 6.0])
def test_no_rate_is_enough_where_no_time_is_left(ready_s: float) -> None:
    run = half_of_it_storage().job
    need = load_need("m", 2 * GB, replicas=8, ready_s=ready_s, engine_start_s=4, run=run)
    assert (need.storage_bytes_per_s, need.host_bytes_per_s) == (None, None)


@pytest.mark.parametrize("asked", [Quantity(2, relative=True), Quantity(2 * RATE)])
def test_another_bandwidth_changes_the_storages_part_alone(asked: Quantity) -> None:
    found = loads_at(half_of_it_storage().job, asked)
    assert found.bandwidth == 2 * RATE
    times = {each.replicas: each.predicted_s for each in found.loads}
    assert times == {1: pytest.approx(1 + 1 / 2), 4: pytest.approx(1 + 4 / 2)}


def test_nothing_is_predicted_of_a_load_whose_parts_are_not_known() -> None:
    with pytest.raises(UsageError):
        loads_at(record(each_round(2.0, 2.0), plain=plain(RATE)).job, Quantity(1e9))
    with pytest.raises(UsageError):
        loads_at(record(each_round(2.0, 2.0)).job, Quantity(1e9))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / RUN_FILE).write_text(half_of_it_storage().model_dump_json())
    return tmp_path


def test_by_the_command_line(run: Path) -> None:
    asked = f"size llama3-70b-weights --replicas 64 --ready 60s --from {run}"
    found = document(asked)
    # 64 x 141.1 GB, of which each takes 141.1 s beside the storage
    assert found["storage_bytes_per_s"] is None
    assert document(asked.replace("60s", "10m"))["storage_bytes_per_s"] > 64 * 141e9 / 600
    assert document(f"whatif {run} --storage-bandwidth 2x")["bandwidth"] == 2 * RATE
    for words in (f"{asked} --details", f"whatif {run} --storage-bandwidth 3x --details"):
        assert printed(words)
