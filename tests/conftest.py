"""What all tests share: their tiers, signal handlers, small datasets, and a check of leftovers."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import multiprocessing.util
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from cyclopts import App, ArgumentCollection, core
from hypothesis import settings

from iobench.cli import live
from iobench.record.manifest import Manifest
from iobench.storage.local.uring import refused
from tests import limits
from tests.datasets import generated
from tests.processes import PATIENCE_S
from tests.servers.process import missing
from tests.tiers import is_wanted, nothing_to_run, order, tier_of

settings.register_profile("few", deadline=None, max_examples=25)  # a busy machine is no failure
settings.register_profile("many", settings.get_profile("few"), max_examples=500)
settings.load_profile("few")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Other tests have the cores on which threads of torch would spin until their work comes.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

MakeDataset = Callable[..., tuple[Manifest, Path]]
ENGINES = ("threads", "io_uring")
"""The values of ``reader.engine`` that name an engine."""


def pytest_sessionstart() -> None:
    """Decide where the sockets of forked loader workers lie, before any test moves ``tempfile``.

    The path of such a socket may have 107 bytes. The temporary folder of a test is longer on a
    worker of xdist, and a loader worker that can't make its socket sends no batch, ever.

    A command that takes long on a busy machine shows no progress here: tests read what it says.
    """
    multiprocessing.util.get_temp_dir()
    live.QUIET_S = math.inf


def pytest_configure(config: pytest.Config) -> None:
    """Let no test run for ever. Parse a module once for the sources of its classes.

    Each help asks for a dozen of them. While tests are collected nothing becomes garbage, and
    looking for it takes half of the time.
    """
    config.pluginmanager.register(limits)
    gc.disable()
    find, of_class = inspect.findsource, cache(inspect.findsource)
    inspect.findsource = lambda of: (of_class if isinstance(of, type) else find)(of)
    look_at_flags_once()


def look_at_flags_once() -> None:
    """Let cyclopts look at the flags of a verb once in a process, as for users, who give one
    command: for each further one it is most of what a short command takes.
    """
    assemble = App.assemble_argument_collection
    made: dict[Any, ArgumentCollection] = {}

    def assembled(app: App, **of_help: Any) -> ArgumentCollection:
        if of_help:
            return assemble(app, **of_help)
        if app.default_command not in made:
            made[app.default_command] = assemble(app)
        fresh = {id(each): copy.copy(each) for each in made[app.default_command]}
        for each in fresh.values():  # a command fills in its words
            each.tokens = []
            each.children = ArgumentCollection(fresh[id(child)] for child in each.children)
        return ArgumentCollection(fresh.values())

    App.assemble_argument_collection = assembled
    core.validate_command = cache(core.validate_command)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which nothing is run."""
    left_out = nothing_to_run(collection_path, config.option.markexpr)
    return True if left_out else None  # None: other plug-ins decide


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(tier_of(item))
        if is_wanted(item):
            item.add_marker("touched")
    check_time_limits(items)
    items.sort(key=lambda item: order(item.path))


def pytest_collection_finish() -> None:
    """Leave all that was imported to the end of the process: no garbage collection looks at it.

    A forked process then does not copy these pages only to look at them.
    """
    gc.freeze()
    gc.enable()


def check_time_limits(items: list[pytest.Item]) -> None:
    """Raise UsageError if a mark gives a test more time than all have, or does not count fixtures.

    Loops over every fault are run by hand, and may take hours.
    """
    if os.environ.get("IOBENCH_LOOPS") == "all":
        return
    for item in items:
        most = float(item.config.getini("timeout"))
        for mark in item.iter_markers("timeout"):
            limit = mark.args[0] if mark.args else mark.kwargs.get("timeout", most)
            if not 0 < limit <= most or mark.kwargs.get("func_only"):
                raise pytest.UsageError(
                    f"{item.nodeid} has a time limit of {limit:g} s; at most {most:g} s, with the "
                    "time of its fixtures, are allowed"
                )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give each test the signal handlers of a program that a user has started in a terminal.

    Whoever starts the tests may ignore signals (``nohup``, a background job of ``sh``), and every
    process of the tests would inherit that. A command that ran in an earlier test of this process
    may have changed a handler as well.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Give each test the environment that the tests were started with, and their fixtures made.

    A command that runs in this process may set variables, as a rank of a run does with RANK: a
    later test would take itself for a process of torchrun.
    """
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({k: v for k, v in before.items() if os.environ.get(k) != v})


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """A value of ``reader.engine``: the test runs once over each engine.

    ``parametrize(..., indirect=["engine"])`` chooses one as well. A test of an engine that the
    kernel refuses is skipped, and says so.
    """
    if request.param == "io_uring" and (why := refused()):
        missing(f"io_uring: {why}")
    return str(request.param)


@pytest.fixture(scope="session")
def make_dataset(tmp_path_factory: pytest.TempPathFactory) -> MakeDataset:
    """``make_dataset(name="demo", **spec)``: (manifest, directory), generated once per session and
    specification.
    """
    root = tmp_path_factory.mktemp("datasets")
    made: dict[str, tuple[Manifest, Path]] = {}

    def make(**spec: Any) -> tuple[Manifest, Path]:
        full = {"samples": 60, "sample_size": {"mean": 20_000}, **spec}
        key = repr(sorted(full.items(), key=str))
        if key not in made:
            path = root / f"{len(made):03d}"
            made[key] = (generated(path, **full), path)
        return made[key]

    return make


@pytest.fixture
def nothing_left() -> Iterator[set[int]]:
    """After the test: no new child process of ours (Python's own tracker of spawned processes
    stays), no new file in /dev/shm.

    The test adds each worker of torch's that it kills (process ids) to the set that it gets. For
    each tensor that a worker sends, torch makes a file there, allocates its memory, and removes its
    name; a worker that is killed in between leaves the file.
    """
    killed: set[int] = set()
    before = set(os.listdir("/dev/shm"))
    servers = set(psutil.Process().children(recursive=True))  # of the whole session
    gc.freeze()  # so that only what the test makes is looked at after it
    yield killed
    gc.collect()  # an error's traceback may still hold what owns a process
    new = set(psutil.Process().children(recursive=True)) - servers
    _, alive = psutil.wait_procs(
        [child for child in new if not _is_tracker(child)], timeout=PATIENCE_S
    )
    assert not alive
    deadline = time.monotonic() + PATIENCE_S  # another program may just be passing through
    while (left := _ownerless(before, killed)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _is_tracker(child: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(child.cmdline())
    except psutil.NoSuchProcess:  # it has ended, or is ending
        return False


def _ownerless(before: set[str], killed: set[int]) -> set[str]:
    """New files in /dev/shm, but for those of other programs that are alive (named after their
    process, as torch's and ours are, or mapped by it) and torch's files of killed workers.
    """
    owners = {
        name: re.match(r"(?:torch_|iobench-)(\d+)", name)
        for name in set(os.listdir("/dev/shm")) - before
    }
    left = {
        name
        for name, pid in owners.items()
        if not pid or int(pid[1]) == os.getpid() or not psutil.pid_exists(int(pid[1]))
    }
    left = {name for name in left if not name.startswith(tuple(f"torch_{pid}_" for pid in killed))}
    return {name for name in left if not _mapped_elsewhere(name)}


def _mapped_elsewhere(name: str) -> bool:
    for pid in psutil.pids():
        with suppress(OSError):
            if (
                pid != os.getpid()
                and f"/dev/shm/{name}\n".encode() in Path(f"/proc/{pid}/maps").read_bytes()
            ):
                return True
    return False
