"""Every verb that writes, with its Nth file operation failed, the process killed at it, or the wall
clock jumping at it; on S3 with its Nth request reset.

After each: no success that is none, the same command again succeeds and leads to the same bytes,
files of others are untouched, nothing of ours is left, and every error is one line. An ordinary run
tries a few places for each kind of fault; with IOBENCH_LOOPS=all every place is tried.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.loop.driver import REMOTE_VERBS, VERBS, Report, start
from tests.faults.loop.shim import FILE_KINDS, REQUEST_KINDS, build_shim
from tests.servers.process import missing

ALL_LIMIT_S, LIMIT_S = 7200.0, 300.0
_CHEAP = ("generate", "generate-files", "clean", "scan")
_NEVER_RENAMED = ("clean",)  # and never synced


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_shim(tmp_path_factory.mktemp("shim"))
    except FileNotFoundError as error:
        missing(str(error))


def looped(verb: str, library: Path) -> Report:
    every = os.environ.get("IOBENCH_LOOPS") == "all"
    points = 0 if every else 2 if verb in _CHEAP else 1
    limit_s = ALL_LIMIT_S if every else LIMIT_S
    report = start(verb, points=points, library=library, limit_s=limit_s)
    assert report.problems == []
    assert (report.foreign_changed, report.orphans) == (0, 0)
    return report


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_survives_faults_of_its_files(verb: str, library: Path) -> None:
    report = looped(verb, library)
    assert set(report.kinds) == {kind.name for kind in FILE_KINDS}
    hit = {name for name, tally in report.kinds.items() if tally.injected}
    unhit = {"write-error", "short-write", "sync-error", "rename-error", "full-disk"}
    assert {kind.name for kind in FILE_KINDS} - hit <= (unhit if verb == "clean" else set())


@pytest.mark.parametrize("verb", REMOTE_VERBS)
def test_a_verb_survives_reset_connections(verb: str, library: Path) -> None:
    report = looped(verb, library)
    assert {name for name, tally in report.kinds.items() if tally.injected} == {
        kind.name for kind in REQUEST_KINDS
    }
