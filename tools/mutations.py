"""``make mutations``: does a test of a promise fail when a line breaks that promise?

``tools/mutations.toml`` has the mutations that docs/promises.md names: the file, the text that is
replaced (it occurs there once), its replacement, and the tests that must fail. Each is applied to a
copy of the project, never to the checkout. The tests run first without it, so that a test that
fails anyway finds nothing.

    make mutations                       # all of them
    make mutations ONLY='NAME NAME'      # some
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import psutil

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools/mutations.toml"

LEAST_S, TIMES, MOST_S = 60.0, 5.0, 600.0
"""A test hangs if it takes longer than LEAST_S and TIMES as long as it did without the mutation.

Then the mutation was found: many tests of deadlines can fail in no other way. Without a mutation,
tests may take MOST_S.
"""

_MARK = "MUTATED_PROJECT"
"""The environment variable by which processes of tests in a copy are known."""

_PATIENCE_S = 60.0
"""How long processes may live on after the test itself was ended."""

FOUND, SURVIVED = "found", "SURVIVED"
DOES_NOT_APPLY = "does not apply"
FAILS_ANYWAY = "fails without it"
NOT_RUN = "not run"

PASSED, FAILED = 0, 1
"""Exit codes of pytest."""


@dataclass(frozen=True)
class Mutation:
    """A change that breaks a promise. ``file`` is a path below the project's root."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """Return the text of the file with the mutation.

        Raises ValueError if the text to replace is not there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"the text to replace is {count} times in {self.file}")
        return text.replace(self.old, self.new)


def read(table: Path = TABLE) -> list[Mutation]:
    """Return the mutations of a table, in its order.

    Raises KeyError and TypeError for an entry that lacks a key or has an unknown one.
    """
    entries = tomllib.loads(table.read_text(encoding="utf-8"))
    return [
        Mutation(name, **{**entry, "tests": tuple(entry["tests"])})
        for name, entry in entries.items()
    ]


def copy_project(to: Path) -> None:
    """Copy what git knows of the checkout, and new files that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout.decode(errors="surrogateescape")
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):  # it may be deleted, and not yet committed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    subprocess.run(["git", "init", "-q"], cwd=to, check=True)  # the test of packages asks git


@contextmanager
def applied(mutation: Mutation, project: Path) -> Iterator[None]:
    """Change the file of a copy of the project, and put it back at the end.

    Raises ValueError as ``Mutation.apply`` does, and OSError if the file is not there.
    """
    path = project / mutation.file
    before = path.read_text(encoding="utf-8")

    def write(text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Compiled code counts as up to date by the second, and both texts may be of one size.
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)

    changed = mutation.apply(before)
    try:
        write(changed)
        yield
    finally:
        write(before)


def run_tests(tests: Sequence[str], project: Path, *, limit_s: float) -> tuple[int | None, str]:
    """Run tests in a copy of the project: (pytest's exit code, what it printed).

    A test that takes longer than ``limit_s`` fails. The exit code is None if it can't be ended.
    """
    words = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={limit_s}", *tests]
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project), _MARK: str(project)},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(len(tests) * limit_s + _PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            _end_all_of(project)
        printed.seek(0)
        return code, printed.read().decode(errors="replace")


def _end_all_of(project: Path) -> None:
    """Kill what tests in this copy have left: a mutation may be that nothing is ended."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == str(project):
                process.kill()


def judge(mutation: Mutation, project: Path) -> tuple[str, str]:
    """Try a mutation on a copy of the project: (the answer, what explains it)."""
    began = time.monotonic()
    code, printed = run_tests(mutation.tests, project, limit_s=MOST_S)
    took_s = time.monotonic() - began
    if code == FAILED:
        return FAILS_ANYWAY, printed
    if code != PASSED or " passed" not in printed:  # all may be skipped
        return NOT_RUN, printed
    try:
        with applied(mutation, project):
            code, printed = run_tests(mutation.tests, project, limit_s=max(LEAST_S, TIMES * took_s))
    except (OSError, ValueError) as error:
        return DOES_NOT_APPLY, str(error)
    return {PASSED: SURVIVED, FAILED: FOUND}.get(code, NOT_RUN), printed


def try_all(mutations: Sequence[Mutation], jobs: int, *, verbose: bool) -> int:
    """Try mutations, as many at a time as ``jobs``, and print each answer; return the exit code."""
    projects: SimpleQueue[Path] = SimpleQueue()
    stopped = threading.Event()

    def one(mutation: Mutation) -> tuple[str, str, float]:
        if stopped.is_set():
            return NOT_RUN, "interrupted", 0.0
        project, start = projects.get(), time.monotonic()
        try:
            return *judge(mutation, project), time.monotonic() - start
        finally:
            projects.put(project)

    wrong = 0
    with tempfile.TemporaryDirectory(prefix="iobench-mutations-") as folder:
        Path(folder).chmod(0o755)  # a test runs code of the copy as another user
        for number in range(jobs):
            projects.put(Path(folder, str(number)))
            copy_project(Path(folder, str(number)))
        with ThreadPoolExecutor(jobs) as pool:
            answers = {pool.submit(one, mutation): mutation for mutation in mutations}
            try:
                for future in as_completed(answers):
                    mutation, (answer, why, took_s) = answers[future], future.result()
                    print(f"{answer:16} {mutation.name} ({took_s:.0f} s)", flush=True)
                    if why and (verbose or answer != FOUND):
                        print("    " + why.strip().replace("\n", "\n    "), flush=True)
                    wrong += answer != FOUND
            finally:
                stopped.set()
    print(f"{len(mutations) - wrong} of {len(mutations)} mutations were found")
    return 1 if wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Try the mutations that were asked for; return 1 if any was not found."""
    parser = argparse.ArgumentParser(prog="make mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutations only")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time (2)")
    parser.add_argument("--list", action="store_true", help="print the mutations, and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print what each test said")
    args = parser.parse_args(argv)
    mutations = read()
    known = {mutation.name for mutation in mutations}
    if unknown := sorted(set(args.only or ()) - known):
        parser.error(f"no mutation is named {', '.join(unknown)}; --list names them")
    chosen = [each for each in mutations if not args.only or each.name in args.only]
    if args.list:
        for each in chosen:
            print(f"{each.name}: {each.file}")
        return 0
    return try_all(chosen, args.jobs, verbose=args.verbose)


if __name__ == "__main__":
    sys.exit(main())
