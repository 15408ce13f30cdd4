"""Cloud instances and their prices, from ``results/instances.yaml`` or a user's CSV file.

Every price has a date or a source. A figure that is not known is None.
"""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from ..documents import read_regular
from ..errors import SpecError, UnknownNameError, UsageError
from .base import Strict, build
from .yamlfile import read_yaml

FILE = "instances.yaml"
MAX_PRICES_BYTES = 16 << 20
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
    region: str | None = None
    sources: int | None = None
    priced: str = ""  # date of the price (ISO 8601) or its source
    spot_priced: str = ""

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
    data = read_yaml(path)
    date, rows = str(data.get("collected", "")), data.get("instances")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SpecError(f"{path}: 'instances' must be a list of mappings")
    found = [
        build(Instance, {**row, **_dated(row, date)}, where=f"{path}: {row.get('type', '?')}")
        for row in rows
    ]
    return {row.type: row for row in found}


def _dated(row: Mapping[str, object], source: str) -> dict[str, str]:
    """Return ``source`` as the source of each price that ``row`` has.

    A price that it lacks gets no source. It may come from another row, with the source there.
    """
    return {
        name: source
        for name, price in (("priced", "usd_per_hour"), ("spot_priced", "spot_usd_per_hour"))
        if row.get(price)
    }


def read_prices(path: Path) -> dict[str, Instance]:
    """Read a CSV file with the columns ``type`` and ``usd_per_hour`` (or ``spot_usd_per_hour``).

    It may have other columns of Instance. SkyPilot's names (InstanceType, Price, SpotPrice and
    others) are accepted, too.

    Raises SpecError that names the line.
    """
    names = {
        "instancetype": "type",
        "price": "usd_per_hour",
        "spotprice": "spot_usd_per_hour",
        "vcpus": "cores",
        "memorygib": "memory_gib",
    }
    names |= {"acceleratorname": "accelerator", "acceleratorcount": "accelerators"}
    known = set(Instance.model_fields)
    found: dict[str, Instance] = {}
    try:
        text = read_regular(path, MAX_PRICES_BYTES).decode()
        with io.StringIO(text, newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                if None in row:
                    raise SpecError(f"{path}: line {number} has more cells than there are columns")
                cells = {
                    names.get(str(key).strip().lower(), str(key).strip().lower()): (
                        value or ""
                    ).strip()
                    for key, value in row.items()
                }
                if "type" not in cells or not {"usd_per_hour", "spot_usd_per_hour"} & set(cells):
                    raise SpecError(f"{path}: the columns 'type' and 'usd_per_hour' are missing")
                data = {key: value for key, value in cells.items() if key in known and value}
                for key in ("cores", "accelerators", "sources"):
                    if key in data and _is_number(data[key]):  # "8.0" becomes "8"
                        data[key] = f"{float(data[key]):.15g}"
                made = build(
                    Instance,
                    {**_dated(data, f"of {path.name}"), **data},
                    where=f"{path}: line {number}",
                )
                found.setdefault(made.type, made)
    except (OSError, ValueError, csv.Error) as error:
        raise SpecError(f"cannot read the prices in {path}: {error}") from None
    if not found:
        raise SpecError(f"{path} holds no prices")
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def find_instance(name: str, prices: Mapping[str, Instance] | None = None) -> Instance:
    """Find an instance by its type.

    A user's own ``prices`` replace those of the built-in row of the same type. Raises
    UnknownNameError with the nearest types.
    """
    known = builtin()
    own = prices.get(name) if prices else None
    if own is None:
        if name not in known:
            raise UnknownNameError(
                "instance",
                name,
                [*known, *(prices or {})],
                remedy="list them with: iobench list instances",
            )
        return known[name]
    stated = own.model_dump(exclude_none=True, exclude_defaults=True)
    return known[name].model_copy(update=stated) if name in known else own


def priced_at(
    name: str, usd_per_hour: float | None, spot: float | None, instance: Instance | None
) -> Instance:
    """Return ``instance`` with the prices that the user states on the command line.

    Raises UsageError for a price that is not above 0 or above ``MAX_USD_PER_HOUR``.
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
    update: dict[str, object] = {}
    stated = f"stated on {datetime.date.today().isoformat()}"
    if usd_per_hour is not None:
        update |= {"usd_per_hour": usd_per_hour, "priced": stated}
    if spot is not None:
        update |= {"spot_usd_per_hour": spot, "spot_priced": stated}
    return base.model_copy(update=update)
