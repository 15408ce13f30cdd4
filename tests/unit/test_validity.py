"""Each rule has a run that keeps it, one that breaks it, and one in which its evidence is
missing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from iobench.base.errors import UsageError
from iobench.base.units import format_duration
from iobench.judge.judged import effective_cores, judge
from iobench.judge.rebuild import conclude
from iobench.judge.rules_mlperf import REFERENCES
from iobench.judge.validity import RULES, evaluate, level_of, validity, violations
from iobench.record.host import JobHost
from iobench.record.run import CHANGED, Finding, RunRecord
from iobench.record.training import CacheUse, Ceiling, Epoch, RunLog
from iobench.report.answer import answer
from iobench.report.record import sections
from iobench.report.sections import FirstScreen
from iobench.settings.dataset import load_dataset_spec
from iobench.settings.workload import load_workload
from tests.unit.conftest import build_run

WARM = {"cache": "any"}
STAGED = {
    "workload": {"accelerator": {"name": "h100", "step_time": 0.05, "sync": "step", "staged": 1}}
}
UNMEASURED = [Epoch(epoch=0, residency_before=None, residency_how="no cachestat"), Epoch(epoch=1)]
PARTLY_WARM = [Epoch(epoch=0, residency_before=1.0), Epoch(epoch=1, residency_before=0.44)]
FILLED = {"cache": "warm"}
HALF_MEASURED = [Epoch(epoch=0, residency_before=0.4), Epoch(epoch=1)]
ONE_HOT_EPOCH = [Epoch(epoch=0, residency_before=0.0), Epoch(epoch=1, residency_before=0.02)]
FED_BY_A_CACHE = [
    Epoch(epoch=0, residency_before=0.0, sample_bytes=1000, bytes_read=1000, bytes_fetched=1004),
    Epoch(epoch=1, residency_before=0.0, sample_bytes=1000, bytes_read=1000, bytes_fetched=989),
]
COPIED_AGAIN = [
    epoch.model_copy(
        update={
            "bytes_read": 1420,
            "bytes_fetched": 1420,
            "local_cache": CacheUse(storage_bytes=1420),
        }
    )
    for epoch in FED_BY_A_CACHE
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
LOOP = {"name": "loop0", "backing_file": "/x.img", "backing_direct": False}

OWN_LOAD = {"wall_s": 70.0, "own_cpu_s": 0.0, "children_cpu_s": 20.0}

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

STOOD_STILL = [
    {"rank": rank, "wall_s": 65.0, "busy_s": 50.0, "fill_s": 1.0, "wait_s": 10.0}
    | {"lost_s": 4.0 * rank}
    for rank in range(2)
]
"""The times of ranks of which number 1 was stopped for four seconds."""

ENOUGH: dict[str, Any] = {
    "repetitions": 6,  # the first one is MLPerf's warm-up
    "accelerators": 1,  # so that no barrier is missing
    "rates": {"accelerator": 2000.0},
    "repetition": {"steps": 1000, "resources": OWN_LOAD | {"cpu_busy": 0.1}},
    "workload": {"accelerator": {"kind": "emulated", "name": "h100", "step_time": 0.05}},
}
"""What the run of ``build_run`` lacks under MLPerf's rules: 500 steps in each of two epochs."""


@cache
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
    times = dict.fromkeys(("storage_raw", "fetch", "prep", "loader"), 3 * demand)
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
    """``one`` with the keys of ``other`` replaced; dictionaries are merged key by key.

    ``a.b`` is the key ``b`` of the dictionary ``a``.
    """
    found = dict(one)
    for path, given in other.items():
        key, _, rest = path.partition(".")
        value = {rest: given} if rest else given
        old = found.get(key)
        deeper = isinstance(value, dict) and (rest or isinstance(old, dict))
        found[key] = merged(old if isinstance(old, dict) else {}, value) if deeper else value
    return found


STARVED = {"au": 0.8, "measured": 1600.0}
BUSY_HOST = {"repetition": {"resources": OWN_LOAD | {"cpu_busy": 0.6}}}  # 0.3 of 8 cores its own
EPOCHS = {"name": "h100", "step_time": 0.1, "sync": "epoch"}

CLOSED = {"closed.workload", "closed.settings"}
"""Rules whose good run is ``closed()``."""

# rule: (changes to a good run that break the rule, changes that take its evidence away; None: its
# evidence is in every record)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "data.mismatch": ({"repetition.bytes_read": 11_000_000_000}, {"repetitions": 0}),
    "loader.delivery": (
        {"loader.delivery": PROOF},
        {"loader.delivery.not_measured": "no checksums"},
    ),
    "data.changed": ({"dataset.changed": ["data/3.tar"]}, {"dataset.changed": None}),
    CHANGED: ({"changed": ("events.parquet is another file",)}, None),
    "storage.throttled": ({**STARVED, "repetition.throttled": 3}, {"repetition.throttled": None}),
    "storage.retries": ({"repetition.retries": 1}, {"repetition.retries": None}),
    "cache.cold-residency": (
        {"repetition.epochs": ONE_HOT_EPOCH},
        {"repetition.epochs": UNMEASURED},
    ),
    "cache.cold-fetch": ({"repetition.epochs": FED_BY_A_CACHE}, {"repetition.epochs": UNCOUNTED}),
    "cache.loop": ({"storage.devices": [LOOP]}, None),
    "cache.local": (
        {"local_cache": {"fs_type": "tmpfs", "direct": True}},
        {"local_cache": {"fs_type": "ext4", "direct": False}},
    ),
    "cache.reads-more": (
        {
            "local_cache": {"fs_type": "ext4", "direct": True, "share": 0.34},
            "repetition.epochs": COPIED_AGAIN,
        },
        None,
    ),
    "cache.warm-residency": ({"workload": FILLED, "repetition.epochs": PARTLY_WARM}, None),
    "cache.residency-unknown": (
        {"workload": WARM, "repetition.epochs": HALF_MEASURED},
        {"workload": WARM, "repetition.epochs": UNMEASURED},
    ),
    "serve.log-behind": ({"repetition.log": RunLog(keeps_up=False, left=3, at_risk=0)}, None),
    "serve.log-volatile": ({"repetition.log": RunLog(volatile=2, at_risk=2)}, None),
    "serve.log-unproven": ({"repetition.log": RunLog(keeps_up=True)}, None),
    "run.incomplete": ({"status": "interrupted"}, {"repetitions": 0}),
    "run.steps": ({"repetition.steps": 499}, {"repetition.steps": 0}),
    "run.duration": ({"repetition.wall_s": 9.9}, {"repetition.wall_s": None}),
    "run.repetitions": ({"repetitions": 4}, {"repetitions": 0}),
    "run.replicability": ({"spread": (1, 1, 1, 1, 1, 1.07)}, {"repetitions": 5}),
    "seed.changes": ({"repetition.seed": 7}, {"repetitions": 0}),
    "dataset.size": (
        {"workload": WARM, "residency": 0.5, "host.memory_bytes": 1_300_000_000},
        {"workload": WARM, "residency": 0.5, "host.memory_bytes": None},
    ),
    "nfs.retransmits": (
        {"storage": NFS_MOUNT, "repetition.nfs.read_ops": 9000, "repetition.nfs.retransmits": 3},
        {"storage": NFS_MOUNT, "repetition.nfs": None},
    ),
    "au.threshold": ({"au": 0.89}, {"au": None}),
    "au.barrier": ({"accelerators": 2, "workload.accelerator": EPOCHS}, None),
    "au.staged": (STAGED, None),
    "rank.stood-still": ({"repetition.ranks": STOOD_STILL}, None),
    "ranks.uneven": ({"repetition.ranks": UNEVEN}, None),
    "hosts.skew": ({"repetition.hosts": [{"host": 0}, {"host": 1, "start_skew_s": 9.0}]}, None),
    "host.slow": (
        {
            "repetition.hosts": [
                {"host": host, "ranks": 1, "own_samples_per_s": rate}
                for host, rate in enumerate((1900.0, 950.0))
            ]
        },
        None,
    ),
    "cpu.throttled": ({**STARVED, "repetition.throttled_s": 6.5}, {"repetition.throttled_s": None}),
    "cpu.affinity": ({**STARVED, "host.affinity_cores": 2}, {"host.affinity_cores": None}),
    "cpu.other-load": (BUSY_HOST, {"repetition.resources.cpu_busy": None}),
    "host.interposed": ({"host.interposed": {"fsync": "libeatmydata.so"}}, None),
    "loader.bound": ({**STARVED, "rates.loader": 1700}, {**STARVED, "rates.loader": None}),
    "client.bound": (
        {**STARVED, "host.cores": 0.1, "host.affinity_cores": 0.1, "host.effective_cores": 0.1},
        {**STARVED, "rates.fetch": None},
    ),
    "emulation.error": (
        {"repetition.late_left_s": 0.66},  # of 65 s
        {"repetition.late_left_s": None},
    ),
    "prefetch.share": (
        {**STARVED, "loader.prefetched_samples": 6_600},
        {"workload.batch_size": None},
    ),
    "verdict.disagreement": (
        {
            "rates.prep": 1000.0,
            "measured": 980.0,
            "au": 0.49,
            "ablations": [
                {"stage": "storage", "gain": {"value": 2.0, "low": 1.9, "high": 2.1, "n": 3}},
                {"stage": "prep", "gain": {"value": 1.0, "low": 0.98, "high": 1.02, "n": 3}},
            ],
        },
        None,
    ),
    "accelerator.shares-cores": (
        {"trained.model": "resnet50", "repetition.busy_s": 64.0},
        {"trained.model": "resnet50", "rates.accelerator": None},
    ),
    "verdict.gap": ({"measured": 1500.0}, {"measured": None}),
    "raw.not-measured": ({"rates.storage_raw": None}, {"ceilings": {}}),
    "raw.low": ({"rates.storage_raw": 10.0}, {"rates.fetch": None}),
    "read.amplification": (
        {"repetition.bytes_read": 18_100_000_000},
        {"repetition.sample_bytes": 0},
    ),
    "loader.tax": (
        {"host.cores": 0.2},
        {"host": dict.fromkeys(("cores", "affinity_cores", "effective_cores"))},
    ),
    "rate.falls": ({"repetition.rates": HALVED}, {"repetition.rates": None}),
    "cache.first-touch": ({"spread": (0.5, 1, 1.01, 0.99, 1, 1)}, {"measured": None}),
    "device.other-load": (
        {
            "repetition.resources.device": "vda",
            "repetition.resources.device_read_bytes": 15_000_000_000,
        },
        {"repetition.resources.device": "vda"},
    ),
    "device.served-by-cache": (
        {
            "storage": LOCAL,
            "repetition.resources.device": "vda",
            "repetition.resources.device_read_bytes": 3_000_000_000,
        },
        {"storage": LOCAL, "repetition.resources.device": "vda"},
    ),
    "closed.workload": ({"workload.name": "my-training"}, {"workload.name": "?"}),
    "closed.settings": ({"workload.batch_size": 8}, {"workload.batch_size": None}),
}


ALWAYS = (
    "data.mismatch",
    "loader.delivery",
    "data.changed",
    "cache.cold-residency",
    "cache.cold-fetch",
    "cache.local",
    "serve.log-behind",
    "serve.log-volatile",
)


INCONCLUSIVE = (CHANGED, "cache.loop")


def build(rule: str, changes: dict[str, Any], **more: Any) -> RunRecord:
    """A run that keeps all rules of both sets but for ``changes``."""
    arguments = merged(closed() if rule in CLOSED else ENOUGH, changes) | more
    spread, changed = arguments.pop("spread", None), arguments.pop("changed", ())
    doc = build_run(**arguments, concluded=False).with_changes(changed)
    for repetition, factor in zip(doc.job.repetitions, spread or (), strict=False):
        repetition.samples_per_s *= factor
    return conclude(doc)


@cache
def good(closed_rules: bool) -> RunRecord:
    """A run that keeps all rules; ``closed_rules``: those of ``CLOSED`` as well."""
    return build("closed.workload" if closed_rules else "", {})


def levels(doc: RunRecord) -> dict[str, str]:
    return {finding.rule: finding.level for finding in doc.findings}


def test_every_rule_has_fixtures_and_an_id_of_its_own() -> None:
    assert sorted(rule.id for rule in RULES) == sorted(CASES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_pass_fail_unknown(rule: Any) -> None:
    changes, missing = CASES[rule.id]
    broken = build(rule.id, changes)
    silent = build(rule.id, missing) if missing is not None else None
    for rule_set in ("quick", "mlperf"):
        expected = level_of(rule.levels, rule_set)
        assert rule(judge(good(rule.id in CLOSED)), rule_set) is None
        violation = rule(judge(broken), rule_set)
        gap = rule(judge(silent), rule_set) if silent is not None else None
        if expected is None:
            assert violation is gap is None
            continue
        assert (violation.rule, violation.level) == (rule.id, expected)
        assert violation.evidence
        assert violation.remedy
        assert silent is None or (gap.level == "unknown" and gap.evidence)
        # What a run is called by all its rules.
        found = evaluate(broken, rule_set)
        whole = validity(found, rule_set)
        if rule_set == "quick":
            inconclusive = "unknown" if rule.id in INCONCLUSIVE else "valid"
            assert whole == ("invalid" if rule.id in ALWAYS else inconclusive)
        elif expected == "invalid" or rule.id in INCONCLUSIVE:
            assert whole == expected


FED = {"au": 0.99, "measured": 1980.0}
TWO_CORES = dict.fromkeys(("cores", "affinity_cores", "effective_cores"), 2)
FAST_READER = {"rates": {"fetch": 40_000.0, "storage_raw": 45_000.0}, "host": TWO_CORES}
NO_DEMAND = {
    "workload": {"accelerator": {"kind": "null", "step_time": None}},
    "rates": {"accelerator": None},
    "au": None,
}
TERABYTE = {"host": {"memory_bytes": 10**12}}
GROUP = {"memory_bytes": 64_000_000_000, "effective_memory_bytes": 1_000_000_000}


def in_epochs(*steps: int | None) -> dict[str, Any]:
    epochs = [
        Epoch(epoch=number, steps=count, residency_before=0.0, bytes_fetched=6_000_000_000)
        for number, count in enumerate(steps)
    ]
    return {"repetition": {"epochs": epochs}}


def other_load(cpu_busy: float, cpu_s: float, wall_s: float, **own: float) -> dict[str, Any]:
    counters = workers(0.0, cpu_s) | {"wall_s": wall_s, "cpu_busy": cpu_busy, **own}
    return {"repetition": {"cpu_s": cpu_s, "resources": counters}}


def workers(own_s: float, children_s: float) -> dict[str, float]:
    return {"own_cpu_s": own_s, "children_cpu_s": children_s}


@pytest.mark.parametrize(
    ("rule", "rule_set", "changes", "level"),
    [
        # MLPerf wants data of five times the memory, however cold the reads are.
        ("dataset.size", "mlperf", TERABYTE, "invalid"),
        ("dataset.size", "mlperf", {**TERABYTE, "loader.direct": True}, "invalid"),
        ("dataset.size", "mlperf", {"host.memory_bytes": 1_200_000_000}, None),
        ("dataset.size", "quick", TERABYTE, None),
        # It asks for the memory that the hosts have, the other set for what is allowed.
        ("dataset.size", "mlperf", {"host": GROUP}, "invalid"),
        ("dataset.size", "quick", {**merged(FED, {"workload": WARM}), "host": GROUP}, None),
        # 500 steps in each epoch; where only their sum is known, their mean.
        ("run.steps", "mlperf", in_epochs(500, 500), None),
        ("run.steps", "mlperf", in_epochs(900, 100), "invalid"),
        ("run.steps", "mlperf", in_epochs(None, None), None),
        # A warm-up, and five runs.
        ("run.repetitions", "mlperf", {"repetitions": 5}, "invalid"),
        # Within five percent of their mean, and the warm-up is not counted.
        ("run.replicability", "mlperf", {"spread": (0.5, 1, 1, 1, 1, 1)}, None),
        ("run.replicability", "mlperf", {"spread": (1, 1, 1, 1, 1, 1.06)}, None),  # 4.7 %
        ("run.replicability", "mlperf", {"spread": (1, 1, 1, 1, 1, 0.93)}, "invalid"),
        # A reader that takes all cores at 20 x the demand takes a tenth of one at the demand.
        ("client.bound", "mlperf", {**FED, **FAST_READER}, None),
        ("client.bound", "mlperf", {**STARVED, **FAST_READER}, None),
        ("client.bound", "quick", merged(FAST_READER, NO_DEMAND), "warning"),
        # A loader just above the demand of a fed run.
        ("loader.bound", "mlperf", {**FED, "rates.loader": 2150.0}, None),
        # Other processes took what the run did not take itself: more than 2 of 8 cores.
        ("cpu.other-load", "quick", other_load(0.24, 0.0, 70.0), None),
        ("cpu.other-load", "quick", other_load(0.26, 0.0, 70.0), "warning"),
        ("cpu.other-load", "quick", other_load(0.9, 2, 3.0, **workers(0.5, 2)), "warning"),
        # Workers that nobody waited for, and too short for the kernel's ticks.
        ("cpu.other-load", "quick", other_load(0.9, 16, 3.0, **workers(4, 2)), None),
        ("cpu.other-load", "quick", other_load(0.9, 0, 0.1, **workers(0, 0)), None),
        ("cpu.other-load", "mlperf", {"repetition.resources": None}, None),
    ],
)
def test_the_limits_of_a_rule(
    rule: str, rule_set: str, changes: dict[str, Any], level: str | None
) -> None:
    doc = build(rule, changes, rules=rule_set)
    assert levels(doc).get(rule) == level


def test_the_memory_of_all_hosts_counts() -> None:
    doc = build("", {"host": {"memory_bytes": 1_200_000_000}}, rules="mlperf")
    doc.hosts.append(doc.hosts[0])
    assert levels(conclude(doc))["dataset.size"] == "invalid"


@pytest.mark.parametrize("starved", [STARVED, {}])
def test_the_verdict_names_a_slow_host_where_accelerators_starve(starved: dict[str, Any]) -> None:
    doc = build("host.slow", merged(starved, CASES["host.slow"][0]))
    assert "host.slow" in levels(doc)
    said = "Host 1 is slower than the others."
    assert (said in doc.job.verdict.sentence) == bool(starved), doc.job.verdict.sentence
    assert (said in " ".join(answer(doc).sentences)) == bool(starved)


def test_a_slow_rank_is_named_with_its_host() -> None:
    changes = {**STARVED, "accelerators": 3, "repetition.ranks": UNEVEN}
    doc = build("ranks.uneven", changes)
    doc.job.hosts = [
        JobHost(name="h0", first_rank=0, ranks=1),
        JobHost(name="h1", first_rank=1, ranks=2),
    ]
    doc = conclude(doc)
    assert "The others wait for rank 1 on host 1 (h1)." in doc.job.verdict.sentence
    (found,) = (each for each in doc.findings if each.rule == "ranks.uneven")
    assert found.evidence.startswith("rank 1 on host 1 (h1) waited ")
    assert "The others wait for rank 1 on host 1 (h1)." in doc.job.verdict.explanation


def test_the_host_with_too_small_a_quota_is_named() -> None:
    times = [{"host": at, "resources": OWN_LOAD | {"throttled_s": 6.5 * at}} for at in range(2)]
    doc = build("", {**STARVED, "repetition": {"throttled_s": 6.5, "hosts": times}})
    doc.hosts.append(doc.hosts[0].model_copy(update={"cpu_quota_cores": 0.5}))
    doc.job.hosts = [JobHost(name="h0", ranks=1), JobHost(name="h1", ranks=1)]
    found = {each.rule: each.evidence for each in conclude(doc).findings}
    # The kernel's count is a sum over the cores, which may be longer than the repetition.
    wall_s = doc.job.repetitions[0].wall_s
    assert found["cpu.throttled"] == (
        "the CPU quota throttled host 1 (h1) for 6.50 s, summed over the cores, in a repetition of "
        f"{format_duration(wall_s)}"
    )
    assert found["cpu.affinity"] == "this run may use 0.5 of the 8 cores of host 1 (h1)"


@pytest.mark.parametrize("machines", [("a", "b"), ("a", "a")])
def test_a_host_whose_cores_others_use_is_named(machines: tuple[str, str]) -> None:
    """8 cores each: the run used 0.3 of them on both, and others 4.5 on the second one."""
    each = {"ranks": 1, "resources": OWN_LOAD | {"cpu_busy": 0.05}}
    busy = {"host": 1, "ranks": 1, "resources": OWN_LOAD | {"cpu_busy": 0.6}}
    own = {"cpu_s": 20.0, "resources": OWN_LOAD, "hosts": [{"host": 0, **each}, busy]}
    doc = build("", {"accelerators": 2, "repetition": own})
    doc.hosts.append(doc.hosts[0])
    doc.job.hosts = [JobHost(name=f"h{n}", ranks=1, machine=one) for n, one in enumerate(machines)]
    done = conclude(doc)
    (found,) = (each for each in done.findings if each.rule == "cpu.other-load")
    assert effective_cores(doc) == 8.0 * len({*machines})
    assert "cpu.affinity" not in levels(done)
    if machines == ("a", "a"):  # each is a load to the other
        assert found.level == "unknown"
        return
    assert found.level == "warning"
    assert "4.5 of the 8 cores that host 1 (h1) has" in found.evidence
    (screen,) = (section for section in sections(done) if isinstance(section, FirstScreen))
    assert found.evidence[1:] in screen.trust
    assert "host 0" not in found.evidence


def test_requests_that_the_server_asked_to_slow_down_do_not_count_as_sent_again() -> None:
    doc = build("", {"repetition": {"retries": 9, "throttled": 4, "requests": 400}})
    found = {each.rule: each.evidence for each in doc.findings}
    again = "30 requests were sent again beside 2,400 reads"  # of six repetitions
    assert again in found["storage.retries"]
    assert "asked for a lower request rate 24 times" in found["storage.throttled"]
    asked = build("", {"repetition": {"retries": 4, "throttled": 4}})
    assert "storage.retries" not in levels(asked)


def test_mlperf_counts_its_own_utilization_in_each_counted_run() -> None:
    """0.91 without the first step and 0.85 with it: MLPerf accepts what quick warns about."""
    doc = build("", {"repetition": {"accelerator_utilization_sustained": 0.85}})
    assert levels(doc)["au.threshold"] == "warning"
    assert "au.threshold" not in {finding.rule for finding in evaluate(doc, "mlperf")}
    # One of five counted runs below the threshold is refused, although the median is above it.
    for number, refused in ((0, False), (3, True)):
        doc = build("", {}, rules="mlperf")
        doc.job.repetitions[number].accelerator_utilization = 0.89
        assert (levels(conclude(doc)).get("au.threshold") == "invalid") == refused


@pytest.mark.parametrize(
    "name", ["storage.throttled", "cpu.throttled", "cpu.affinity", "prefetch.share"]
)
def test_a_handicap_of_a_fed_run_is_a_warning(name: str) -> None:
    doc = build(name, {**CASES[name][0], **FED}, rules="mlperf")
    assert levels(doc)[name] == "warning"
    assert doc.validity == "valid"


@pytest.mark.parametrize(("residency", "level"), [(0.95, None), (0.44, "warning")])
def test_a_warm_cache_holds_the_data_or_is_told_not_to(residency: float, level: str | None) -> None:
    """A control group of 1 GB on a host of 64 GB, and data of 6 GB."""
    doc = build_run(workload=FILLED, residency=residency, host=GROUP)
    assert levels(doc).get("cache.warm-residency") == level
    assert doc.memory_bytes == 1_000_000_000


def test_every_reference_is_the_workload_of_its_name() -> None:
    for name in REFERENCES:
        doc = build_run(**closed(name), rules="mlperf")
        assert not CLOSED & set(levels(doc)), name


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"workload.accelerator.step_time": 0.2}, "accelerator.step_time"),
        ({"workload.max_steps": 500}, "max_steps"),
        ({"workload.required_accelerator_utilization": 0.8}, "required_accelerator_"),
        ({"workload.reader.shuffle": False}, "reader.shuffle"),
        ({"workload.loader.prefetch_factor": 2}, "prefetch_factor"),
        ({"loader.kind": "grain"}, "loader.kind"),
        ({"dataset.spec.codec": "zstd"}, "dataset.codec"),
        ({"dataset.spec.sample_size.stdev": 0}, "stdev"),
        ({"dataset.shards": 100}, "shards"),
        # What is free; reader.odirect is for unet3d alone.
        ({"workload.loader.workers": 32, "workload.loader.prefetch_factor": 1}, None),
        ({"workload.reader.crop": None, "workload.reader.decode": False}, None),
        ({"workload.required_accelerator_utilization": 0.95}, None),
        ({"loader.direct": True}, None),
    ],
)
def test_closed_names_what_was_changed(change: dict[str, Any], key: str | None) -> None:
    doc = build_run(**merged(closed(), change), rules="mlperf")
    found = [finding for finding in doc.findings if finding.rule == "closed.settings"]
    assert [finding.level for finding in found] == (["invalid"] if key else [])
    for finding in found:
        assert key in finding.evidence
        assert ";" not in finding.evidence  # nothing else


def test_direct_reads_are_closed_for_unet3d_alone() -> None:
    direct = {"loader": {"direct": True}}
    found = levels(build_run(**merged(closed("retinanet-b200"), direct), rules="mlperf"))
    assert found["closed.settings"] == "invalid"


def counted(fetched: int | None, **more: Any) -> dict[str, Any]:
    """An epoch of 1,000 bytes of samples, of which storage delivered ``fetched``."""
    epoch = {"epoch": 0, "residency_before": 0.0, "sample_bytes": 1000, "bytes_fetched": fetched}
    return {"repetition": {"epochs": [epoch | more]}}


def litdata(size: int) -> dict[str, Any]:
    """The dataset has 1,000 bytes as shards, and ``size`` in the library's layout."""
    layout = {"kind": "litdata", "layout": {"bytes": size, "seconds": 1.0}}
    return {"dataset": {"stored_bytes": 1000}, "loader": layout}


def two_batches(workers: int, prefetch: int, late_p99_s: float) -> dict[str, Any]:
    transport = "ring" if workers else "tensor"
    loader = {"workers": workers, "prefetch_factor": prefetch, "transport": transport}
    return {"repetition": {"late_p99_s": late_p99_s}, "workload": {"loader": loader}}


def late(late_p99_s: float, left_s: float, in_flight: int) -> dict[str, Any]:
    return {
        "repetition": {"late_p99_s": late_p99_s, "late_left_s": left_s},
        "loader": {"in_flight_batches": in_flight},
    }


def delivered(missing: int, repeated: int, **loader: Any) -> dict[str, Any]:
    proof = {**PROOF, "delivered": 1000 - missing + repeated}
    return {"loader": {"delivery": {**proof, "missing": missing, "repeated": repeated}, **loader}}


TAIL = {"workload": {"reader": {"tail": "drop"}}}
GB = 10**9
DIRECT = {"loader.direct": True}
NOBODY_COUNTED = {"repetition.epochs": [Epoch(epoch=each, residency_before=0.0) for each in (0, 1)]}
LOCALLY = {"storage": LOCAL, "workload": WARM}


def rated(*measured: float) -> dict[str, Any]:
    """Repetitions of these rates."""
    return {"measured": list(measured), "repetitions": len(measured)}


def device(read_gb: int, **more: Any) -> dict[str, Any]:
    """A repetition of 12 GB of samples, in which the device read so many bytes."""
    read = {"device": "vda", "device_read_bytes": read_gb * GB}
    return {"repetition.resources": read, **more}


@pytest.mark.parametrize(
    ("rule", "changes", "level"),
    [
        # Storage must deliver what a cold epoch delivers.
        ("cache.cold-fetch", counted(990), None),
        ("cache.cold-fetch", counted(989), "invalid"),
        ("cache.cold-fetch", {**counted(0), "workload": WARM}, None),
        # Samples that are delivered again may come from the cache, as with torch's
        # DistributedSampler, which makes ranks equal.
        ("cache.cold-fetch", counted(1000, sample_bytes=1300), "invalid"),
        (
            "cache.cold-fetch",
            {**counted(1000, sample_bytes=1300), "dataset.stored_bytes": 1000},
            None,
        ),
        # A layout without the framing is smaller than the shards; without a codec it is larger.
        ("cache.cold-fetch", {**counted(600), **litdata(600)}, None),
        ("cache.cold-fetch", {**counted(590), **litdata(600)}, "invalid"),
        ("cache.cold-fetch", {**counted(1000), **litdata(3000)}, None),
        # What proves reads cold, and what does not.
        ("dataset.size", TERABYTE, None),
        ("dataset.size", {"repetition.epochs": FED_BY_A_CACHE, **TERABYTE}, "warning"),
        ("cache.cold-residency", {"repetition.epochs": UNMEASURED, "loader.direct": True}, None),
        ("cache.loop", {"storage.devices": [LOOP | {"backing_direct": True}]}, None),
        # Each sample once, but for what a limit of steps leaves out.
        ("data.mismatch", {"repetition.samples": 119_999}, "invalid"),
        ("data.mismatch", {"repetition.samples": 100_000, "workload.max_steps": 500}, None),
        # The reference benchmark's window: two of six batches wait when the clock starts.
        (
            "prefetch.share",
            {"repetition.samples": 4800, "repetition.steps": 48, "workload.max_steps": 12},
            "warning",
        ),
        # Steps of 0.1 s. The next step makes up for a late wake-up, and 4 batches in flight keep
        # the workers busy meanwhile.
        ("emulation.error", late(0.29, 0.0002, 4), None),
        ("emulation.error", late(0.31, 0.0002, 4), "warning"),
        ("emulation.error", late(0.009, 0.0002, 1), None),  # nothing is prefetched
        ("emulation.error", late(0.011, 0.0002, 1), "warning"),
        # Batches in flight follow from the settings; without workers there is one.
        ("emulation.error", two_batches(2, 2, 0.31), "warning"),
        ("emulation.error", two_batches(0, 2, 0.011), "warning"),
        # A dropped tail is a batch for each worker at most: of 100, for two of each of two ranks.
        ("loader.delivery", {**TAIL, **delivered(396, 0, workers=2)}, None),
        ("loader.delivery", {**TAIL, **delivered(397, 0, workers=2)}, "invalid"),
        # A library may make its two ranks equal with one sample twice.
        ("loader.delivery", delivered(0, 1, kind="grain"), None),
        ("loader.delivery", delivered(0, 2, kind="grain"), "invalid"),
        ("loader.delivery", delivered(0, 1, kind="iobench"), "invalid"),
        ("data.mismatch", {**delivered(0, 1, kind="grain"), "repetition.samples": 120_002}, None),
        # The first repetition is compared with the spread of the others.
        ("cache.first-touch", rated(900, 1900, 1910, 1890, 1900), "warning"),
        ("cache.first-touch", rated(1810, 1900, 1900, 1900, 1900), None),  # below the threshold
        ("cache.first-touch", rated(1700, 1900, 1900, 1900, 1900), "warning"),
        ("cache.first-touch", rated(1500, 1900, 1500, 2100, 1300), None),  # within their spread
        ("cache.first-touch", rated(1300, 1900, 1500, 2100, 1700), None),  # the lowest, not far off
        ("cache.first-touch", rated(900, 1900, 1910), None),  # too few to know how they differ
        ("cache.first-touch", {**rated(900, 1900, 1910, 1890, 1900), "workload": FILLED}, None),
        # What a device reads besides the 12 GB of the samples is the load of others.
        ("device.other-load", device(14), None),
        ("device.other-load", device(15), "warning"),
        # Direct reads are counted by the readers; whole row groups are more than the samples.
        ("device.other-load", device(15, **NOBODY_COUNTED), None),
        ("device.other-load", device(15, **NOBODY_COUNTED, **DIRECT), "warning"),
        (
            "device.other-load",
            {**device(20, **NOBODY_COUNTED, **DIRECT), "repetition.bytes_read": 20 * GB},
            None,
        ),
        ("device.other-load", device(24, workload=FILLED), None),  # the parent reads it once
        ("device.served-by-cache", device(10, **LOCALLY), None),
        ("device.served-by-cache", device(9, **LOCALLY), "info"),
        ("device.served-by-cache", device(9, **LOCALLY, **DIRECT), "info"),
        ("device.served-by-cache", device(9, storage=LOCAL), "info"),
        ("device.served-by-cache", device(0, storage=LOCAL, workload=FILLED), None),
        ("device.served-by-cache", device(9, storage=LOCAL | {"fs_type": "btrfs"}), None),
        # A cache that served cold reads is named once.
        (
            "device.served-by-cache",
            {**device(1, storage=LOCAL), "repetition.epochs": FED_BY_A_CACHE},
            None,
        ),
    ],
)
def test_the_limits_of_a_rule_with_two_accelerators(
    rule: str, changes: dict[str, Any], level: str | None
) -> None:
    assert levels(build_run(**merged({}, changes))).get(rule) == level


@pytest.mark.parametrize(
    ("changes", "validity"),
    [
        ({}, "unknown"),
        ({"loader.direct": True}, "valid"),
        ({"storage.scheme": "s3", "storage.url": "s3://b", "storage.page_cache": False}, "valid"),
        ({"workload": WARM}, "valid"),
        (
            {"repetition.epochs": UNCOUNTED, "repetition.complete": False, "status": "interrupted"},
            "unknown",
        ),
    ],
)
def test_what_nobody_counted_is_unknown_where_a_cache_could_have_served(
    changes: dict[str, Any], validity: str
) -> None:
    assert build_run(**merged({"repetition": {"epochs": UNCOUNTED}}, changes)).validity == validity


@pytest.mark.parametrize(("fetched", "level"), [(3000, None), (0, "invalid"), (None, "unknown")])
def test_a_ceiling_is_cold_as_well(fetched: int | None, level: str | None) -> None:
    cold = Epoch(epoch=0, sample_bytes=3000, bytes_fetched=fetched, fetched_how="not measured: why")
    doc = build_run(concluded=False)
    doc.job.ceilings["fetch"] = Ceiling(
        samples_per_s=4000.0, bytes_per_s=4e8, how="test", cold=cold
    )
    assert levels(conclude(doc)).get("cache.cold-fetch") == level


def test_a_repetition_without_checkpoints_is_cold_as_well() -> None:
    doc = build_run()
    quiet = doc.job.repetitions[0].model_copy(update={"epochs": FED_BY_A_CACHE})
    assert levels(conclude(doc.with_job(quiet=quiet)))["cache.cold-fetch"] == "invalid"


@pytest.mark.parametrize(("share", "refused"), [(0.01, False), (0.0101, True)])
def test_cold_means_at_most_one_percent(share: float, refused: bool) -> None:
    assert (build_run(residency=share).validity == "invalid") is refused


def test_findings_of_the_runner_are_kept_and_the_gravest_comes_first() -> None:
    own = Finding(rule="storage.odd", level="info", evidence="the mount is odd")
    assert own in build_run(findings=[own]).findings
    doc = build_run(au=0.5, rules="mlperf", rates={"storage_raw": None})
    order = [finding.level for finding in doc.findings]
    assert order == sorted(order, key=("invalid", "warning", "unknown", "info").index)


def test_unknown_rule_set() -> None:
    with pytest.raises(UsageError):
        validity([], "strict")


# Conditions of --fail-on


def test_conditions_compare_medians_and_break_where_nothing_was_measured() -> None:
    doc = build_run(au=0.95)
    kept = [" accelerator_utilization < 95% ", "headroom<2", "accelerators_fed<4"]
    broken = ["accelerator_utilization<0.96", "accelerators_fed<=4", "samples_per_s>=1900"]
    found = violations(doc, [*kept, *broken])
    assert [each.partition(":")[0] for each in found] == broken
    assert len(violations(build_run(repetitions=0), ["samples_per_s>1e12"])) == 1
