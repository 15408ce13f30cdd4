"""What loads of a model's weights demand of storage, and how long they take on another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...base.errors import UsageError
from ...base.units import Quantity
from ...judge.model_load import least, storage_rate
from ...record.model_load import LoadFigures, ModelLoadRun, Retained
from ...settings.instances import Instance
from .scaling import Band


@dataclass(frozen=True, kw_only=True)
class LoadNeed:
    """Replicas of a model, each on a host of its own, that start at one instant.

    ``host_bytes_per_s`` is also what a storage has to deliver whose bytes are read once, and are
    passed on between the hosts.

    ``rest_s``: what a load of these weights takes without the storage, by a recorded run; 0 without
    one. Rates are in bytes/s, and None where ``rest_s`` and ``engine_start_s`` leave no time.
    ``measured``: what the storage of that run delivered to plain reads; ``measured_ready_s``: when
    the replicas would be ready there. ``loading_usd``: what the hosts cost on demand for
    ``ready_s``, of a known instance type; ``host_usd_per_hour``: of one host.
    """

    model: str
    bytes: int
    replicas: int
    ready_s: float
    engine_start_s: float
    rest_s: float
    storage_bytes_per_s: float | None
    host_bytes_per_s: float | None
    measured_bytes_per_s: float | None = None
    measured_ready_s: float | None = None
    network_bytes_per_s: float | None = None
    host_usd_per_hour: float | None = None
    loading_usd: float | None = None


def load_need(
    model: str,
    nbytes: int,
    *,
    replicas: int,
    ready_s: float,
    engine_start_s: float = 0.0,
    run: ModelLoadRun | None = None,
    instance: Instance | None = None,
) -> LoadNeed:
    """What storage must deliver so that all replicas are ready in time.

    Each of them reads ``nbytes`` once. A load of other weights than those of ``run`` is taken to
    cost as much beside the storage for each byte.
    """
    rest_s = rest_of(run) * nbytes / max(1, run.bytes) if run is not None else 0.0
    left_s = ready_s - engine_start_s - rest_s
    rate = storage_rate(run) if run is not None else None
    host = nbytes / left_s if left_s > 0 else None
    there, usd = None, None if instance is None else instance.usd_per_hour
    if rate is not None and rate.value > 0:
        there = engine_start_s + rest_s + replicas * nbytes / rate.value
    return LoadNeed(
        model=model,
        bytes=nbytes,
        replicas=replicas,
        ready_s=ready_s,
        engine_start_s=engine_start_s,
        rest_s=rest_s,
        storage_bytes_per_s=None if host is None else replicas * host,
        host_bytes_per_s=host,
        measured_bytes_per_s=None if rate is None else rate.value,
        measured_ready_s=there,
        network_bytes_per_s=None if instance is None else instance.network_bytes_per_s,
        host_usd_per_hour=usd,
        loading_usd=None if usd is None else replicas * usd * ready_s / 3600,
    )


@dataclass(frozen=True, kw_only=True)
class LoadCost:
    """What the hosts of a run cost until the slowest replica has its weights, in USD.

    ``seconds``: the median of the rounds, with what the engine takes beside the weights, if the
    user gave that. ``usd_low`` and ``usd_high``: in the fastest and in the slowest round.
    """

    run_id: str
    model: str
    loader: str
    replicas: int
    retained: Retained | None
    one_read: bool
    machine: str
    kind: Literal["on demand", "spot"]
    usd_per_hour: float
    seconds: float
    usd: float
    usd_low: float
    usd_high: float
    rounds: int


def load_costs(
    run_id: str, run: ModelLoadRun, hosts: Sequence[tuple[int, Instance]]
) -> list[LoadCost]:
    """What each loader and number of replicas costs on hosts of these types; none without a price.

    All of the hosts are paid for, and each does what the host of the run did.
    """
    names = [f"{count} x {each.type}" if count > 1 else each.type for count, each in hosts]
    engine_s, found = run.spec.engine_start_s or 0.0, []
    kinds: list[tuple[Literal["on demand", "spot"], list[float | None]]] = [
        ("on demand", [each.usd_per_hour for _, each in hosts]),
        ("spot", [each.spot_usd_per_hour for _, each in hosts]),
    ]
    for kind, prices in kinds:
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            continue
        hourly = sum(count * usd for (count, _), usd in zip(hosts, known, strict=True))
        for each in run.figures:
            usd, low, high = (
                hourly * (engine_s + seconds) / 3600
                for seconds in (each.ready_s, each.low_s, each.high_s)
            )
            found.append(
                LoadCost(
                    run_id=run_id,
                    model=run.model,
                    loader=each.loader,
                    replicas=each.replicas,
                    retained=run.retained,
                    one_read=each.one_read,
                    machine=" + ".join(names),
                    kind=kind,
                    usd_per_hour=hourly,
                    seconds=engine_s + each.ready_s,
                    usd=usd,
                    usd_low=low,
                    usd_high=high,
                    rounds=each.n,
                )
            )
    return found


def rest_of(run: ModelLoadRun) -> float:
    """Seconds that a load by the best loader takes without the storage; 0 where unknown."""
    for each in run.figures:
        if (each.loader, each.replicas, each.one_read) == (run.best, least(run), False):
            return without_storage(each) or 0.0
    return 0.0


def without_storage(figures: LoadFigures) -> float | None:
    """Seconds of a load whose storage takes no time; None where that was not measured."""
    gain = figures.gains.get("storage")
    return None if gain is None else figures.ready_s / max(gain.value, 1e-9)


@dataclass(frozen=True, kw_only=True)
class LoadGuess:
    """A loader's recorded time, and the ends between which it is on another storage."""

    loader: str
    replicas: int
    one_read: bool
    ready_s: float
    predicted_s: Band


@dataclass(frozen=True, kw_only=True)
class LoadWhatIf:
    """Loads of a run on a storage with another bandwidth, in bytes/s."""

    model: str
    bandwidth: float
    was: float
    loads: Sequence[LoadGuess]


def loads_at(run: ModelLoadRun, bandwidth: Quantity) -> LoadWhatIf:
    """Predict each loader and number of replicas with another bandwidth of the storage.

    What a load takes without the storage stays. If it reads nothing meanwhile, only the rest of its
    time changes with the bandwidth. If it reads all the time, the whole does, down to what stays.
    How much it reads meanwhile is not known, so these are the two ends of the prediction. What
    stays is known of the fewest replicas, and taken to be the same for more of them. A loader of
    which it is not known is left out. Raises UsageError where nothing can be predicted.
    """
    if run.spec.state == "warm":
        raise UsageError(
            "the loads of the run read a warm page cache, so no storage can change them",
            remedy="name a run of cold loads",
        )
    rate = storage_rate(run)
    if rate is None or rate.value <= 0:
        raise UsageError("the run did not measure what its storage delivers")
    to = max(bandwidth.of(rate.value, "bandwidth"), 1.0)
    rest = {
        each.loader: without_storage(each)
        for each in run.figures
        if each.replicas == least(run) and not each.one_read
    }
    found = [
        LoadGuess(
            loader=each.loader,
            replicas=each.replicas,
            one_read=each.one_read,
            ready_s=each.ready_s,
            predicted_s=_with_longer_reads(each.ready_s, min(kept, each.ready_s), rate.value / to),
        )
        for each in run.figures
        if (kept := rest.get(each.loader)) is not None
    ]
    if not found:
        raise UsageError(
            "the run does not tell what its loads take without the storage",
            remedy="measure a loader that can leave it out, such as direct",
        )
    return LoadWhatIf(model=run.model, bandwidth=to, was=rate.value, loads=found)


def _with_longer_reads(ready_s: float, kept_s: float, longer: float) -> Band:
    """Seconds of a load that takes ``ready_s``, or ``kept_s`` if the storage takes no time.

    Its reads take ``longer`` times as long. At one end none of them go on beside the other work, so
    that they took ``ready_s - kept_s``; at the other end they went on for all of ``ready_s``.
    """
    apart, beside = kept_s + (ready_s - kept_s) * longer, max(kept_s, ready_s * longer)
    return Band(None, min(apart, beside), max(apart, beside))
