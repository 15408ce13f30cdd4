"""Cloud instances and their prices: the table ``results/instances.yaml``, and what users state.

Every price has a source, and its date and region where they are known. All prices are in USD: the
table of a user in another currency is refused. A figure that is not known is None.

A user's own prices of instances: a file in CSV, JSON or YAML.

A row of CSV has the columns ``type`` and ``usd_per_hour`` or ``spot_usd_per_hour``, and others of
``Instance`` if known; the names that SkyPilot's catalogs use are accepted, too. JSON and YAML have
the form of ``results/instances.yaml``. A file may have prices of several regions.
"""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import Field, field_validator

from ..base.documents import parse_json, read_regular
from ..base.errors import SpecError, UnknownNameError, UsageError
from .base import Strict, build
from .yamlfile import read_yaml

FILE = "instances.yaml"
CURRENCY = "USD"
STATED = "stated"
"""The source of a price that was given on the command line."""

MAX_USD_PER_HOUR = 10_000
"""A price above this is a typing error: the largest known instance costs about 1 % of it."""


class Instance(Strict):
    """One type of machine.

    Units: Gbit/s for networks (``gbps``), MB/s for block storage (``mbps``), GB for local drives.
    """

    type: str = Field(min_length=1)
    provider: str = ""
    cores: int | None = Field(default=None, ge=1)
    memory_gib: float | None = Field(default=None, gt=0)
    accelerator: str | None = None
    accelerators: int = Field(default=0, ge=0)
    network_baseline_gbps: float | None = Field(default=None, gt=0)
    network_peak_gbps: float | None = Field(default=None, gt=0)
    ebs_baseline_mbps: float | None = Field(default=None, gt=0)
    ebs_peak_mbps: float | None = Field(default=None, gt=0)
    nvme_gb: float | None = Field(default=None, gt=0)
    usd_per_hour: float | None = Field(default=None, gt=0, le=MAX_USD_PER_HOUR)
    spot_usd_per_hour: float | None = Field(default=None, gt=0, le=MAX_USD_PER_HOUR)
    currency: str = CURRENCY
    region: str | None = None  # of the price on demand
    spot_region: str | None = None
    zone: str | None = None  # within the region, for a list that has prices by zone
    sources: int | None = None  # independent public lists that agreed on the price
    priced: str = ""  # date of the price, ISO 8601
    spot_priced: str = ""
    source: str = ""  # where the price comes from: the name of a file, or "stated"
    spot_source: str = ""

    @field_validator("currency")
    @classmethod
    def _dollars(cls, value: str) -> str:
        if value.upper() != CURRENCY:
            raise ValueError(f"prices in {value[:20]} are not read: convert them to {CURRENCY}")
        return CURRENCY

    @property
    def network_bytes_per_s(self) -> float | None:
        """The sustained bandwidth of the network, not its burst bandwidth."""
        return self.network_baseline_gbps * 1e9 / 8 if self.network_baseline_gbps else None


@lru_cache(maxsize=1)
def builtin() -> dict[str, Instance]:
    """Return the instances that are shipped with iobench, by type."""
    package = Path(__file__).resolve().parent.parent
    path = next(
        (path for path in (package / FILE, package.parent / "results" / FILE) if path.is_file()),
        package / FILE,
    )
    return {row.type: row for row in read_table(path, read_yaml(path), source=path.name)}


def read_table(path: Path, data: Mapping[str, object], *, source: str) -> list[Instance]:
    """Read a document with the keys ``instances`` (rows of ``Instance``) and ``collected``.

    ``collected`` is the date of the prices of rows that have none themselves. Raises SpecError.
    """
    date, rows = str(data.get("collected") or ""), data.get("instances")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SpecError(f"{path}: 'instances' must be a list of mappings")
    if unknown := set(data) - {"instances", "collected", "currency"}:
        raise SpecError(f"{path}: unknown key '{min(unknown, key=str)}'")
    own = {"currency": data["currency"]} if data.get("currency") else {}
    return [
        build(
            Instance,
            {**own, **sourced(row, source=source, date=date)},
            where=f"{path}: {row.get('type', '?')}",
        )
        for row in rows
    ]


def sourced(row: Mapping[str, object], *, source: str, date: str = "") -> dict[str, object]:
    """Return ``row`` with source, date and region at each price that it has.

    A price that it lacks gets none of them. It may come from another table, with those there.
    """
    found = dict(row)
    priced = found.pop("priced", None) or date
    region = found.pop("region", None)
    for prefix in ("", "spot_"):
        if row.get(f"{prefix}usd_per_hour"):
            found[f"{prefix}source"] = source
            found[f"{prefix}priced"] = str(found.get(f"{prefix}priced") or priced)
            found[f"{prefix}region"] = found.get(f"{prefix}region") or region
    return found


_NO_PRICE = {
    "usd_per_hour": None,
    "region": None,
    "priced": "",
    "source": "",
    "sources": None,
}


def in_region(region: str | None, asked: str) -> bool:
    """Whether a price of ``region`` is valid in the region that a user asked for.

    A price without a region is valid everywhere. ``us-east`` holds ``us-east-1``, either way.
    """
    if not region or not asked or region == asked:
        return True
    return asked.startswith(f"{region}-") or region.startswith(f"{asked}-")


def find_instance(
    name: str, own: Mapping[str, Instance] | None = None, region: str = ""
) -> Instance:
    """Find an instance by its type.

    ``own`` are rows of the user: their prices replace those of the built-in row of the same type.
    A built-in price of another ``region`` is left out. Raises UnknownNameError with the nearest
    types.
    """
    stated = own.get(name) if own else None
    known = builtin().get(name)
    if known is None and stated is None:
        raise UnknownNameError(
            "instance",
            name,
            [*builtin(), *(own or {})],
            remedy="list them with: iobench list instances",
        )
    elsewhere = known is not None and not in_region(known.region, region)
    if known is not None and (elsewhere or (stated is not None and stated.usd_per_hour)):
        known = known.model_copy(update=_NO_PRICE)
    if known is None or stated is None:
        return known or stated  # type: ignore[return-value]
    return known.model_copy(update=stated.model_dump(exclude_none=True, exclude_defaults=True))


def network_of(name: str, *, instead: str) -> float:
    """What the network of an instance type sustains, in bytes/s.

    Raises UnknownNameError, and UsageError where it is not known; ``instead`` is the flag to give.
    """
    rate = find_instance(name).network_bytes_per_s
    if rate is None:
        raise UsageError(f"the network of {name} is not known", remedy=f"give {instead} instead")
    return rate


def priced_at(
    name: str, usd_per_hour: float | None, spot: float | None, instance: Instance | None
) -> Instance:
    """Return ``instance`` with the prices that the user states on the command line.

    Raises UsageError for a price that is not above 0 or above ``MAX_USD_PER_HOUR``, and for a spot
    price above the one on demand.
    """
    for flag, value in (
        ("--host-price-per-hour", usd_per_hour),
        ("--host-spot-price-per-hour", spot),
    ):
        if value is not None and not 0 < value <= MAX_USD_PER_HOUR:
            raise UsageError(
                f"{flag} must be more than 0 and at most {MAX_USD_PER_HOUR} USD, but is {value:g}"
            )
    base = instance or build(Instance, {"type": name}, where="the instance")
    today = datetime.date.today().isoformat()
    for prefix, value in (("", usd_per_hour), ("spot_", spot)):
        if value is not None:
            update = {"usd_per_hour": value, "priced": today, "source": STATED, "region": None}
            base = base.model_copy(update={f"{prefix}{key}": each for key, each in update.items()})
    same = in_region(base.region, base.spot_region or "")
    if same and (base.spot_usd_per_hour or 0.0) > (base.usd_per_hour or MAX_USD_PER_HOUR):
        raise UsageError(
            f"the spot price of {base.type} is {base.spot_usd_per_hour:g} USD an hour, more than "
            f"its price on demand of {base.usd_per_hour or 0:g}",
            remedy="correct one of them: --host-price-per-hour, --host-spot-price-per-hour or the "
            "file of --prices",
        )
    return base


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
        text = read_regular(path, MAX_PRICES_BYTES).decode("utf-8-sig")
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
