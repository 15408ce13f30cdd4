"""What follows from the trials of a model's loads: figures, the bottleneck, promises and rules."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from iobench.ask.capacity.loads import load_costs, load_need, loads_at
from iobench.base.errors import StorageError, UsageError
from iobench.base.units import Quantity
from iobench.judge.model_load import host_loads, read_rate, storage_rate, storage_share
from iobench.judge.rebuild import conclude
from iobench.record.model_load import LoadFigures
from iobench.record.run import ModelLoadRecord
from iobench.report.record import sections
from iobench.report.render_text import render_text
from iobench.runner.model_load import LoadsBegun, LoadVariant
from iobench.settings.instances import Instance

GB = 10**9


def trial(number: int, ready_s: float, **changes: Any) -> dict[str, Any]:
    """One cold load of 1 GB by ``direct``, of one replica."""
    return {
        "round": number,
        "loader": "direct",
        "replicas": 1,
        "ready_s": ready_s,
        "first_ready_s": ready_s,
        "read_bytes": GB * changes.get("replicas", 1),
        "fetched_bytes": GB * changes.get("replicas", 1),
        "residency_before": 0.0,
        "residency_after": 0.0,
        **changes,
    }


def each_round(*times: float, **changes: Any) -> list[dict[str, Any]]:
    return [trial(number, ready_s, **changes) for number, ready_s in enumerate(times)]


def plain(rate: float, replicas: int = 1, *, more: bool = False) -> list[dict[str, Any]]:
    rates, count = (0.99 * rate, rate, 1.01 * rate), 32 if more else 8 * replicas
    return [
        {"round": at, "replicas": replicas, "more": more, "in_flight": count, "bytes_per_s": each}
        for at, each in enumerate(rates)
    ]


def record(
    trials: list[dict[str, Any]], *, spec: dict[str, Any] | None = None, **job: Any
) -> ModelLoadRecord:
    asked = {"loaders": ["direct"], "replicas": [1], "repetitions": 3, **(spec or {})}
    return conclude(
        ModelLoadRecord.model_validate(
            {
                "iobench_version": "0",
                "run_id": "r",
                "created": "",
                "command": [],
                "status": "ok",
                "validity": "unknown",
                "hosts": [],
                "storage": {"page_cache": True, "url": "/mnt/fs/model"},
                "job": {
                    "kind": "model-load",
                    "model": "llama3-8b",
                    "bytes": GB,
                    "tensors": 1000,
                    "shards": 2,
                    "spec": asked,
                    "trials": trials,
                    **job,
                },
            }
        )
    )


def of(doc: ModelLoadRecord, loader: str = "direct", replicas: int = 1) -> LoadFigures:
    (found,) = [
        each
        for each in doc.job.figures
        if (each.loader, each.replicas, each.one_read) == (loader, replicas, False)
    ]
    return found


def findings(doc: ModelLoadRecord) -> dict[str, str]:
    return {each.rule: each.level for each in doc.findings}


BASE = each_round(2.0, 2.1, 2.05)
STORAGE_FREE = each_round(0.2, 0.21, 0.205, left_out="storage")
BYTES_ONLY = each_round(2.0, 2.09, 2.05, left_out="assembly", loader="")


def test_storage_is_the_bottleneck_where_a_load_without_it_is_fast() -> None:
    doc = record(BASE + STORAGE_FREE + BYTES_ONLY, plain=plain(0.5e9))
    found = of(doc)
    assert (found.bottleneck, found.n, found.ready_s) == (["storage"], 3, 2.05)
    assert found.gains["storage"].value == pytest.approx(10)
    share = storage_share(found)
    assert share.value == pytest.approx(0.9)
    assert found.read_amplification == 1
    assert doc.metrics["ready_s"].median == 2.05
    assert doc.metrics["load_bytes_per_s"].median == pytest.approx(GB / 2.05)
    assert doc.validity == "valid"


def test_two_rounds_that_blame_the_storage_tell_its_share() -> None:
    """Student's t of two rounds reaches from nothing to all of the time."""
    found = of(record(each_round(2.0, 2.6) + each_round(0.2, 0.13, left_out="storage")))
    share = storage_share(found)
    assert (found.bottleneck, found.gains["storage"].low < 1) == (["storage"], True)
    assert 0.8 < share.low < share.value < share.high < 1


@pytest.mark.parametrize(("ranks", "promised"), [(1, 2.0), (2, 1.0), (4, 1.0)])
def test_one_read_spares_what_the_ranks_of_a_replica_read_twice(
    ranks: int, promised: float
) -> None:
    """1 GB at 1 GB/s, which two ranks of a replica have after 2 s where each reads all."""
    base = each_round(2.0, 2.0, read_bytes=ranks * GB, fetched_bytes=ranks * GB)
    more = each_round(1.0, 1.0, replicas=2, one_read=True)
    both = plain(1e9) + plain(1e9, 2)
    job = record(base + more, spec={"replicas": [1, 2]}, plain=both).job
    found = [each for each in job.figures if each.one_read]
    assert [each.promised_s.value for each in found] == [pytest.approx(promised)]


def test_it_is_not_storage_where_the_bytes_alone_are_there_soon() -> None:
    """Without the storage nothing is won, without the tensors nearly all."""
    slow = each_round(1.9, 2.0, 2.0, left_out="storage")
    bytes_only = each_round(0.2, 0.21, 0.2, left_out="assembly", loader="")
    found = of(record(BASE + slow + bytes_only, plain=plain(5e9)))
    assert found.bottleneck == ["assembly"]


@pytest.mark.parametrize(
    ("rate", "cpu_s", "inferred"), [(0.5e9, 0.1, True), (2e9, 0.1, False), (0.5e9, 1.9, False)]
)
def test_the_storage_of_a_loader_that_needs_it_is_the_bottleneck_where_it_waits_as_plain_reads_do(
    rate: float, cpu_s: float, inferred: bool
) -> None:
    """Loads of 1 GB in 2.05 s, which can't be made without the storage."""
    loads = each_round(2.0, 2.1, 2.05, loader="eager", cpu_s=cpu_s)
    doc = record(loads + BYTES_ONLY, plain=plain(rate), spec={"loaders": ["eager"]})
    assert of(doc, "eager").bottleneck == (["storage"] if inferred else [])
    told = " ".join(render_text(sections(doc)).split())
    assert ("Storage is the bottleneck: plain reads take 2.00 s" in told) == inferred
    assert ("about 97.6 % of the time Get a faster storage" in told) == inferred
    assert "no load without one stage was clearly faster" not in told


def test_two_stages_that_cannot_be_told_apart_are_both_named() -> None:
    free = each_round(0.5, 0.7, 0.6, left_out="storage")
    bytes_only = each_round(0.6, 0.5, 0.7, left_out="assembly", loader="")
    found = of(record(BASE + free + bytes_only))
    assert sorted(found.bottleneck) == ["assembly", "storage"]


@pytest.mark.parametrize(
    "without",
    [
        [],
        each_round(1.99, 2.1, 2.06, left_out="storage"),
        # Read in another way, the bytes are there sooner: that tells nothing of the tensors.
        each_round(0.2, 0.21, 0.2, left_out="assembly", loader=""),
    ],
)
def test_without_a_significant_gain_there_is_no_bottleneck(without: list[dict[str, Any]]) -> None:
    assert of(record(BASE + without)).bottleneck == []


@pytest.mark.parametrize(
    ("other", "significant"),
    [((4.0, 4.3, 4.1), True), ((2.1, 1.95, 2.2), False), ((2.6, 2.3), False)],
)
def test_the_fastest_loader_is_best_only_if_that_is_significant(
    other: tuple[float, ...], significant: bool
) -> None:
    mapped = each_round(*other, loader="mmap", read_bytes=None)
    job = record(BASE + mapped, spec={"loaders": ["direct", "mmap"]}).job
    assert (job.best, job.significant) == ("direct", significant)
    assert (job.gain.low > 1.05) is significant


def test_replicas_share_the_link_and_what_is_found_is_beside_what_was_promised() -> None:
    four = each_round(8.0, 8.1, 8.05, replicas=4)
    spec = {"replicas": [1, 4]}
    found = of(record(BASE + four, spec=spec, plain=plain(0.5e9) + plain(0.5e9, 4)), replicas=4)
    assert found.promised_s.value == pytest.approx(8.0)
    assert found.kept is True
    slower = each_round(16.0, 16.1, 16.05, replicas=4)
    found = of(record(BASE + slower, spec=spec, plain=plain(0.5e9) + plain(0.5e9, 4)), replicas=4)
    assert found.kept is False


def test_two_rounds_that_differ_tell_no_longest_time() -> None:
    """Their interval begins at 0. 8 s were promised, and 9.25 s are no broken promise."""
    rates = [
        plain(1.0, replicas)[0] | {"round": at, "bytes_per_s": rate}
        for replicas in (1, 4)
        for at, rate in enumerate((0.43e9, 0.57e9))
    ]
    two, four = each_round(2.0, 2.1), each_round(9.2, 9.3, replicas=4)
    found = of(record(two + four, spec={"replicas": [1, 4]}, plain=rates), replicas=4)
    assert found.promised_s.value == pytest.approx(8.0)
    assert (found.promised_s.high, found.kept) == (None, True)


def test_the_median_of_plain_reads_is_in_its_interval() -> None:
    rates = [plain(1e9)[0] | {"round": at, "bytes_per_s": 1e9 + 1e9 * (at > 5)} for at in range(10)]
    found = storage_rate(record(BASE, plain=rates).job)
    assert found.low <= found.value == 1e9 <= found.high


def test_replicas_that_share_a_page_cache_are_promised_the_time_of_one() -> None:
    one = each_round(2.0, 2.1, 2.05, residency_after=1.0, buffered=True)
    four = each_round(2.0, 2.1, 2.2, replicas=4, residency_after=1.0)
    doc = record(one + four, spec={"replicas": [1, 4]}, plain=plain(0.5e9) + plain(0.5e9, 4))
    found = of(doc, replicas=4)
    assert (found.promised_s.value, found.kept) == (2.05, True)


def test_a_load_that_failed_is_told_and_tried_again_and_no_matter_of_time() -> None:
    job = record(each_round(2.0, 2.1)).job
    begun: Any = SimpleNamespace(job=job, failure=None)
    direct, mmap = (LoadVariant(name=name, measure=lambda _: None) for name in ("direct", "mmap"))
    LoadsBegun._fail(begun, direct, StorageError("cannot read m: planted"))
    LoadsBegun._fail(begun, mmap, UsageError("there are no files to map"))
    assert (list(job.failed), list(job.left_out)) == (["direct (round 1)"], ["mmap"])
    assert (direct.active, mmap.active) == (True, False)
    direct.round = 1
    LoadsBegun._fail(begun, direct, StorageError("cannot read m: planted"))
    assert not direct.active  # it failed twice, one after the other


def test_a_copy_has_paid_after_its_time_over_what_a_start_saves() -> None:
    near = [trial(number, 1.0, copy_s=copy_s) for number, copy_s in enumerate((10.0, 11.0, 10.5))]
    far = each_round(3.0, 3.2, 3.1)
    copied = record(far + near, copied={"to": "/nvme"}).job.copied
    assert copied.starts.value == pytest.approx(5.0)
    assert (copied.copy_s, copied.ready_s, copied.never) == (10.5, 1.0, False)
    never = record([*BASE, trial(0, 4.0, copy_s=10.0)], copied={"to": "/nvme"}).job.copied
    assert (never.starts, never.never) == (None, True)


WARM = {"residency_before": 1.0, "fetched_bytes": 0}


@pytest.mark.parametrize(
    ("doc", "rule", "level"),
    [
        (record(BASE), "load.cold-residency", None),
        (record(each_round(1, 1, 1, residency_before=0.5)), "load.cold-residency", "invalid"),
        (record(each_round(1, 1, 1, residency_before=None)), "load.cold-residency", "unknown"),
        (record(BASE), "load.cold-fetch", None),
        (record(each_round(1, 1, 1, fetched_bytes=GB // 2)), "load.cold-fetch", "invalid"),
        (record(each_round(1, 1, 1, fetched_bytes=None)), "load.cold-fetch", "unknown"),
        (record(each_round(1, 1, 1, **WARM), spec={"state": "warm"}), "load.cold-residency", None),
        (record(each_round(1, 1, 1, **WARM), spec={"state": "warm"}), "load.warm-residency", None),
        (record(BASE, spec={"state": "warm"}), "load.warm-residency", "warning"),
        (record(BASE), "load.rounds", None),
        (record(each_round(1, 1)), "load.rounds", "info"),
        (record(each_round(1, 1), spec={"repetitions": 2}), "load.rounds", "info"),
        (record(BASE), "load.failures", None),
        (record(BASE, failed={"direct, 1 replica": "cannot read m"}), "load.failures", "warning"),
        (record(BASE), "data.changed", None),
        (record(BASE, changed=["m"]), "data.changed", "invalid"),
        (record(BASE, changed=None, changed_unknown="no answer"), "data.changed", "unknown"),
        (record(BASE), "load.left-out", None),
        (record(BASE, left_out={"mmap, 1 replica": "no room"}), "load.left-out", "info"),
    ],
)
def test_each_rule_has_a_record_that_keeps_it_and_one_that_breaks_it(
    doc: ModelLoadRecord, rule: str, level: str | None
) -> None:
    assert findings(doc).get(rule) == level
    assert (doc.validity == "invalid") is (level == "invalid")


WARM_ROUNDS = each_round(0.5, 0.5, 0.5, residency_before=1.0, fetched_bytes=0, read_bytes=None)


def test_a_warm_page_cache_is_compared_with_no_storage_and_predicts_nothing() -> None:
    more = each_round(1.0, 1.0, 1.0, replicas=2, residency_before=1.0, fetched_bytes=0)
    spec = {"state": "warm", "replicas": [1, 2]}
    doc = record(WARM_ROUNDS + more, spec=spec, plain=plain(0.5e9) + plain(0.5e9, 2))
    assert [each.promised_s for each in doc.job.figures] == [None, None]
    assert read_rate(doc.job, of(doc)) == 2 * GB
    with pytest.raises(UsageError):
        loads_at(doc.job, Quantity(1e9))


# Several hosts


def on_hosts(number: int, *ready_s: float, **changes: Any) -> dict[str, Any]:
    """One trial on so many hosts. ``each``: more of what single hosts did."""
    each = changes.pop("each", {})
    count = len(ready_s)
    hosts = [
        {
            "ready_s": ready,
            "fetched_bytes": GB,
            "residency_before": 0.0,
            "residency_after": 0.0,
            **each.get(host, {}),
        }
        for host, ready in enumerate(ready_s)
    ]
    return trial(
        number,
        max(ready_s),
        hosts=hosts,
        read_bytes=count * GB,
        fetched_bytes=count * GB,
        **changes,
    )


def two_hosts(trials: list[dict[str, Any]], **changes: Any) -> ModelLoadRecord:
    return record(trials, hosts=[{"name": "a"}, {"name": "b"}], **changes)


ALONE = each_round(1.0, 1.01, 1.0, alone=True)
TOGETHER = [on_hosts(number, 2.0, 1.98 + number / 100) for number in range(3)]


def test_hosts_share_the_storage_and_are_predicted_by_one_of_them_alone() -> None:
    doc = two_hosts(TOGETHER + ALONE, plain=plain(1e9))
    found = of(doc)
    assert (found.ready_s, found.alone_s, found.read_amplification) == (2.0, 1.0, 1)
    assert found.promised_s.value == pytest.approx(2 * GB / 1e9)
    assert found.kept
    assert findings(doc) == {}
    assert read_rate(doc.job, found) == 1e9


def test_a_storage_that_grows_with_its_hosts_promises_what_one_of_them_takes() -> None:
    found = of(two_hosts([on_hosts(at, 1.0, 1.0) for at in range(3)] + ALONE, plain=plain(9e9)))
    assert found.promised_s.value == pytest.approx(1.0)


def test_several_replicas_on_each_host_need_the_bytes_of_all() -> None:
    more = [on_hosts(at, 6.0, 6.0, replicas=3) for at in range(3)]
    spec = {"replicas": [1, 3]}
    doc = two_hosts(TOGETHER + ALONE + more, spec=spec, plain=plain(1e9) + plain(1e9, 3))
    assert of(doc, replicas=3).promised_s.value == pytest.approx(2 * 3 * GB / 1e9)


def test_replicas_that_read_once_or_share_a_page_cache_read_once_on_each_host() -> None:
    shared = {"buffered": True, "residency_after": 1.0}
    alone = each_round(1.0, 1.01, 1.0, alone=True, **shared)
    once = [on_hosts(at, 2.0, 2.0, replicas=3, one_read=True) for at in range(3)]
    warm = [on_hosts(at, 2.0, 2.0, replicas=3, **shared) for at in range(3)]
    spec = {"replicas": [1, 3]}
    rates = plain(1e9) + plain(1e9, 3)
    doc = two_hosts(TOGETHER + alone + once + warm, spec=spec, plain=rates)
    promised = {
        each.one_read: each.promised_s.value for each in doc.job.figures if each.replicas == 3
    }
    assert promised == {False: pytest.approx(2.0), True: pytest.approx(2.0)}


def test_the_host_that_is_slower_than_the_others_is_named() -> None:
    doc = two_hosts([on_hosts(at, 1.0 + at / 100, 2.0) for at in range(3)])
    assert findings(doc) == {"host.slow": "warning"}
    (told,) = [each.evidence for each in doc.findings]
    assert told.startswith("host 1 (b) ")
    slowest = host_loads(doc.job)[0]
    assert (slowest.host, slowest.ready_s, slowest.read_bytes) == (1, 2.0, GB)
    assert "host 1 (b)" in render_text(sections(doc))
    # One round that took longer is no slow host.
    doc = two_hosts([on_hosts(0, 1.0, 2.0), on_hosts(1, 1.0, 1.0), on_hosts(2, 1.0, 1.0)])
    assert findings(doc) == {}


@pytest.mark.parametrize(
    ("state", "each", "rule"),
    [
        ("cold", {"residency_before": 0.5}, "load.cold-residency"),
        ("cold", {"fetched_bytes": GB // 2}, "load.cold-fetch"),
        ("warm", {"residency_before": 0.9}, "load.warm-residency"),
    ],
)
def test_what_one_host_did_otherwise_than_asked_is_found(
    state: str, each: dict[str, Any], rule: str
) -> None:
    usual = {"residency_before": 1.0} if state == "warm" else {}
    hosts = {0: usual, 1: {**usual, **each}}
    doc = two_hosts([on_hosts(at, 1.0, 1.0, each=hosts) for at in range(3)], spec={"state": state})
    assert set(findings(doc)) == {rule}


# What size, whatif and cost make of loads

RATE = 0.5e9


def half_of_it_storage() -> ModelLoadRecord:
    """Loads of 1 GB in 2 s, or in 1 s without the storage, which delivers 0.5 GB/s."""
    rounds = [*each_round(2.0, 2.0, 2.0), *each_round(1.0, 1.0, 1.0, left_out="storage")]
    more = each_round(5.0, 5.0, 5.0, replicas=4)
    return record(rounds + more, spec={"replicas": [1, 4]}, plain=plain(RATE) + plain(RATE, 4))


def test_what_a_load_takes_besides_is_taken_from_the_time() -> None:
    """A model of twice the bytes takes twice as long beside the storage."""
    run = half_of_it_storage().job
    need = load_need("m", 2 * GB, replicas=8, ready_s=10, engine_start_s=4, run=run)
    assert need.rest_s == pytest.approx(2)
    assert need.storage_bytes_per_s == pytest.approx(8 * 2e9 / 4)
    assert need.measured_bytes_per_s == RATE
    assert need.measured_ready_s == pytest.approx(4 + 2 + 8 * 2e9 / RATE)


@pytest.mark.parametrize(("times", "apart", "beside"), [(0.5, 3.0, 4.0), (4.0, 1.25, 1.0)])
def test_a_load_on_another_storage_may_read_apart_or_all_the_time(
    times: float, apart: float, beside: float
) -> None:
    """1 s of 2 s are without the storage, whose reads may take the other 1 s, or all of the 2 s."""
    found = loads_at(half_of_it_storage().job, Quantity(times, relative=True)).loads[0]
    assert found.ready_s == 2
    assert (found.predicted_s.low, found.predicted_s.high) == pytest.approx(
        (min(apart, beside), max(apart, beside))
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


@pytest.mark.parametrize(("share", "told"), [("all", True), ("sliced", False)])
def test_ranks_that_all_read_everything_are_told_to_read_a_part(share: str, told: bool) -> None:
    """Nine tenths of the time is the storage's, and half of its bytes are read twice."""
    trials = [*each_round(2.0, 2.0, 2.0, read_bytes=2 * GB, fetched_bytes=2 * GB), *STORAGE_FREE]
    doc = record(trials, spec={"tensor_parallel": 2, "share": share}, plain=plain(GB))
    text = " ".join(render_text(sections(doc)).split())
    found = re.search(r"at most (\S+) x Let each of 2 ranks read its part", text)
    assert (found and float(found[1])) == (pytest.approx(1.82, abs=0.03) if told else None)


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (
            1.5e9,
            "at most 3.07 x Keep more reads in flight (--concurrency 32): plain reads get 1.50",
        ),
        (9e9, "at most 10.00 x Keep more reads in flight (--concurrency 32)"),
        (0.51e9, "90.0 % of the time Get a faster storage: plain reads get no more, with 32 in"),
    ],
)
def test_a_storage_that_answers_late_needs_more_reads_in_flight(rate: float, says: str) -> None:
    """1 GB in 2.05 s, a tenth of that without the storage; eight plain reads get 0.5 GB/s."""
    reads = plain(0.5e9) + plain(rate, more=True)
    doc = record(BASE + STORAGE_FREE + BYTES_ONLY, plain=reads)
    assert says in " ".join(render_text(sections(doc)).split())


def test_nothing_is_predicted_of_a_load_whose_parts_are_not_known() -> None:
    with pytest.raises(UsageError):
        loads_at(record(each_round(2.0, 2.0), plain=plain(RATE)).job, Quantity(1e9))
    with pytest.raises(UsageError):
        loads_at(record(each_round(2.0, 2.0)).job, Quantity(1e9))


def test_one_round_has_no_interval() -> None:
    """An interval of no width would say that the time is known exactly."""
    one = record(each_round(2.0), plain=plain(1e9)[:1])
    text = render_text(sections(one))
    assert "one round only" in text
    assert "[2.00 s, 2.00 s]" not in text
    assert "[2.00 s, 2.10 s]" in render_text(sections(record(each_round(2.0, 2.1))))
