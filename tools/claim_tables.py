"""The tables of docs/statistics.md, which ``make promises`` writes there."""

from __future__ import annotations

from collections.abc import Sequence

from .claim_rates import (
    HISTORIES,
    HISTORY_WORLDS,
    IN_ORDER,
    LENGTHS,
    MAX_ROUNDS,
    SITUATIONS,
    TRIALS,
    TRUTHS,
    TURN_WORLDS,
    WALKS,
    WORLDS,
    compared,
    histories,
    in_turns,
)
from .cloud_noise import HEADS as CLOUD_HEADS
from .cloud_noise import of_clouds

HEADS = (
    *("false different", "wrong equal"),
    *(f"different found at {truth:g}" for truth in TRUTHS[1:]),
    "equal found at 1",
)


def figures() -> tuple[list[str], bool]:
    """The tables of docs/statistics.md, and whether every promise held."""
    comparisons = {(world, case): compared(world, case) for world in WORLDS for case in SITUATIONS}
    walks = {(world, case): compared(world, case) for world in WALKS for case in IN_ORDER}
    turns = {world: in_turns(world) for world in TURN_WORLDS}
    changes = {
        (world, runs): histories(world, runs) for world in HISTORY_WORLDS for runs in LENGTHS
    }
    clouds, kept = of_clouds()
    lines = [
        f"Per cent of {TRIALS:,} simulated comparisons for each row.",
        "",
        "`compare`:",
        "",
        *_table(
            ("runs differ by", "runs", *HEADS),
            [f"{world} | {case} | {found.cells}" for (world, case), found in comparisons.items()],
        ),
        "`compare`, where the level walks from run to run. Nothing is promised of runs that are "
        "not in turns:",
        "",
        *_table(
            ("runs differ by", "runs", *HEADS),
            [f"{world} | {case} | {found.cells}" for (world, case), found in walks.items()],
        ),
        f"`ab` with at most {MAX_ROUNDS} rounds:",
        "",
        *_table(
            (
                *("repetitions differ by", *HEADS, "rounds at 1", "rounds at 0.9"),
                "0.9 found in the promised rounds",
            ),
            [f"{world.of_turns} | {found.cells}" for world, found in turns.items()],
        ),
        f"`compare --over-time`, per cent of {HISTORIES} simulated histories for each row:",
        "",
        *_table(
            (
                *("runs differ by", "runs", "false change points"),
                *("a step to 0.9 found", "and another change besides"),
            ),
            [f"{world} | {runs} | {found.cells}" for (world, runs), found in changes.items()],
        ),
        "[Noise of clouds](#the-noise-of-clouds), per cent of the windows:",
        "",
        *_table(CLOUD_HEADS, clouds),
    ]
    held = [each.held for each in (*comparisons.values(), *turns.values(), *changes.values())]
    return lines, all(held) and kept


def _table(heads: Sequence[str], rows: Sequence[str]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {row} |" for row in rows),
        "",
    ]
