"""Variants in turns: the order, who is left out, and what ends the turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from iobench.base.errors import (
    HostLostError,
    InterruptedRun,
    IobenchError,
    StorageError,
    TargetLostError,
)
from iobench.runner.trials import Kind, rounds, seed_of, take_turns


def test_the_order_rotates_and_each_is_as_often_first() -> None:
    taken: list[str] = []
    take_turns("ABC", lambda name, turn: taken.append(f"{name}{turn}"), rounds(6))
    assert " ".join(taken).startswith("A0 B0 C0 B1 C1 A1 C2 A2 B2")
    assert Counter(taken[::3]) == Counter(f"{'ABC'[turn % 3]}{turn}" for turn in range(6))


def test_who_fails_is_left_out_and_the_others_go_on() -> None:
    taken: list[str] = []
    failed: dict[str, str] = {}

    def measure(name: str, turn: int) -> None:
        if (name, turn) == ("B", 1):
            raise StorageError("no more")
        taken.append(f"{name}{turn}")

    take_turns(
        "ABC",
        measure,
        rounds(3),
        is_active=lambda name: name not in failed,
        fail=lambda name, error: failed.update({name: str(error)}),
    )
    assert taken == ["A0", "B0", "C0", "C1", "A1", "A2", "C2"]
    assert failed == {"B": "no more"}


def test_without_a_place_for_failures_the_first_one_ends_all() -> None:
    complete: list[int] = []

    def measure(name: str, turn: int) -> None:
        if turn == 2:
            raise StorageError("no more")

    with pytest.raises(StorageError, match="no more"):
        take_turns("AB", measure, rounds(9), completed=complete.append)
    assert complete == [0, 1]


@pytest.mark.parametrize(
    "error", [InterruptedRun("x"), TargetLostError("x"), HostLostError("x"), KeyboardInterrupt()]
)
def test_what_is_no_failure_of_a_variant_is_raised(error: BaseException) -> None:
    def measure(name: str, turn: int) -> None:
        raise error

    with pytest.raises(type(error)):
        take_turns("AB", measure, rounds(2), fail=lambda name, error: None)


def test_turns_end_when_nobody_is_left() -> None:
    left = {"A": 3, "B": 1}

    def fail(name: str, error: IobenchError) -> None:
        left[name] = 0

    def measure(name: str, turn: int) -> None:
        left[name] -= 1
        if not left[name]:
            raise StorageError(name)

    seen: list[tuple[str, ...]] = []
    take_turns(
        list(left),
        measure,
        lambda turn, active: bool(seen.append(tuple(active))),
        is_active=lambda name: left[name] > 0,
        fail=fail,
    )
    assert seen == [("A", "B"), ("A",), ("A",)]


def test_the_order_may_depend_on_what_was_measured_before() -> None:
    taken: list[str] = []

    def order(turn: int, active: Sequence[str]) -> Iterator[str]:
        yield "A"
        if taken[-1] == "A1":
            yield "B"

    take_turns("AB", lambda name, turn: taken.append(f"{name}{turn}"), rounds(3), order=order)
    assert taken == ["A0", "A1", "B1", "A2"]


def test_no_two_trials_of_a_run_have_the_same_seed() -> None:
    kinds: tuple[Kind, ...] = ("repetition", "window", "confirm", "find-max", "engine")
    seeds = [seed_of(42, kind, number) for kind in kinds[:4] for number in range(100)]
    seeds += [seed_of(42, "engine"), seed_of(42, "pilot")]
    seeds += [seed_of(42, "ablation", n, series=stage) for n in range(100) for stage in range(5)]
    seeds += [seed_of(42, "find-max", n, series=trial) for n in range(100) for trial in (1, 2)]
    assert len(set(seeds)) == len(seeds)
