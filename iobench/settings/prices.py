"""A user's own prices of instances: a file in CSV, JSON or YAML.

A row of CSV has the columns ``type`` and ``usd_per_hour`` or ``spot_usd_per_hour``, and others of
``Instance`` if known; the names that SkyPilot's catalogs use are accepted, too. JSON and YAML have
the form of ``results/instances.yaml``. A file may have prices of several regions.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.documents import parse_json, read_regular
from ..base.errors import SpecError, UnknownNameError, UsageError
from .base import build
from .instances import (
    CURRENCY,
    Instance,
    find_instance,
    in_region,
    priced_at,
    read_table,
    sourced,
)
from .yamlfile import read_yaml

MAX_PRICES_BYTES = 16 << 20

_NAMES = {
    "instancetype": "type",
    "price": "usd_per_hour",
    "spotprice": "spot_usd_per_hour",
    "vcpus": "cores",
    "memorygib": "memory_gib",
    "acceleratorname": "accelerator",
    "acceleratorcount": "accelerators",
    "availabilityzone": "zone",
    "date": "priced",
}
"""Columns of other writers: the key of ``Instance`` that each of them is."""

_OTHER_CURRENCY = re.compile(r"(?:spot_)?(?P<currency>[a-z]{3})_per_hour")
_PRICES = ("usd_per_hour", "spot_usd_per_hour")


@dataclass(frozen=True, slots=True)
class Prices:
    """The rows of one file, in its order."""

    name: str
    rows: tuple[Instance, ...]

    def of(self, region: str = "") -> dict[str, Instance]:
        """The rows that are valid in ``region``, by type.

        A type with several different prices there is not among them: ``ambiguous`` tells why.
        """
        return {
            name: rows[0]
            for name in {row.type for row in self.rows}
            if (rows := self._valid(name, region)) and not _differ(rows)
        }

    def check(self, name: str, region: str = "") -> None:
        """Raise UsageError if the file has prices of ``name``, but not one that counts."""
        every = [row for row in self.rows if row.type == name]
        rows = self._valid(name, region)
        if every and not rows:
            raise UsageError(
                f"{self.name} has no price of {name} in the region {region}, but in "
                f"{_places(every)}",
                remedy="name one of these with --region",
            )
        if _differ(rows):
            raise UsageError(
                f"{self.name} has different prices of {name}: in {_places(rows)}",
                remedy="name one region with --region, or remove rows",
            )

    def _valid(self, name: str, region: str) -> list[Instance]:
        same = [row for row in self.rows if row.type == name]
        by_zone = [row for row in same if region and row.zone == region]
        return by_zone or [row for row in same if in_region(row.region or row.spot_region, region)]


def _differ(rows: Sequence[Instance]) -> bool:
    return len({(row.usd_per_hour, row.spot_usd_per_hour) for row in rows}) > 1


def _places(rows: Sequence[Instance]) -> str:
    """Regions, or zones, of the rows; at most five of them."""
    regions = sorted({row.region or row.spot_region or "no region" for row in rows})
    zones = sorted({row.zone for row in rows if row.zone})
    places = regions if len(regions) > 1 or len(zones) < 2 else zones
    return ", ".join(places[:5]) + (" and others" if len(places) > 5 else "")


def read_prices(path: Path) -> Prices:
    """Read a file of prices; ``.json``, ``.yaml`` and ``.yml`` name its format, others are CSV.

    Raises SpecError that names the line, or the row.
    """
    if path.suffix in (".yaml", ".yml"):
        rows = read_table(path, read_yaml(path), source=path.name)
    elif path.suffix == ".json":
        rows = _from_json(path)
    else:
        rows = _from_csv(path)
    if not rows:
        raise SpecError(f"{path} holds no prices")
    return Prices(path.name, tuple(rows))


def _from_json(path: Path) -> list[Instance]:
    try:
        data = parse_json(read_regular(path, MAX_PRICES_BYTES))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"cannot read the prices in {path}: {why}") from None
    if not isinstance(data, dict):
        data = {"instances": data}
    return read_table(path, data, source=path.name)


def _from_csv(path: Path) -> list[Instance]:
    found = []
    try:
        text = read_regular(path, MAX_PRICES_BYTES).decode()
        with io.StringIO(text, newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                found.append(_row(path, number, row))
    except (OSError, ValueError, csv.Error) as error:
        raise SpecError(f"cannot read the prices in {path}: {error}") from None
    return found


def _row(path: Path, number: int, row: Mapping[str | None, str | None]) -> Instance:
    if None in row:
        raise SpecError(f"{path}: line {number} has more cells than there are columns")
    cells = {}
    for key, value in row.items():
        name = str(key).strip().lower()
        cells[_NAMES.get(name, name)] = (value or "").strip()
    for name in cells:
        other = _OTHER_CURRENCY.fullmatch(name)
        if other is not None and other["currency"] != CURRENCY.lower():
            raise SpecError(
                f"{path}: the column '{name}' is not in {CURRENCY}",
                remedy=f"convert its prices, and name it {name.replace(other['currency'], 'usd')}",
            )
    if "type" not in cells or not set(_PRICES) & set(cells):
        raise SpecError(f"{path}: the columns 'type' and 'usd_per_hour' are missing")
    known = set(Instance.model_fields)
    data = {key: value for key, value in cells.items() if key in known and value}
    for key in ("cores", "accelerators", "sources"):
        if key in data and _is_number(data[key]):  # "8.0" becomes "8"
            data[key] = f"{float(data[key]):.15g}"
    return build(Instance, sourced(data, source=path.name), where=f"{path}: line {number}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def instances_of(
    types: Sequence[str],
    own: Prices | None,
    *,
    region: str,
    stated: Mapping[str, float],
    stated_spot: Mapping[str, float],
    chosen: bool,
) -> dict[str, Instance]:
    """The instance of each type with its prices; '' is a host whose type was not recorded.

    ``own`` is the user's list; ``stated`` and ``stated_spot`` have USD an hour by type, and under
    '' one for all. ``chosen``: the user has named the types. Raises UsageError.
    """
    names = list(dict.fromkeys(types))
    named = [name for name in names if name]
    for flag, prices in (
        ("--host-price-per-hour", stated),
        ("--host-spot-price-per-hour", stated_spot),
    ):
        if "" in prices and len(names) > 1:
            raise UsageError(
                f"{flag} has one price for {len(names)} types of instances: "
                f"{', '.join(name or 'not recorded' for name in names[:5])}",
                remedy="write TYPE=USD,TYPE=USD",
            )
        if unknown := sorted(set(prices) - {"", *named}):
            raise UsageError(
                f"{flag} names {unknown[0]}, which is no instance of these runs",
                remedy=f"known: {', '.join(named) or 'none, give --instance'}",
            )
    rows = own.of(region) if own else None
    found: dict[str, Instance] = {}
    for name in names:
        demand, spot = (prices.get(name, prices.get("")) for prices in (stated, stated_spot))
        if not name and demand is None and spot is None:
            raise UsageError(
                "the runs do not record the instance type of their host",
                remedy="name it with --instance, or give --host-price-per-hour",
            )
        if own:
            own.check(name, region)
        known = None
        try:
            known = find_instance(name, rows, region) if name else None
        except UnknownNameError:
            # A type that was only recorded need not be known if its price is stated.
            if chosen or (demand is None and spot is None):
                raise
        found[name] = priced_at(name or "this machine", demand, spot, known)
    return found
