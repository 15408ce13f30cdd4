"""Each rule has a run that keeps it, one that breaks it, and one in which its evidence is
missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.verdict.rebuild import conclude
from iobench.analyse.verdict.rules_closed import REFERENCES
from iobench.analyse.verdict.validity import (
    RULES,
    evaluate,
    level_of,
    validity,
)
from iobench.errors import UsageError
from iobench.schema.accelerator import StepFacts
from iobench.schema.dataset import load_dataset_spec
from iobench.schema.record import Finding, RunRecord
from iobench.schema.training import Ceiling, Epoch
from iobench.schema.workload import load_workload

Build = Callable[..., RunRecord]

WARM = {"cache": "any"}
STAGED = {
    "workload": {"accelerator": {"name": "h100", "step_time": 0.05, "sync": "step", "staged": 1}}
}
UNMEASURED = [Epoch(epoch=0, residency_before=None, residency_how="no cachestat"), Epoch(epoch=1)]
HALF_MEASURED = [Epoch(epoch=0, residency_before=0.4), Epoch(epoch=1)]
ONE_HOT_EPOCH = [Epoch(epoch=0, residency_before=0.0), Epoch(epoch=1, residency_before=0.02)]
FED_BY_A_CACHE = [
    Epoch(epoch=0, residency_before=0.0, sample_bytes=1000, bytes_read=1000, bytes_fetched=1004),
    Epoch(epoch=1, residency_before=0.0, sample_bytes=1000, bytes_read=1000, bytes_fetched=989),
]
UNCOUNTED = [
    Epoch(epoch=0, residency_before=0.0, sample_bytes=1000, fetched_how="not measured: a reason")
]
HALVED = {
    "bin_s": 1.0,
    "samples_per_s": [1900.0] * 30 + [950.0] * 30,
    "stored_bytes_per_s": [1.9e8] * 30 + [9.5e7] * 30,
}
LOCAL = {"scheme": "file", "url": "/data", "fs_type": "ext4"}
NFS_MOUNT = {"scheme": "file", "url": "/mnt/nas/set", "fs_type": "nfs4"}

PROOF = {
    "of": 1000,
    "whole_epoch": True,
    "delivered": 1001,
    "missing": 0,
    "repeated": 1,
    "unknown": 0,
}

UNEVEN = [
    {"rank": rank, "wall_s": 65.0, "busy_s": 50.0, "fill_s": 1.0, "wait_s": 4.0 + own}
    | {"sync_s": 10.0 - own}
    for rank, own in enumerate((0.0, 10.0, 0.5))
]
"""The times of ranks of which number 1 holds up the others."""

ENOUGH: dict[str, Any] = {
    "repetitions": 6,  # the first one is MLPerf's warm-up
    "accelerators": 1,  # so that no barrier is missing
    "rates": {"accelerator": 2000.0},
    "repetition": {"steps": 1000, "resources": {"wall_s": 70.0, "cpu_busy": 0.1}},
    "workload": {"accelerator": {"kind": "emulated", "name": "h100", "step_time": 0.05}},
}
"""What the good run of ``make_run`` lacks under MLPerf's rules: 500 steps in each of two epochs."""


def closed(name: str = "unet3d-b200") -> dict[str, Any]:
    """A run of one of MLPerf Storage's workloads on one accelerator, at 95 % of its demand.

    It makes whole epochs, as the rules want it.
    """
    workload = load_workload(name, ["max_steps=null"])
    spec = load_dataset_spec(workload.dataset)
    samples = 500 * workload.batch_size * 5
    shards = -(-samples // spec.samples_per_shard) if spec.samples_per_shard else samples
    demand = workload.samples_per_s_per_accelerator or 0.0
    size = round(spec.nominal_bytes / spec.samples)
    times = dict.fromkeys(("storage_raw", "fetch", "prep", "harness"), 3 * demand)
    epochs = [
        Epoch(
            epoch=number,
            steps=2500,
            residency_before=0.0,
            sample_bytes=samples * size,
            bytes_fetched=samples * size,
        )
        for number in range(workload.epochs)
    ]
    all_bytes = samples * size * workload.epochs
    return {
        "repetitions": 6,
        "accelerators": 1,
        "rates": {**times, "accelerator": demand},
        "measured": 0.95 * demand,
        "host": dict.fromkeys(("cores", "affinity_cores", "effective_cores"), 64),
        "workload": workload.model_dump(mode="json"),
        "dataset": {
            "spec": spec.model_dump(mode="json"),
            "samples": samples,
            "shards": shards,
            "stored_bytes": samples * size,
        },
        "loader": {"kind": "iobench", "workers": workload.loader.workers},
        "repetition": {
            "steps": 2500 * workload.epochs,
            "samples": samples * workload.epochs,
            "sample_bytes": all_bytes,
            "bytes_read": all_bytes,
            "epochs": epochs,
        },
    }


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """``one`` with the keys of ``other`` replaced; dictionaries are merged key by key."""
    return one | {
        key: merged(one[key], value)
        if isinstance(value, dict) and isinstance(one.get(key), dict)
        else value
        for key, value in other.items()
    }


STARVED = {"au": 0.8, "measured": 1600.0}
BUSY_HOST = {"repetition": {"resources": {"cpu_busy": 0.6}}}  # of 8 cores, 0.3 of them its own
CLOSED = {"closed.workload", "closed.settings"}
"""Rules whose good run is ``closed()``."""

# rule: (changes to a good run that break the rule, changes that take its evidence away; None: its
# evidence is in every record)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "data.mismatch": ({"repetition": {"bytes_read": 11_000_000_000}}, {"repetitions": 0}),
    "loader.delivery": (
        {"loader": {"delivery": PROOF}},
        {"loader": {"delivery": {"not_measured": "no checksums"}}},
    ),
    "data.changed": ({"dataset": {"changed": ["data/3.tar"]}}, {"dataset": {"changed": None}}),
    "storage.throttled": (
        {**STARVED, "repetition": {"throttled": 3}},
        {"repetition": {"throttled": None}},
    ),
    "storage.retries": ({"repetition": {"retries": 1}}, {"repetition": {"retries": None}}),
    "cache.cold-residency": (
        {"repetition": {"epochs": ONE_HOT_EPOCH}},
        {"repetition": {"epochs": UNMEASURED}},
    ),
    "cache.cold-fetch": (
        {"repetition": {"epochs": FED_BY_A_CACHE}},
        {"repetition": {"epochs": UNCOUNTED}},
    ),
    "cache.residency-unknown": (
        {"workload": WARM, "repetition": {"epochs": HALF_MEASURED}},
        {"workload": WARM, "repetition": {"epochs": UNMEASURED}},
    ),
    "run.incomplete": ({"status": "interrupted"}, {"repetitions": 0}),
    "run.steps": ({"repetition": {"steps": 499}}, {"repetition": {"steps": 0}}),
    "run.duration": ({"repetition": {"wall_s": 9.9}}, {"repetition": {"wall_s": None}}),
    "run.repetitions": ({"repetitions": 4}, {"repetitions": 0}),
    "run.replicability": ({"spread": (1, 1, 1, 1, 1, 1.07)}, {"repetitions": 5}),
    "seed.changes": ({"repetition": {"seed": 7}}, {"repetitions": 0}),
    "dataset.size": (
        {"workload": WARM, "residency": 0.5, "host": {"memory_bytes": 1_300_000_000}},
        {"workload": WARM, "residency": 0.5, "host": {"memory_bytes": None}},
    ),
    "nfs.retransmits": (
        {"storage": NFS_MOUNT, "repetition": {"nfs": {"read_ops": 9000, "retransmits": 3}}},
        {"storage": NFS_MOUNT, "repetition": {"nfs": None}},
    ),
    "au.threshold": ({"au": 0.89}, {"au": None}),
    "au.barrier": ({"accelerators": 2}, None),
    "au.staged": (STAGED, None),
    "ranks.uneven": ({"repetition": {"ranks": UNEVEN}}, None),
    "hosts.skew": (
        {"repetition": {"hosts": [{"host": 0}, {"host": 1, "start_skew_s": 9.0}]}},
        None,
    ),
    "host.slow": (
        {
            "repetition": {
                "hosts": [
                    {"host": host, "ranks": 1, "own_samples_per_s": rate}
                    for host, rate in enumerate((1900.0, 950.0))
                ]
            }
        },
        None,
    ),
    "cpu.throttled": (
        {**STARVED, "repetition": {"throttled_s": 6.5}},
        {"repetition": {"throttled_s": None}},
    ),
    "cpu.affinity": (
        {**STARVED, "host": {"affinity_cores": 2}},
        {"host": {"affinity_cores": None}},
    ),
    "cpu.other-load": (BUSY_HOST, {"repetition": {"resources": {"cpu_busy": None}}}),
    "harness.bound": (
        {**STARVED, "rates": {"harness": 1700}},
        {**STARVED, "rates": {"harness": None}},
    ),
    "client.bound": (
        {**STARVED, "host": {"cores": 0.1, "affinity_cores": 0.1, "effective_cores": 0.1}},
        {**STARVED, "rates": {"fetch": None}},
    ),
    "emulation.error": (
        {"repetition": {"late_left_s": 0.66}},  # of 65 s
        {"repetition": {"late_left_s": None}},
    ),
    "prefetch.share": (
        {**STARVED, "loader": {"prefetched_samples": 6_600}},
        {"workload": {"batch_size": None}},
    ),
    "verdict.disagreement": (
        {
            "rates": {"prep": 1000.0},
            "measured": 980.0,
            "au": 0.49,
            "knock_outs": [
                {"stage": "storage", "gain": {"value": 2.0, "low": 1.9, "high": 2.1, "n": 3}},
                {"stage": "prep", "gain": {"value": 1.0, "low": 0.98, "high": 1.02, "n": 3}},
            ],
        },
        None,
    ),
    "accelerator.shares-cores": (
        {"trained": {"model": "resnet50"}, "repetition": {"busy_s": 64.0}},
        {"trained": {"model": "resnet50"}, "rates": {"accelerator": None}},
    ),
    "verdict.gap": ({"measured": 1500.0}, {"measured": None}),
    "raw.not-measured": ({"rates": {"storage_raw": None}}, {"ceilings": {}}),
    "raw.low": ({"rates": {"storage_raw": 10.0}}, {"rates": {"fetch": None}}),
    "read.amplification": (
        {"repetition": {"bytes_read": 18_100_000_000}},
        {"repetition": {"sample_bytes": 0}},
    ),
    "loader.tax": (
        {"host": {"cores": 0.2}},
        {"host": dict.fromkeys(("cores", "affinity_cores", "effective_cores"))},
    ),
    "rate.falls": (
        {"repetition": {"rates": HALVED}},
        {"repetition": {"rates": None}},
    ),
    "cache.first-touch": (
        {"spread": (0.5, 1, 1.01, 0.99, 1, 1)},
        {"measured": None},
    ),
    "device.other-load": (
        {"repetition": {"resources": {"device": "vda", "device_read_bytes": 15_000_000_000}}},
        {"repetition": {"resources": {"device": "vda"}}},
    ),
    "device.served-by-cache": (
        {
            "storage": LOCAL,
            "repetition": {"resources": {"device": "vda", "device_read_bytes": 3_000_000_000}},
        },
        {"storage": LOCAL, "repetition": {"resources": {"device": "vda"}}},
    ),
    "closed.workload": ({"workload": {"name": "my-training"}}, {"workload": {"name": "?"}}),
    "closed.settings": ({"workload": {"batch_size": 8}}, {"workload": {"batch_size": None}}),
}


ALWAYS = (
    "data.mismatch",
    "loader.delivery",
    "data.changed",
    "cache.cold-residency",
    "cache.cold-fetch",
)


def build(make_run: Build, rule: str, changes: dict[str, Any], **more: Any) -> RunRecord:
    """A run that keeps all rules of both sets but for ``changes``."""
    arguments = merged(closed() if rule in CLOSED else ENOUGH, changes) | more
    spread = arguments.pop("spread", None)
    doc = make_run(**arguments, concluded=False)
    for repetition, factor in zip(doc.job.repetitions, spread or (), strict=False):
        repetition.samples_per_s *= factor
    return conclude(doc)


def levels(doc: RunRecord) -> dict[str, str]:
    return {finding.rule: finding.level for finding in doc.findings}


def test_every_rule_has_fixtures() -> None:
    assert {rule.id for rule in RULES} == set(CASES)


def test_rule_ids_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule_set", ["quick", "mlperf"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_pass_fail_unknown(make_run: Build, rule: Any, rule_set: str) -> None:
    broken, missing = CASES[rule.id]
    expected = level_of(rule.levels, rule_set)
    assert rule(build(make_run, rule.id, {}), rule_set) is None
    violation = rule(build(make_run, rule.id, broken), rule_set)
    gap = rule(build(make_run, rule.id, missing), rule_set) if missing is not None else None
    if expected is None:
        assert violation is gap is None
        return
    assert violation is not None
    assert violation.rule == rule.id
    assert violation.level == expected
    assert violation.evidence
    assert violation.remedy
    if missing is not None:
        assert gap is not None
        assert gap.level == "unknown"
        assert gap.evidence


def test_a_good_run_is_valid_under_both_sets(make_run: Build) -> None:
    doc = make_run(**closed())
    for rule_set in ("quick", "mlperf"):
        assert evaluate(doc, rule_set) == []
    assert doc.validity == "valid"
    assert evaluate(make_run(), "quick") == []


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALWAYS])
def test_quick_refuses_nothing_else(make_run: Build, name: str) -> None:
    assert build(make_run, name, CASES[name][0]).validity == "valid"


@pytest.mark.parametrize("name", ALWAYS)
def test_quick_refuses_what_is_false_for_any_purpose(make_run: Build, name: str) -> None:
    assert build(make_run, name, CASES[name][0]).validity == "invalid"


@pytest.mark.parametrize(
    "name", [rule.id for rule in RULES if level_of(rule.levels, "mlperf") == "invalid"]
)
def test_mlperf_refuses(make_run: Build, name: str) -> None:
    doc = build(make_run, name, CASES[name][0], rules="mlperf")
    assert doc.validity == "invalid"
    assert levels(doc)[name] == "invalid"


def test_missing_evidence_is_neither_pass_nor_fail(make_run: Build) -> None:
    assert make_run(repetition={"epochs": UNMEASURED}).validity == "unknown"
    throttle = {"repetition": {"throttled_s": None}}
    assert make_run(**throttle).validity == "valid"  # quick would only have warned
    assert build(make_run, "cpu.throttled", throttle, rules="mlperf").validity == "unknown"


def test_mlperf_wants_a_large_dataset_however_cold_the_reads_are(make_run: Build) -> None:
    for change in ({}, {"loader": {"direct": True}}, {"storage": {"page_cache": False}}):
        small = merged({"host": {"memory_bytes": 10**12}}, change)
        assert "dataset.size" not in levels(build(make_run, "", small))
        doc = build(make_run, "", small, rules="mlperf")
        assert levels(doc)["dataset.size"] == doc.validity == "invalid"
    enough = {"host": {"memory_bytes": 1_200_000_000}}  # 6 GB are 5 x as much
    assert "dataset.size" not in levels(build(make_run, "", enough, rules="mlperf"))
    # The memory of all hosts counts.
    doc = build(make_run, "", enough, rules="mlperf")
    doc.hosts.append(doc.hosts[0])
    assert levels(conclude(doc))["dataset.size"] == "invalid"


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        ((500, 500), False),
        ((500, 499), True),
        ((900, 100), True),  # a thousand steps, but not in each epoch
        ((None, None), False),  # the mean of the repetition's 1,000 steps
    ],
)
def test_mlperf_wants_500_steps_in_each_epoch(
    make_run: Build, steps: tuple[int | None, ...], refused: bool
) -> None:
    epochs = [
        Epoch(epoch=number, steps=count, residency_before=0.0, bytes_fetched=6_000_000_000)
        for number, count in enumerate(steps)
    ]
    change = {"repetition": {"epochs": epochs}}
    assert ("run.steps" in levels(build(make_run, "", change, rules="mlperf"))) == refused
    assert "run.steps" not in levels(build(make_run, "", change))


@pytest.mark.parametrize(("repetitions", "refused"), [(5, True), (6, False), (7, False)])
def test_mlperf_wants_a_warm_up_and_five_runs(
    make_run: Build, repetitions: int, refused: bool
) -> None:
    found = levels(build(make_run, "", {"repetitions": repetitions}, rules="mlperf"))
    assert ("run.repetitions" in found) == refused
    assert "run.repetitions" not in levels(build(make_run, "", {"repetitions": repetitions}))


@pytest.mark.parametrize(
    ("spread", "level"),
    [
        ((1, 1, 1, 1, 1, 1), None),
        ((0.5, 1, 1, 1, 1, 1), None),  # the warm-up is not counted
        ((1, 1, 1, 1, 1, 1.06), None),  # 4.7 % above the mean of 1.012
        ((1, 1, 1, 1, 1, 1.07), "invalid"),
        ((1, 1, 1, 1, 1, 0.93), "invalid"),
        ((1, 1.0, 0.999, 0.95, 0.65, 0.5), "invalid"),
    ],
)
def test_mlperf_wants_runs_within_five_percent(
    make_run: Build, spread: tuple[float, ...], level: str | None
) -> None:
    doc = build(make_run, "", {"spread": spread}, rules="mlperf")
    assert levels(doc).get("run.replicability") == level


def test_mlperf_counts_its_own_utilization_in_each_counted_run(make_run: Build) -> None:
    """0.91 without the first step and 0.85 with it: MLPerf accepts what quick warns about."""
    doc = build(make_run, "", {"repetition": {"accelerator_utilization_sustained": 0.85}})
    assert levels(doc)["au.threshold"] == "warning"
    assert "au.threshold" not in {finding.rule for finding in evaluate(doc, "mlperf")}
    # One of five counted runs below the threshold is refused, although the median is above it.
    for number, refused in ((0, False), (3, True)):
        doc = build(make_run, "", {}, rules="mlperf")
        doc.job.repetitions[number].accelerator_utilization = 0.89
        assert (levels(conclude(doc)).get("au.threshold") == "invalid") == refused


FED = {"au": 0.99, "measured": 1980.0}


@pytest.mark.parametrize("rule_set", ["quick", "mlperf"])
def test_a_fed_run_is_not_refused_for_a_reader_that_takes_all_cores(
    make_run: Build, rule_set: str
) -> None:
    """At 20 x the demand it must take them; at the demanded rate it takes a tenth of a core."""
    fast = {
        "rates": {"fetch": 40_000.0, "storage_raw": 45_000.0},
        "host": dict.fromkeys(("cores", "affinity_cores", "effective_cores"), 2),
    }
    doc = build(make_run, "", {**FED, **fast}, rules=rule_set)
    assert doc.validity == "valid"
    assert "client.bound" not in levels(doc)
    # It is not the cause where the accelerators wait, either.
    assert "client.bound" not in levels(build(make_run, "", {**STARVED, **fast}, rules=rule_set))


def test_without_a_demand_the_reader_is_judged_at_its_own_rate(make_run: Build) -> None:
    null = {
        "workload": {"accelerator": {"kind": "null", "step_time": None}},
        "rates": {"fetch": 40_000.0, "storage_raw": 45_000.0, "accelerator": None},
        "host": dict.fromkeys(("cores", "affinity_cores", "effective_cores"), 2),
        "au": None,
    }
    assert levels(build(make_run, "", null))["client.bound"] == "warning"


@pytest.mark.parametrize("rule_set", ["quick", "mlperf"])
def test_a_fed_run_is_not_refused_for_a_loader_just_above_the_demand(
    make_run: Build, rule_set: str
) -> None:
    close = {"rates": {"harness": 2150.0}}
    doc = build(make_run, "", {**FED, **close}, rules=rule_set)
    assert doc.validity == "valid"
    assert "harness.bound" not in levels(doc)


@pytest.mark.parametrize(
    "name", ["storage.throttled", "cpu.throttled", "cpu.affinity", "prefetch.share"]
)
def test_a_handicap_of_a_fed_run_is_a_warning(make_run: Build, name: str) -> None:
    doc = build(make_run, name, {**CASES[name][0], **FED}, rules="mlperf")
    assert levels(doc)[name] == "warning"
    assert doc.validity == "valid"


@pytest.mark.parametrize(
    ("cpu_busy", "cpu_s", "wall_s", "level"),
    [
        (0.24, 0.0, 70.0, None),  # 1.9 of 8 cores
        (0.26, 0.0, 70.0, "warning"),
        (0.9, 500.0, 70.0, None),  # 7.1 of 7.2 busy cores are its own
        (0.9, 0.0, 9.0, None),  # most of a short repetition is its own start
    ],
)
def test_other_load_is_what_the_run_did_not_take_itself(
    make_run: Build, cpu_busy: float, cpu_s: float, wall_s: float, level: str | None
) -> None:
    counters = {"wall_s": wall_s, "cpu_busy": cpu_busy}
    doc = build(make_run, "", {"repetition": {"cpu_s": cpu_s, "resources": counters}})
    assert levels(doc).get("cpu.other-load") == level


@pytest.mark.parametrize(("warm_up_s", "level"), [(10.0, "warning"), (50.0, None)])
def test_the_warm_up_of_a_model_is_no_other_load(
    make_run: Build, warm_up_s: float, level: str | None
) -> None:
    """The ranks' CPU time is that of the repetition, and the host's counters begin before it."""
    counters = {"wall_s": 70.0, "cpu_busy": 1.0}
    changes = merged(ENOUGH, {"repetition": {"cpu_s": 160.0, "resources": counters}})
    doc = make_run(**changes, concluded=False)
    doc.job.trained = StepFacts(model="resnet18", warm_up_s=warm_up_s)
    assert levels(conclude(doc)).get("cpu.other-load") == level


def test_records_without_counters_of_the_host_say_nothing(make_run: Build) -> None:
    doc = build(make_run, "", {"repetition": {"resources": None}}, rules="mlperf")
    assert "cpu.other-load" not in levels(doc)


def test_every_reference_is_the_workload_of_its_name(make_run: Build) -> None:
    for name in REFERENCES:
        doc = make_run(**closed(name), rules="mlperf")
        assert not CLOSED & set(levels(doc)), name


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"workload": {"accelerator": {"step_time": 0.2}}}, "accelerator.step_time"),
        ({"workload": {"accelerator": {"kind": "recorded"}}}, "accelerator.kind"),
        ({"workload": {"epochs": 4}}, "epochs"),
        ({"workload": {"max_steps": 500}}, "max_steps"),
        ({"workload": {"required_accelerator_utilization": 0.8}}, "required_accelerator_"),
        ({"workload": {"reader": {"shuffle": False}}}, "reader.shuffle"),
        ({"workload": {"loader": {"prefetch_factor": 2}}}, "prefetch_factor"),
        ({"loader": {"kind": "grain"}}, "loader.kind"),
        ({"dataset": {"spec": {"codec": "zstd"}}}, "dataset.codec"),
        ({"dataset": {"spec": {"format": "tar"}}}, "dataset.format"),
        ({"dataset": {"spec": {"sample_size": {"stdev": 0}}}}, "stdev"),
        ({"dataset": {"shards": 100}}, "shards"),
    ],
)
def test_closed_names_what_was_changed(make_run: Build, change: dict[str, Any], key: str) -> None:
    doc = make_run(**merged(closed(), change), rules="mlperf")
    (found,) = (finding for finding in doc.findings if finding.rule == "closed.settings")
    assert found.level == "invalid"
    assert key in found.evidence
    assert ";" not in found.evidence  # nothing else


@pytest.mark.parametrize(
    "change",
    [
        {"workload": {"loader": {"workers": 32, "prefetch_factor": 1}}},
        {"workload": {"reader": {"crop": None, "decode": False}}},
        {"workload": {"required_accelerator_utilization": 0.95}},
        {"loader": {"direct": True}},  # reader.odirect is free for unet3d
    ],
)
def test_closed_allows_its_free_parameters(make_run: Build, change: dict[str, Any]) -> None:
    assert "closed.settings" not in levels(make_run(**merged(closed(), change), rules="mlperf"))


def test_direct_reads_are_closed_for_unet3d_alone(make_run: Build) -> None:
    direct = {"loader": {"direct": True}}
    found = levels(make_run(**merged(closed("retinanet-b200"), direct), rules="mlperf"))
    assert found["closed.settings"] == "invalid"


def cold_fetch(doc: RunRecord) -> str | None:
    """The level of the finding about what a cache served."""
    return next((each.level for each in doc.findings if each.rule == "cache.cold-fetch"), None)


def counted(fetched: int | None, **more: Any) -> dict[str, Any]:
    """An epoch of 1,000 bytes of samples, of which storage delivered ``fetched``."""
    epoch = {"epoch": 0, "residency_before": 0.0, "sample_bytes": 1000, "bytes_fetched": fetched}
    return {"repetition": {"epochs": [epoch | more]}}


@pytest.mark.parametrize(
    ("fetched", "level"), [(990, None), (989, "invalid"), (5000, None), (0, "invalid")]
)
@pytest.mark.parametrize("direct", [True, False])
def test_storage_must_deliver_what_a_cold_epoch_delivers(
    make_run: Build, fetched: int, level: str | None, direct: bool
) -> None:
    doc = make_run(**counted(fetched), loader={"direct": direct})
    assert cold_fetch(doc) == level
    assert make_run(**counted(fetched), workload=WARM).validity == "valid"
    if level:
        assert "repetition 0, epoch 0" in doc.findings[0].evidence


@pytest.mark.parametrize(
    ("changes", "validity"),
    [
        ({}, "unknown"),
        ({"loader": {"direct": True}}, "valid"),
        ({"storage": {"scheme": "s3", "url": "s3://b", "page_cache": False}}, "valid"),
        ({"workload": WARM}, "valid"),
        (
            {"repetition": {"epochs": UNCOUNTED, "complete": False}, "status": "interrupted"},
            "unknown",
        ),
    ],
)
def test_what_nobody_counted_is_unknown_where_a_cache_could_have_served(
    make_run: Build, changes: dict[str, Any], validity: str
) -> None:
    assert make_run(**{"repetition": {"epochs": UNCOUNTED}, **changes}).validity == validity


def test_an_interrupted_repetition_needs_no_count_beside_complete_ones(make_run: Build) -> None:
    doc = make_run()
    cut = doc.job.repetitions[0].model_copy(
        update={"complete": False, "epochs": UNCOUNTED, "seed": 99}
    )
    doc = make_run(repetitions=1).with_job(repetitions=[*doc.job.repetitions, cut])
    assert cold_fetch(conclude(doc)) is None


def test_samples_delivered_again_may_come_from_the_cache(make_run: Build) -> None:
    """As torch's DistributedSampler does to make ranks equal: the dataset has 1,000 bytes."""
    twice = counted(1000, sample_bytes=1300)
    assert cold_fetch(make_run(**twice)) == "invalid"
    assert cold_fetch(make_run(**twice, dataset={"stored_bytes": 1000})) is None


def test_a_layout_without_the_framing_is_smaller_than_the_shards(make_run: Build) -> None:
    layout = {"kind": "litdata", "layout": {"bytes": 600, "seconds": 1.0}}
    stored = {"stored_bytes": 1000}
    assert cold_fetch(make_run(**counted(600), dataset=stored, loader=layout)) is None
    assert cold_fetch(make_run(**counted(590), dataset=stored, loader=layout)) == "invalid"
    larger = {"kind": "litdata", "layout": {"bytes": 3000, "seconds": 1.0}}  # it has no codec
    assert cold_fetch(make_run(**counted(1000), dataset=stored, loader=larger)) is None


@pytest.mark.parametrize(("fetched", "level"), [(3000, None), (0, "invalid"), (None, "unknown")])
def test_a_ceiling_is_cold_as_well(make_run: Build, fetched: int | None, level: str | None) -> None:
    cold = Epoch(epoch=0, sample_bytes=3000, bytes_fetched=fetched, fetched_how="not measured: why")
    ceiling = Ceiling(samples_per_s=4000.0, bytes_per_s=4e8, how="test", cold=cold)
    doc = make_run(concluded=False)
    doc.job.ceilings["fetch"] = ceiling
    doc = conclude(doc)
    assert cold_fetch(doc) == level
    if level:
        found = next(each for each in doc.findings if each.rule == "cache.cold-fetch")
        assert "ceiling fetch" in found.evidence


def test_a_repetition_without_checkpoints_is_cold_as_well(make_run: Build) -> None:
    doc = make_run()
    quiet = doc.job.repetitions[0].model_copy(update={"epochs": FED_BY_A_CACHE})
    assert cold_fetch(conclude(doc.with_job(quiet=quiet))) == "invalid"


def test_what_a_cache_served_does_not_prove_a_small_dataset_cold(make_run: Build) -> None:
    doc = make_run(repetition={"epochs": FED_BY_A_CACHE}, host={"memory_bytes": 10**12})
    assert "dataset.size" in {finding.rule for finding in doc.findings}


@pytest.mark.parametrize(("share", "refused"), [(0.01, False), (0.0101, True)])
def test_cold_means_at_most_one_percent(make_run: Build, share: float, refused: bool) -> None:
    assert (make_run(residency=share).validity == "invalid") is refused


def test_direct_reads_are_proof_where_residency_is_unknown(make_run: Build) -> None:
    doc = make_run(
        repetition={"epochs": UNMEASURED}, loader={"direct": True}, host={"memory_bytes": 10**12}
    )
    assert doc.validity == "valid"
    assert not any(
        finding.rule in ("dataset.size", "cache.cold-residency") for finding in doc.findings
    )


def test_a_small_dataset_is_fine_when_proven_cold(make_run: Build) -> None:
    assert not any(
        finding.rule == "dataset.size"
        for finding in make_run(host={"memory_bytes": 10**12}).findings
    )


@pytest.mark.parametrize("samples", [119_999, 120_001])
def test_a_sample_lost_or_delivered_twice_is_refused(make_run: Build, samples: int) -> None:
    doc = make_run(repetition={"samples": samples})
    assert doc.validity == "invalid"
    assert doc.findings[0].rule == "data.mismatch"


def test_fewer_samples_are_right_where_steps_are_limited(make_run: Build) -> None:
    assert (
        make_run(repetition={"samples": 100_000}, workload={"max_steps": 500}).validity == "valid"
    )


def test_prefetched_batches_flatter_a_short_run(make_run: Build) -> None:
    """The reference benchmark's window: two of six batches wait in the queue when the clock
    starts.
    """
    short = make_run(repetition={"samples": 4800, "steps": 48}, workload={"max_steps": 12})
    found = next(finding for finding in short.findings if finding.rule == "prefetch.share")
    assert (
        "33%" in found.evidence
    )  # 2 workers x 2 batches x 100 samples x 2 ranks = 800 of 2,400 in an epoch


@pytest.mark.parametrize(
    ("late_p99_s", "late_left_s", "in_flight", "found"),
    [
        # Steps of 0.1 s. The next step makes up for a late wake-up, and 4 batches in flight keep
        # the workers busy meanwhile.
        (0.006, 0.0002, 4, False),
        (0.29, 0.0002, 4, False),
        (0.31, 0.0002, 4, True),
        (0.09, 0.0002, 2, False),
        (0.11, 0.0002, 2, True),
        (0.009, 0.0002, 1, False),  # nothing is prefetched
        (0.011, 0.0002, 1, True),
        (0.0001, 0.64, 4, False),  # of 65 s
        (0.0001, 0.66, 4, True),
    ],
)
def test_late_wake_ups_are_found_where_they_change_the_result(
    make_run: Build, late_p99_s: float, late_left_s: float, in_flight: int, found: bool
) -> None:
    late = {"late_p99_s": late_p99_s, "late_left_s": late_left_s}
    doc = make_run(repetition=late, loader={"in_flight_batches": in_flight})
    assert ("emulation.error" in {each.rule for each in doc.findings}) == found


def test_batches_in_flight_follow_from_the_settings(make_run: Build) -> None:
    """2 workers with 2 batches each; without workers there is one batch."""
    for loader, late, found in (
        ({"workers": 2, "prefetch_factor": 2}, 0.29, False),
        ({"workers": 2, "prefetch_factor": 2}, 0.31, True),
        ({"workers": 0, "transport": "tensor"}, 0.011, True),
        ({"workers": 0, "transport": "tensor"}, 0.009, False),
    ):
        doc = make_run(repetition={"late_p99_s": late}, workload={"loader": loader})
        assert ("emulation.error" in {each.rule for each in doc.findings}) == found, loader


def test_gap_names_turns_of_fetch_and_prep(make_run: Build) -> None:
    # 1 / (1/2500 + 1/3000 + 1/8000) = 1,165 is what one gets without overlap.
    doc = make_run(rates={"fetch": 2500, "prep": 3000}, measured=1350, au=0.67)
    assert "1,165" in next(f for f in doc.findings if f.rule == "verdict.gap").evidence
    fast = make_run(measured=2500)
    assert "1.25 x" in next(f for f in fast.findings if f.rule == "verdict.gap").evidence


def test_findings_of_the_runner_are_kept_and_the_gravest_comes_first(make_run: Build) -> None:
    own = Finding(rule="storage.odd", level="info", evidence="the mount is odd")
    doc = make_run(au=0.5, findings=[own])
    assert own in doc.findings
    order = [
        finding.level
        for finding in evaluate(
            make_run(rules="mlperf", au=0.5, rates={"storage_raw": None}), "mlperf"
        )
    ]
    assert order == sorted(order, key=("invalid", "warning", "unknown", "info").index)


def test_unknown_rule_set() -> None:
    with pytest.raises(UsageError, match="Known: quick, mlperf"):
        validity([], "strict")


def test_an_nfs_mount_without_retransmissions_is_fine(make_run: Build) -> None:
    doc = make_run(storage=NFS_MOUNT, repetition={"nfs": {"read_ops": 9000, "retransmits": 0}})
    assert not any(finding.rule == "nfs.retransmits" for finding in doc.findings)
    again = make_run(storage=NFS_MOUNT, repetition={"nfs": {"read_ops": 9000, "retransmits": 1}})
    assert (
        "5 NFS requests" in next(f for f in again.findings if f.rule == "nfs.retransmits").evidence
    )  # one in each of 5 repetitions


@pytest.mark.parametrize(("missing", "level"), [(99, None), (396, None), (397, "invalid")])
def test_a_dropped_tail_is_a_batch_for_each_worker_at_most(
    make_run: Build, missing: int, level: str | None
) -> None:
    """Batches of 100, two workers of each of two ranks: 396 samples may be left out, and no
    more.
    """
    proof = {**PROOF, "delivered": 1000 - missing, "missing": missing, "repeated": 0}
    doc = make_run(workload={"reader": {"tail": "drop"}}, loader={"delivery": proof, "workers": 2})
    assert (
        next((found.level for found in doc.findings if found.rule == "loader.delivery"), None)
        == level
    )


@pytest.mark.parametrize(
    ("kind", "repeated", "level"),
    [("grain", 1, None), ("grain", 2, "invalid"), ("iobench", 1, "invalid")],
)
def test_a_library_may_make_its_ranks_equal(
    make_run: Build, kind: str, repeated: int, level: str | None
) -> None:
    """Two ranks: one sample twice makes their shares equal."""
    loader = {
        "kind": kind,
        "delivery": {**PROOF, "delivered": 1000 + repeated, "repeated": repeated},
    }
    doc = make_run(loader=loader, repetition={"samples": 120_000 + 2 * repeated})  # of two epochs
    levels = {found.rule: found.level for found in doc.findings}
    assert levels.get("loader.delivery") == levels.get("data.mismatch") == level
