"""Machines and their prices on the command line: ``4xTYPE``, ``TYPE=USD``, and price lists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..base.errors import UnknownNameError, UsageError
from ..settings.instances import Instance, find_instance, priced_at
from ..settings.prices import Prices
from .requests.understand import CostRequest


def instances_of(
    request: CostRequest, own: Prices | None, names: Sequence[str]
) -> dict[str, Instance]:
    """The instance of each name with its prices; '' is a host whose type was not recorded.

    ``own`` is the user's list, and the request has the prices that were stated, the region, and
    whether types were asked for. Raises UsageError.
    """
    named = [name for name in names if name]
    price, spot_price = request.host_price_per_hour or {}, request.host_spot_price_per_hour or {}
    for flag, stated in (
        ("--host-price-per-hour", price),
        ("--host-spot-price-per-hour", spot_price),
    ):
        if "" in stated and len(names) > 1:
            raise UsageError(
                f"{flag} has one price for {len(names)} types of instances: "
                f"{', '.join(name or 'not recorded' for name in names[:5])}",
                remedy="write TYPE=USD,TYPE=USD",
            )
        if unknown := sorted(set(stated) - {"", *named}):
            raise UsageError(
                f"{flag} names {unknown[0]}, which is no instance of these runs",
                remedy=f"known: {', '.join(named) or 'none, give --instance'}",
            )
    rows = own.of(request.region) if own else None
    found: dict[str, Instance] = {}
    for name in names:
        demand, spot = (_of_type(prices, name) for prices in (price, spot_price))
        if not name and demand is None and spot is None:
            raise UsageError(
                "the runs do not record the instance type of their host",
                remedy="name it with --instance, or give --host-price-per-hour",
            )
        if own:
            own.check(name, request.region)
        known = None
        try:
            known = find_instance(name, rows, request.region) if name else None
        except UnknownNameError:
            # A type that was only recorded need not be known if its price is stated.
            if request.instance or (demand is None and spot is None):
                raise
        found[name] = priced_at(name or "this machine", demand, spot, known)
    return found


def _of_type(prices: Mapping[str, float], name: str) -> float | None:
    return prices.get(name, prices.get(""))


def parts_of(text: str, hosts: int) -> list[tuple[str, int]]:
    """Parse ``2xg5.2xlarge+4xg5.4xlarge`` to the types and their numbers.

    A type without a number has ``hosts``.
    """
    parts = [_hosts_of(part, text, hosts) for part in text.split("+")]
    names = [name for name, _ in parts]
    if len(set(names)) < len(names) or not all(names):
        raise UsageError(
            f"--instance '{text}' names no type, or one twice",
            remedy="write it like 2xg5.2xlarge+4xg5.4xlarge",
        )
    return parts


def _hosts_of(part: str, text: str, hosts: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\d{1,9})\s*x\s*(\S+)", part.strip())
    if found is None:
        return part.strip(), hosts
    if int(found[1]) < 1:
        raise UsageError(f"--instance '{text}': the number of hosts must be at least 1")
    return found[2], int(found[1])
