"""Every verb that writes, while its Nth file operation fails.

Or the process is killed at it, or the wall clock jumps; on S3 its Nth request is reset. After each:
no command says that it succeeded where it did not, the same command again succeeds and leads to the
same bytes, files of others are untouched, nothing of ours is left, and every error is one line. An
ordinary run tries one place for each kind of fault; with IOBENCH_LOOPS=all every place is tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.faults.loop.driver import REMOTE_VERBS, VERBS, Report, start
from tests.faults.loop.shim import FILE_KINDS, REQUEST_KINDS, build_shim
from tests.servers.process import missing

ALL = os.environ.get("IOBENCH_LOOPS") == "all"
LIMIT_S = 7200.0 if ALL else 500.0
"""Of the loop over one verb. An ordinary test has the time limit of all tests, which is above
it.
"""
_AT_ONCE = 2

pytestmark = [pytest.mark.timeout(LIMIT_S * 16)] if ALL else []

_NAMES = tuple(kind.name for kind in FILE_KINDS)
_REQUESTS = tuple(kind.name for kind in REQUEST_KINDS)
_SOME = {  # what an ordinary run tries of the slower verbs; together they meet every kind
    "run": ("write-error", "killed"),
    "run-with-saves": ("killed",),
    "sweep": ("full-disk", "no-permission", "killed", "clock-ahead"),
    "checkpoint-stream": ("rename-error", "killed"),
    "checkpoint-torch": ("sync-error", "short-write", "killed", "clock-back"),
    "s3-generate": ("request-reset", "answers-reset"),
    "s3-checkpoint": ("answer-reset", "requests-reset"),
}


_LATER = () if ALL else ("checkpoint-safetensors", "checkpoint-dcp", "checkpoint-dcp-async")
"""An ordinary run leaves them out: they write as the other formats of checkpoints do."""

_CHOSEN = [verb for verb in (*VERBS, *REMOTE_VERBS) if verb not in _LATER]


def kinds_of(verb: str) -> tuple[str, ...]:
    every = _REQUESTS if verb in REMOTE_VERBS else _NAMES
    return every if ALL else _SOME.get(verb, every)


@pytest.fixture(scope="module")
def loops(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Report]]]:
    """The loops over the verbs whose tests were chosen, two at a time: they mostly wait."""
    try:
        library = build_shim(tmp_path_factory.mktemp("shim"))
    except FileNotFoundError as error:
        missing(str(error))
    chosen = {
        item.callspec.params["verb"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield {
            verb: pool.submit(
                start,
                verb,
                points=0 if ALL else 1,
                kinds=kinds_of(verb),
                library=library,
                limit_s=LIMIT_S,
            )
            for verb in _CHOSEN
            if verb in chosen
        }


@pytest.mark.parametrize("verb", _CHOSEN)
def test_a_verb_survives_faults(verb: str, loops: dict[str, Future[Report]]) -> None:
    report = loops[verb].result(timeout=LIMIT_S * len(loops))
    assert report.problems == []
    assert (report.foreign_bytes_changed, report.orphans) == (0, 0)
    possible = {name for name, tally in report.kinds.items() if tally.operations}
    hit = {name for name, tally in report.kinds.items() if tally.injected}
    # clean writes and renames nothing. Of the rest every kind has a place.
    assert possible == set(kinds_of(verb)) - (_WRITES if verb == "clean" else set())
    # A process may do less than in the run that was counted: it may find something done.
    assert len(possible - hit) <= 1


_WRITES = {"full-disk", "write-error", "short-write", "sync-error", "rename-error"}
