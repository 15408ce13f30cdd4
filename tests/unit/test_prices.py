"""Prices of instances: the table that is shipped, and files of users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench.base.errors import SpecError, UsageError
from iobench.settings.instances import Instance, builtin, find_instance, priced_at, read_prices

SKY = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,Price,SpotPrice,Region,AvailabilityZone\n"
    "big,H100,2.0,8.0,9.5,3.1,us-east-1,us-east-1a\n"
    "big,H100,2.0,8.0,9.5,2.9,us-east-1,us-east-1b\n"
    "big,H100,2.0,8.0,12,6,eu-west-1,eu-west-1a\n"
    "g5.2xlarge,,,4,,1.0,eu-west-1,eu-west-1a\n"
)


@pytest.fixture
def sky(tmp_path: Path) -> Path:
    path = tmp_path / "sky.csv"
    path.write_text(SKY)
    return path


def test_every_price_of_the_table_has_date_region_source_and_currency() -> None:
    for row in builtin().values():
        known = (bool(row.priced), bool(row.region), bool(row.source))
        assert known == (bool(row.usd_per_hour),) * 3, row.type
        assert row.currency == "USD"


def test_a_spot_price_above_the_one_on_demand_is_refused() -> None:
    known = find_instance("g5.2xlarge")
    assert priced_at("g5.2xlarge", None, 1.212, known).spot_usd_per_hour == 1.212
    with pytest.raises(UsageError, match=r"g5\.2xlarge"):
        priced_at("g5.2xlarge", None, 1.3, known)
    elsewhere = known.model_copy(update={"spot_usd_per_hour": 1.3, "spot_region": "ap-south-1"})
    assert priced_at("g5.2xlarge", None, None, elsewhere) == elsewhere  # another region's price


def test_prices_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    rows = "type,usd_per_hour,priced\ng5.2xlarge,0.99,2026-10-01\nmy-box,0.10,\n"
    mine.write_text(rows, encoding="utf-8-sig")  # as spreadsheets write it
    prices = read_prices(mine).of()
    own = find_instance("g5.2xlarge", prices)
    assert (own.usd_per_hour, own.accelerator, own.priced) == (0.99, "A10G", "2026-10-01")
    assert (own.source, own.region) == ("mine.csv", None)
    box = find_instance("my-box", prices)
    assert (box.usd_per_hour, box.priced, box.source) == (0.10, "", "mine.csv")


def test_a_list_of_several_regions_has_no_price_until_one_is_named(sky: Path) -> None:
    prices = read_prices(sky)
    for region in ("", "us-east-1"):  # 9.5 or 12; spot prices 3.1 or 2.9
        assert "big" not in prices.of(region)
        with pytest.raises(UsageError, match="--region"):
            prices.check("big", region)
    with pytest.raises(UsageError, match="eu-west-1"):
        prices.check("big", "ap-south-1")
    prices.check("big", "us-east-1b")
    prices.check("not there", "us-east-1b")
    assert prices.of("us-east-1b")["big"] == Instance(
        type="big",
        accelerator="H100",
        accelerators=2,
        cores=8,
        usd_per_hour=9.5,
        spot_usd_per_hour=2.9,
        region="us-east-1",
        spot_region="us-east-1",
        zone="us-east-1b",
        source="sky.csv",
        spot_source="sky.csv",
    )
    assert prices.of("eu-west-1")["big"].usd_per_hour == 12


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_other_formats(suffix: str, tmp_path: Path) -> None:
    row = {"type": "my-box", "usd_per_hour": 2.0, "spot_usd_per_hour": 1.0, "region": "here"}
    path = tmp_path / f"mine.{suffix}"
    path.write_text(json.dumps({"collected": "2026-10-01", "instances": [row]}))  # YAML, too
    found = read_prices(path).of()["my-box"]
    assert (found.usd_per_hour, found.priced, found.region) == (2.0, "2026-10-01", "here")
    assert (found.spot_priced, found.spot_region) == ("2026-10-01", "here")
    for wrong in ({"instances": [row | {"usd": 1}]}, {"instances": 1}, {"instances": []}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(SpecError, match="mine"):
            read_prices(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("type,usd_per_hour\nx,1,2\n", "line 2 has more cells"),
        ("type,usd_per_hour,cores\nx,1,inf\n", "line 2"),
        ("a,b\n1,2\n", "columns"),
        ("type,usd_per_hour\nx,-3\n", "line 2"),
        ("type,eur_per_hour\nx,1\n", "eur_per_hour"),
        ("type,usd_per_hour,currency\nx,1,USD\ny,1,EUR\n", "line 3.*EUR"),
        ("", "no prices"),
    ],
)
def test_wrong_lists(text: str, words: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_prices(mine)
