"""``docs/rules.md`` names every rule with its levels, and only rules that there are."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest

from iobench.host.timeline import read_events
from iobench.judge import criteria
from iobench.judge import watched as waits
from iobench.judge.bottleneck import BY_GAINS, TABLE
from iobench.judge.cache import MAX_SERVED, MIN_CACHED
from iobench.judge.evidence import (
    AT_LIMIT,
    CPU_BUSY,
    CPU_NEAR,
    IN_TURNS,
    MIN_TOLD_STEPS,
    NOISE_OF_FILL,
)
from iobench.judge.evidence import MIN_ROUNDS as ROUNDS_OF_WORKERS
from iobench.judge.figures.ablations import FEW_ROUNDS, MIN_ROUNDS
from iobench.judge.judged import judge
from iobench.judge.rebuild import rebuild
from iobench.judge.statistics import NOISE
from iobench.judge.user_loader import MIN_HELD_BACK, MOST_OF_MAKING, MOST_OF_WAITS
from iobench.judge.validity import (
    CHECKPOINT_RULES,
    LEVELS,
    LOAD_RULES,
    MIXED_RULES,
    RULES,
    SERVING_RULES,
)
from iobench.judge.verdict import SITUATIONS
from iobench.record.curve import Bound
from iobench.record.run import load_training
from iobench.record.verdict import AdviceId
from tests.unit.conftest import build_run

PAGE = (Path(__file__).parents[2] / "docs/rules.md").read_text(encoding="utf-8")
OWN, OTHERS = PAGE.split("## MLPerf Storage, line by line")
COMPARED, STRICTER = OTHERS.split("### Stricter than theirs")
ROW = re.compile(r"^\| `([a-z.-]+)` \|(.*)\|$", re.MULTILINE)
GROUPS = "|".join(sorted({rule.partition(".")[0] for rule in LEVELS}))
RULE = re.compile(rf"`((?:{GROUPS})\.[a-z-]+)`")
ALL = {
    rule.id: rule for rule in (*SERVING_RULES, *RULES, *MIXED_RULES, *CHECKPOINT_RULES, *LOAD_RULES)
}


def rows() -> dict[str, list[str]]:
    found = [
        (rule, [cell.strip() for cell in cells.split("|")]) for rule, cells in ROW.findall(OWN)
    ]
    table = {rule: cells for rule, cells in found if len(cells) == 5}
    assert len(table) == len([cells for _, cells in found if len(cells) == 5])  # named once
    return table


def test_every_rule_is_there_with_its_levels() -> None:
    levels = {rule: tuple(cells[1:3]) for rule, cells in rows().items()}
    assert levels == {
        rule: tuple(level or "—" for level in found) for rule, found in LEVELS.items()
    }


def test_every_rule_says_what_it_needs_and_what_to_do() -> None:
    assert not [rule for rule, cells in rows().items() if not all(cells)]


def test_what_is_mlperfs_alone_is_in_their_table() -> None:
    theirs = {
        rule.id for rule in ALL.values() if rule.levels.quick is None or rule.mlperf is not None
    }
    assert theirs <= set(RULE.findall(COMPARED))


def test_whatever_may_refuse_is_compared_or_called_stricter() -> None:
    refusing = {rule for rule, found in LEVELS.items() if found.mlperf == "invalid"}
    compared, stricter = set(RULE.findall(COMPARED)), set(RULE.findall(STRICTER))
    assert not compared & stricter
    assert refusing <= compared | stricter
    assert stricter <= refusing


# docs/verdict.md has the table of the code


VERDICT_PAGE = (Path(__file__).parents[2] / "docs/verdict.md").read_text(encoding="utf-8")


DECISION = [
    tuple(cell.strip() for cell in line.split("|")[1:-1])
    for line in VERDICT_PAGE.partition("and its source |\n")[2].partition("\n\n")[0].splitlines()
][1:]
COLLATING = (f"{MOST_OF_MAKING:g} of the time", f"{criteria.MOSTLY:g} of the rate")
CORES = (f"{CPU_NEAR:.0%} of the CPU ceiling", f"{CPU_BUSY:.0%} of the cores")
_LEAST = criteria.MIN_EXPLAINED
EXPLAINED = (f"{100 * _LEAST:g} to {1 / _LEAST:.0%} of its ceiling",)
CLEARLY = (f"{waits.CLEAR:g} times",)

# What the page says of the threshold of each check, from the constants that it compares with.
THRESHOLDS: dict[object, tuple[str, ...]] = {
    TABLE[0].rows[0].check: (f"{MIN_TOLD_STEPS} steps", f"{ROUNDS_OF_WORKERS} rounds", *CLEARLY),
    criteria.sampler_takes_most: (f"{MOST_OF_WAITS:g} of them",),
    criteria.only_reading_gains: (
        *(f"{MAX_SERVED:.0%} of the reads", f"above {1 + NOISE:.2f} ({NOISE:.0%}:"),
        *(f"fewer than {MIN_ROUNDS} rounds", f"above {1 + FEW_ROUNDS:.2f}"),
    ),
    criteria.collating_costs_more: COLLATING,
    criteria.hand_over_costs_more: (f"{criteria.MOSTLY:g} of the waits",),
    criteria.ranks_are_uneven: (f"{criteria.UNEVEN:g} of that gain",),
    criteria.steps_are_slowed: (f"both by {NOISE:.0%}: noise",),
    criteria.gains_share_the_cores: (*CORES, f"{criteria.MIN_SHARED:.0%} of the CPU time"),
    criteria.read_and_prepared_in_one: (f"{criteria.MIN_EXPLAINED:.0%} of its rate", *CLEARLY),
    criteria.fill_hides_a_stage: (f"within {FEW_ROUNDS:.0%}",),
    criteria.ceilings_keep_up: (f"{NOISE_OF_FILL:.0%} of the time",),
    criteria.accelerators_are_busy: (f"{criteria.FED:.0%} of the time",),
    criteria.cores_are_busy: CORES,
    criteria.collating_costs_most: COLLATING,
    criteria.hand_over_costs_most: (f"{criteria.MOSTLY:g} of them",),
    criteria.loader_explains_it: EXPLAINED,
    BY_GAINS[1].rows[4].check: EXPLAINED,
    criteria.lost_beside_loading: (f"above {1 + NOISE:.2f}", f"{NOISE:.0%}: noise"),
    waits.workers_are_idle: (f"{waits.MOST:g} of the waits",),
    waits.one_worker_is_slow: (f"{MIN_HELD_BACK:.0%} of the waits",),
    waits.workers_compute: CLEARLY,
    waits.collate_takes_most: COLLATING[:1],
    waits.files_were_cached: (f"{MIN_CACHED:.0%} of them", f"at most {MAX_SERVED:.0%} of"),
    waits.workers_wait: CLEARLY,
    criteria.cached_reads_are_slowest: (f"{NOISE:.0%} slower: noise",),
    criteria.cores_are_shared: (
        *(f"{criteria.MIN_EXPLAINED:.0%} of that", f"less than {criteria.DOMINANT:.0%} of the CPU"),
    ),
    criteria.utilization_is_missing: (f"{NOISE:.0%} below: noise",),
    criteria.workers_took_longest: CLEARLY,
    criteria.in_turns: (f"{criteria.FED:.0%} of the demand", f"reached {1 - IN_TURNS:.0%} of"),
    criteria.rivals: (f"{NOISE:.0%}, or intervals",),
    criteria.a_ceiling_is_missing: (f"{criteria.MIN_EXPLAINED:.0%} of that ceiling",),
    criteria.reading_takes_all_cores: (f"{AT_LIMIT:.0%} of raw storage",),
}


def test_the_page_has_the_rows_of_the_code() -> None:
    rows = iter(DECISION)
    numbers = count(1)
    for part in TABLE:
        assert next(rows) == ("", f"**{part.title}**", "", "")
        for row in part.rows:
            number, _, answer, written = next(rows)
            threshold = written.replace(" %", "%")
            assert number == str(next(numbers))
            assert answer == row.bottleneck or row.bottleneck is None
            parts = THRESHOLDS.get(row.check, ())
            assert threshold == "as above" or all(each in threshold for each in parts)
    assert not list(rows)


@pytest.mark.parametrize("bound", get_args(Bound))
def test_the_page_names_the_first_advice_on_a_storage_that_is_limited_so(bound: Bound) -> None:
    evidence = judge(build_run()).evidence
    several = [each for each in SITUATIONS if each.stage == "storage"]
    changes = next(each.changes for each in several if each.when(evidence, bound))
    groups = (each if isinstance(each, tuple) else (each,) for each in changes)
    advised = {change.id for group in groups for change in group}
    (row,) = re.findall(rf"^\| `{bound}` \|.*\| (.*) \|$", VERDICT_PAGE, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", row)) & set(get_args(AdviceId)) <= advised


# results/README.md computes what iobench does


ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "golden" / "0.1.0" / "runs"
RESULTS_PAGE = (ROOT / "results" / "README.md").read_text(encoding="utf-8")

LAST = "start_ns + wait_ns + copy_ns + busy_ns + sync_ns + checkpoint_ns + lost_ns"


def wall_s(rows: list[dict[str, Any]]) -> float:
    """The sum over the epochs of the time at which the last rank ended, as the page says it."""
    ends: dict[int, list[float]] = defaultdict(list)
    of_ranks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of_ranks[row["epoch"], row["rank"]].append(row)
    for (epoch, _), mine in of_ranks.items():
        mine.sort(key=lambda row: row["step"])
        late = [row["late_ns"] / row["steps"] for row in mine[-2:]]
        last = sum(mine[-1].get(name, 0) for name in LAST.split(" + "))
        ends[epoch].append(last + late[-1] - (late[0] if len(late) > 1 else 0))
    return sum(map(max, ends.values())) / 1e9


@pytest.mark.parametrize("name", ["calibrated", "throttled", "beside-saves", "library"])
def test_an_epoch_ends_as_the_page_says(name: str) -> None:
    assert f"`{LAST}`" in RESULTS_PAGE
    table = pq.read_table(RUNS / name / "events.parquet").to_pylist()
    doc = rebuild(load_training(RUNS / name), read_events(RUNS / name / "events.parquet"))
    for number, repetition in enumerate(doc.job.repetitions):
        rows = [row for row in table if (row["phase"], row["repetition"]) == ("measure", number)]
        assert wall_s(rows) == pytest.approx(repetition.wall_s, rel=1e-9)
