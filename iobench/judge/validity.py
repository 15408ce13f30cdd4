"""The table of rules that a run must satisfy for its figures to be meaningful.

Each rule has a stable id, evidence and a remedy. It reports a violation, or that evidence is
missing (level ``unknown``, which is neither pass nor fail), or nothing. The rule set decides the
level of a violation: ``quick`` warns, and rejects only what is false for every purpose; ``mlperf``
also demands what MLPerf Storage demands of a run. ``docs/rules.md`` lists all rules, and compares
those of MLPerf Storage with them line by line; a test compares that page with this module.

A script or CI may set conditions of its own on a run's medians, for example
``--fail-on 'accelerator_utilization_sustained<0.9'``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from ..base.errors import SpecError, UsageError, nearest
from ..record.metrics import BY_NAME, METRICS
from ..record.run import (
    CHANGED,
    CheckpointRecord,
    Finding,
    KvCacheRecord,
    ModelLoadRecord,
    RequestsRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from . import checkpoint, kv, serving
from . import model_load as load
from . import rules_cache as cache
from . import rules_data as data
from . import rules_mlperf as mlperf
from . import rules_ranks as ranks
from . import rules_speed as speed
from .judged import Judged, judge
from .rules_data import RuleOutcome

Level = Literal["info", "warning", "invalid", "unknown"]

R = TypeVar("R", bound=RunRecord | Judged, contravariant=True)

Check = Callable[[Judged], RuleOutcome | None]


class Levels(NamedTuple):
    """Level of a violation under each rule set; None: the rule is not in that set.

    unknown: a violation says that nobody knows whether the run is what it seems to be.
    """

    quick: Level | None
    mlperf: Level | None


@dataclass(frozen=True, slots=True)
class Rule(Generic[R]):
    """One rule for records of type R.

    Called with a record, it returns a Finding (at the level of ``rule_set``, or ``unknown``), or
    None if there is no violation. ``mlperf`` is the check of that rule set where its demand is
    another one.
    """

    id: str
    check: Callable[[R], RuleOutcome | None]
    levels: Levels
    mlperf: Callable[[R], RuleOutcome | None] | None = None

    def __call__(self, doc: R, rule_set: str = "mlperf") -> Finding | None:
        level = level_of(self.levels, rule_set)
        if level is None:
            return None
        check = self.mlperf if rule_set == "mlperf" and self.mlperf is not None else self.check
        outcome = check(doc)
        if outcome is None:
            return None
        if level == "invalid" and not outcome.refuses:
            level = "warning"
        return Finding(
            rule=self.id,
            level=level if outcome.known else "unknown",
            evidence=outcome.evidence,
            remedy=outcome.remedy,
        )


ALWAYS = Levels("invalid", "invalid")
REFUSED = Levels("warning", "invalid")
WARNED = Levels("warning", "warning")
INCONCLUSIVE = Levels("unknown", "unknown")
NOTED = Levels("info", "warning")
MLPERF = Levels(None, "invalid")
MLPERF_WARNED = Levels(None, "warning")


def of_record(check: Callable[[TrainingRecord], RuleOutcome | None]) -> Check:
    """A check that needs the record alone."""
    return lambda judged: check(judged.record)


RULES: tuple[Rule[Judged], ...] = (
    Rule("data.mismatch", of_record(data.data_mismatch), ALWAYS),
    Rule("loader.delivery", of_record(data.delivered_samples), ALWAYS),
    Rule("data.changed", of_record(data.data_changed), ALWAYS),
    Rule(CHANGED, of_record(data.record_changed), INCONCLUSIVE),
    Rule("storage.throttled", data.storage_throttled, REFUSED),
    Rule("storage.retries", of_record(data.storage_retries), WARNED),
    Rule("cache.cold-residency", of_record(cache.cold_residency), ALWAYS),
    Rule("cache.cold-fetch", of_record(cache.cold_fetch), ALWAYS),
    Rule("cache.loop", of_record(cache.loop_device), INCONCLUSIVE),
    Rule("cache.local", of_record(cache.local_cache), ALWAYS),
    Rule("cache.reads-more", of_record(cache.cache_reads_more), WARNED),
    Rule("cache.warm-residency", of_record(cache.warm_residency), WARNED),
    Rule("cache.residency-unknown", of_record(cache.residency_unknown), WARNED),
    Rule("run.incomplete", of_record(data.run_incomplete), REFUSED),
    Rule("run.steps", data.run_steps, REFUSED, of_record(mlperf.epoch_steps)),
    Rule("run.duration", data.run_duration, NOTED),
    Rule(
        "run.repetitions",
        of_record(data.run_repetitions),
        Levels("info", "invalid"),
        of_record(mlperf.repetitions),
    ),
    Rule("run.replicability", of_record(mlperf.replicability), MLPERF),
    Rule("seed.changes", of_record(data.seed_changes), REFUSED),
    Rule("dataset.size", of_record(cache.dataset_size), REFUSED, of_record(mlperf.dataset_size)),
    Rule("nfs.retransmits", of_record(data.nfs_retransmits), WARNED),
    Rule("au.threshold", speed.au_threshold, REFUSED, mlperf.utilization),
    Rule("au.barrier", of_record(mlperf.barrier), MLPERF_WARNED),
    Rule("au.staged", of_record(mlperf.staged), MLPERF_WARNED),
    Rule("cpu.throttled", speed.cpu_throttled, REFUSED),
    Rule("cpu.affinity", speed.cpu_affinity, REFUSED),
    Rule("cpu.other-load", of_record(ranks.cpu_other_load), WARNED),
    Rule("host.interposed", of_record(data.interposed), REFUSED),
    Rule("loader.bound", speed.loader_bound, REFUSED),
    Rule("client.bound", speed.client_bound, REFUSED),
    Rule("emulation.error", of_record(speed.emulation_error), REFUSED),
    Rule("accelerator.shares-cores", of_record(speed.shares_cores), NOTED),
    Rule("prefetch.share", speed.prefetch_share, REFUSED),
    Rule("verdict.gap", speed.verdict_gap, WARNED),
    Rule("verdict.disagreement", speed.disagreement, WARNED),
    Rule("raw.not-measured", of_record(speed.raw_not_measured), NOTED),
    Rule("raw.low", speed.raw_low, NOTED),
    Rule("read.amplification", of_record(speed.read_amplification), WARNED),
    Rule("loader.tax", speed.loader_tax, NOTED),
    Rule("rank.stood-still", of_record(ranks.stood_still), REFUSED),
    Rule("ranks.uneven", of_record(ranks.uneven), WARNED),
    Rule("hosts.skew", of_record(ranks.skew), REFUSED),
    Rule("host.slow", of_record(ranks.slow_host), WARNED),
    Rule("rate.falls", of_record(ranks.rate_falls), WARNED),
    Rule("cache.first-touch", of_record(ranks.first_touch), WARNED),
    Rule("device.other-load", of_record(cache.device_other_load), WARNED),
    Rule("device.served-by-cache", of_record(cache.device_served_by_cache), NOTED),
    Rule("serve.log-behind", of_record(serving.log_behind), ALWAYS),
    Rule("serve.log-volatile", of_record(serving.log_volatile), ALWAYS),
    Rule("serve.log-unproven", of_record(serving.log_unproven), NOTED),
    Rule("closed.workload", of_record(mlperf.closed_workload), MLPERF_WARNED),
    Rule("closed.settings", of_record(mlperf.closed_settings), MLPERF),
)
CHECKPOINT_RULES: tuple[Rule[RunRecord], ...] = (
    Rule("checkpoint.verified", checkpoint.verified, ALWAYS),
    Rule("checkpoint.cold-restore", checkpoint.cold_restore, ALWAYS),
    Rule("checkpoint.durable", checkpoint.durable, REFUSED),
    Rule("checkpoint.unwritten", checkpoint.written, ALWAYS),
    Rule("checkpoint.unproven", checkpoint.proven, NOTED),
    Rule("checkpoint.incomplete", checkpoint.stopped_early, REFUSED),
    Rule("checkpoint.count", checkpoint.count, Levels("info", "invalid")),
    Rule("checkpoint.scaled", checkpoint.scaled, Levels("info", "invalid")),
    Rule("checkpoint.model", checkpoint.model, MLPERF_WARNED),
    Rule("checkpoint.ranks", checkpoint.ranks, MLPERF),
    Rule("checkpoint.tiny", checkpoint.tiny, WARNED),
    Rule("checkpoint.back-pressure", checkpoint.back_pressure, WARNED),
    Rule("storage.throttled", data.throttled, REFUSED),
    Rule("storage.retries", data.storage_retries, WARNED),
    Rule("host.interposed", data.interposed, REFUSED),
)
CHECKPOINTS_BESIDE: tuple[Rule[RunRecord], ...] = tuple(
    rule
    for rule in CHECKPOINT_RULES
    if rule.id.removeprefix("checkpoint.")
    in ("durable", "unwritten", "unproven", "scaled", "back-pressure")
)
"""Rules of checkpoints that also hold where a training saves them beside its loading."""

MIXED_RULES: tuple[Rule[Judged], ...] = (
    Rule("checkpoint.unmeasured", of_record(checkpoint.unmeasured), WARNED),
    Rule("checkpoint.contention", of_record(checkpoint.contention), WARNED),
)
LOAD_RULES: tuple[Rule[ModelLoadRecord], ...] = (
    Rule("load.cold-residency", load.cold_residency, ALWAYS),
    Rule("load.cold-fetch", load.cold_fetch, ALWAYS),
    Rule("load.warm-residency", load.warm_residency, WARNED),
    Rule("host.slow", load.slow_host, WARNED),
    Rule("load.failures", load.failures, REFUSED),
    Rule("data.changed", data.data_changed, ALWAYS),
    Rule("storage.throttled", data.throttled, REFUSED),
    Rule("storage.retries", data.storage_retries, WARNED),
    Rule("load.rounds", load.rounds, NOTED),
    Rule("load.left-out", load.left_out, NOTED),
)
REQUEST_RULES: tuple[Rule[RequestsRecord], ...] = (
    Rule("serve.client-bound", serving.client_bound, ALWAYS),
    Rule("serve.unsteady", serving.unsteady, ALWAYS),
    Rule("serve.failures", serving.failures, REFUSED),
    Rule("storage.throttled", data.throttled, REFUSED),
    Rule("storage.retries", data.storage_retries, WARNED),
    Rule("serve.incomplete", serving.incomplete, REFUSED),
    Rule("serve.requests", serving.requests, REFUSED),
    Rule(CHANGED, data.record_changed, INCONCLUSIVE),
    Rule("serve.repetitions", serving.repetitions, Levels("info", "warning")),
    Rule("serve.trace-binned", serving.trace_binned, WARNED),
)
SERVING_RULES: tuple[Rule[ServingRecord], ...] = (
    Rule("serve.cold-residency", serving.cold_residency, ALWAYS),
    Rule("data.changed", data.data_changed, ALWAYS),
    Rule("serve.log-behind", serving.log_behind, ALWAYS),
    Rule("serve.log-volatile", serving.log_volatile, ALWAYS),
    Rule("serve.log-unproven", serving.log_unproven, NOTED),
)
KV_RULES: tuple[Rule[KvCacheRecord], ...] = (
    Rule("kv.nothing-offloaded", kv.nothing_offloaded, ALWAYS),
    Rule("kv.nothing-loaded", kv.nothing_loaded, WARNED),
    Rule("kv.working-set", kv.working_set, REFUSED),
    Rule("kv.write-failures", kv.write_failures, REFUSED),
    Rule("kv.writes-behind", kv.writes_behind, REFUSED),
    Rule("kv.scaled", kv.scaled, NOTED),
)
RULES_OF: dict[type[RunRecord], tuple[Rule[Any], ...]] = {
    CheckpointRecord: CHECKPOINT_RULES,
    ModelLoadRecord: LOAD_RULES,
    ServingRecord: (*REQUEST_RULES, *SERVING_RULES),
    KvCacheRecord: (*REQUEST_RULES, *KV_RULES),
}
"""The rules for each kind of run but trainings."""

LEVELS = {
    rule.id: rule.levels for rules in (*RULES_OF.values(), RULES, MIXED_RULES) for rule in rules
}
"""The levels of every rule, by its id."""


OF_BENCHMARKS = frozenset(
    {
        *("data.changed", "run.steps", "run.duration", "run.repetitions", "dataset.size"),
        *("client.bound", "verdict.gap", "raw.not-measured", "raw.low", "prefetch.share"),
    }
)
"""Rules about how a benchmark is made: a training that was watched is as it is. MLPerf's rules hold
for every run.
"""


def level_of(levels: Levels, rule_set: str) -> Level | None:
    """The level of a violation under ``rule_set``; None if the rule is not in that set.

    Raises UsageError for an unknown rule set.
    """
    if rule_set not in Levels._fields:
        raise UsageError(
            f"unknown rule set '{rule_set}'", remedy=f"known: {', '.join(Levels._fields)}"
        )
    return levels.quick if rule_set == "quick" else levels.mlperf


def evaluate(
    doc: RunRecord, rule_set: str = "quick", judged: Judged | None = None
) -> list[Finding]:
    """Findings of all rules for this kind of run, the most severe first.

    ``judged``: the judgement of ``doc``, where it is known.
    """
    order = ("invalid", "warning", "unknown", "info")
    if isinstance(doc, TrainingRecord):
        judged = judged or judge(doc)
        left_out = OF_BENCHMARKS if doc.job.subject.watched and rule_set == "quick" else frozenset()
        found = [rule(judged, rule_set) for rule in RULES if rule.id not in left_out]
        if doc.checkpoints is not None:
            found += [rule(doc, rule_set) for rule in CHECKPOINTS_BESIDE]
            found += [rule(judged, rule_set) for rule in MIXED_RULES]
    else:
        found = [rule(doc, rule_set) for rule in RULES_OF[type(doc)]]
    return sorted(filter(None, found), key=lambda finding: order.index(finding.level))


def validity(
    findings: Sequence[Finding], rule_set: str = "quick"
) -> Literal["valid", "invalid", "unknown"]:
    """Whether the findings make a run invalid under ``rule_set``.

    The result is ``unknown`` if evidence is missing for a rule that could have made it invalid, or
    a rule says that by itself.
    """
    if any(finding.level == "invalid" for finding in findings):
        return "invalid"
    refusing = {
        rule
        for rule, levels in LEVELS.items()
        if level_of(levels, rule_set) in ("invalid", "unknown")
    }
    return (
        "unknown"
        if any(finding.level == "unknown" and finding.rule in refusing for finding in findings)
        else "valid"
    )


KNOWN = tuple(dict.fromkeys(each.name for each in METRICS if each.median or each.of == "verdict"))
"""Metrics that a condition can name: those with one figure in a run document."""

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_EXPRESSION = re.compile(
    r"^\s*([A-Za-z_][A-Za-z0-9_]*)\s*(<=|>=|==|!=|<|>)\s*"
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%?)\s*$"
)


class Threshold(NamedTuple):
    metric: str
    comparison: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value:g}"


def parse(expression: str) -> Threshold:
    """Parse ``metric op number`` (``90%`` is 0.9).

    Raises SpecError for anything else; for an unknown metric it names the nearest known ones.
    """
    match = _EXPRESSION.match(expression)
    if match is None:
        raise SpecError(
            f"'{expression}' is not a condition",
            remedy=(
                "write it like 'accelerator_utilization_sustained<0.9' (in base units: bytes, "
                "seconds, 0 to 1)"
            ),
        )
    metric, comparison, number, percent = match.groups()
    if metric not in KNOWN:
        near = nearest(metric, KNOWN)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(KNOWN)}"
        raise SpecError(f"unknown metric '{metric}' in '{expression}': {hint}")
    return Threshold(metric, comparison, float(number) / 100 if percent else float(number))


def value_of(doc: RunRecord, metric: str) -> float | None:
    """The median over repetitions, or the verdict's figure; None if it was not measured."""
    if BY_NAME[metric].of == "verdict":
        verdict = doc.job.verdict if isinstance(doc, TrainingRecord) else None
        found = getattr(verdict, metric) if verdict else None
        return None if found is None else float(found)
    summary = doc.metrics.get(metric)
    return summary.median if summary else None


def violations(doc: RunRecord, expressions: Sequence[str]) -> list[str]:
    """One line for each condition that holds.

    A condition whose metric was not measured cannot be decided, and counts as well.
    """
    lines = []
    for threshold in [parse(expression) for expression in expressions]:
        value = value_of(doc, threshold.metric)
        if value is None:
            lines.append(
                f"{threshold}: {threshold.metric} was not measured{_reason(doc, threshold.metric)}"
            )
        elif COMPARISONS[threshold.comparison](value, threshold.value):
            lines.append(f"{threshold}: {threshold.metric} is {value:.6g}")
    return lines


def _reason(doc: RunRecord, metric: str) -> str:
    sources: list[dict[str, str]] = []
    if isinstance(doc, TrainingRecord):
        sources += [doc.job.verdict.not_measured] if doc.job.verdict else []
        sources += [repetition.not_measured for repetition in doc.job.repetitions]
    sources += [doc.checkpoints.not_measured] if doc.checkpoints else []
    reason = next((source[metric] for source in sources if metric in source), "")
    return f" ({reason})" if reason else ""
