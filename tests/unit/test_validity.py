"""Each rule has a run that keeps it, one that breaks it, and one in which its evidence is
missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.verdict.rebuild import conclude
from iobench.analyse.verdict.validity import (
    RULES,
    evaluate,
    level_of,
    validity,
)
from iobench.errors import UsageError
from iobench.schema.record import Finding, RunRecord
from iobench.schema.training import Ceiling, Epoch

Build = Callable[..., RunRecord]

WARM = {"cache": "any"}
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
NFS_MOUNT = {"scheme": "file", "url": "/mnt/nas/set", "fs_type": "nfs4"}

PROOF = {
    "of": 1000,
    "whole_epoch": True,
    "delivered": 1001,
    "missing": 0,
    "repeated": 1,
    "unknown": 0,
}

# rule: (changes to a good run that break the rule, changes that take its evidence away)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "data.mismatch": ({"repetition": {"bytes_read": 11_000_000_000}}, {"repetitions": 0}),
    "loader.delivery": (
        {"loader": {"delivery": PROOF}},
        {"loader": {"delivery": {"not_measured": "no checksums"}}},
    ),
    "data.changed": ({"dataset": {"changed": ["data/3.tar"]}}, {"dataset": {"changed": None}}),
    "storage.throttled": ({"repetition": {"throttled": 3}}, {"repetition": {"throttled": None}}),
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
    "run.steps": ({"repetition": {"steps": 998}}, {"repetition": {"steps": 0}}),
    "run.repetitions": ({"repetitions": 4}, {"repetitions": 0}),
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
    "cpu.throttled": ({"repetition": {"throttled_s": 6.5}}, {"repetition": {"throttled_s": None}}),
    "cpu.affinity": ({"host": {"affinity_cores": 2}}, {"host": {"affinity_cores": None}}),
    "harness.bound": ({"rates": {"harness": 2000}}, {"rates": {"harness": None}}),
    "client.bound": (
        {"host": {"cores": 0.05, "affinity_cores": 0.05, "effective_cores": 0.05}},
        {"rates": {"fetch": None}},
    ),
    "emulation.error": (
        {"repetition": {"late_left_s": 0.66}},  # of 65 s
        {"repetition": {"late_left_s": None}},
    ),
    "prefetch.share": (
        {"loader": {"prefetched_samples": 3_300}},
        {"workload": {"batch_size": None}},
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
}


ALWAYS = (
    "data.mismatch",
    "loader.delivery",
    "data.changed",
    "cache.cold-residency",
    "cache.cold-fetch",
)


def test_every_rule_has_fixtures() -> None:
    assert {rule.id for rule in RULES} == set(CASES)


def test_rule_ids_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_pass_fail_unknown(make_run: Build, rule: Any) -> None:
    broken, missing = CASES[rule.id]
    assert rule(make_run()) is None
    violation = rule(make_run(**broken))
    assert violation is not None
    assert violation.rule == rule.id
    assert violation.level == level_of(rule.levels, "mlperf")
    assert violation.evidence
    assert violation.remedy
    gap = rule(make_run(**missing))
    assert gap is not None
    assert gap.level == "unknown"
    assert gap.evidence


def test_a_good_run_is_valid_under_both_sets(make_run: Build) -> None:
    doc = make_run()
    for rule_set in ("quick", "mlperf"):
        assert evaluate(doc, rule_set) == []
    assert doc.validity == "valid"


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALWAYS])
def test_quick_refuses_nothing_else(make_run: Build, name: str) -> None:
    assert make_run(**CASES[name][0]).validity == "valid"


@pytest.mark.parametrize("name", ALWAYS)
def test_quick_refuses_what_is_false_for_any_purpose(make_run: Build, name: str) -> None:
    assert make_run(**CASES[name][0]).validity == "invalid"


@pytest.mark.parametrize(
    "name",
    [
        "run.steps",
        "run.repetitions",
        "seed.changes",
        "au.threshold",
        "harness.bound",
        "emulation.error",
        "cpu.throttled",
    ],
)
def test_mlperf_refuses(make_run: Build, name: str) -> None:
    assert make_run(rules="mlperf", **CASES[name][0]).validity == "invalid"


def test_missing_evidence_is_neither_pass_nor_fail(make_run: Build) -> None:
    assert make_run(repetition={"epochs": UNMEASURED}).validity == "unknown"
    throttle = {"repetition": {"throttled_s": None}}
    assert make_run(**throttle).validity == "valid"  # quick would only have warned
    assert make_run(rules="mlperf", **throttle).validity == "unknown"


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
    levels = [
        finding.level
        for finding in evaluate(
            make_run(rules="mlperf", au=0.5, rates={"storage_raw": None}), "mlperf"
        )
    ]
    assert levels == sorted(levels, key=("invalid", "warning", "unknown", "info").index)


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
