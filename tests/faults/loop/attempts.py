"""The program that lets one verb fail at many places, in a process that the shim is preloaded into.

It imports iobench once and forks for each attempt. After a fault it looks at what is on disk, gives
the same command again without a fault, looks once more, and clears up by the documented way.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from tests.faults.loop import objects, scenarios
from tests.faults.loop.driver import Report, Tally
from tests.faults.loop.scenarios import Scenario
from tests.faults.loop.shim import FILE_KINDS, KILL, REQUEST_KINDS, Fired, Kind, Shim

_COMMAND_LIMIT_S = 300.0
_LEFT_LIMIT_S = 60.0
_OLD_S = 3600.0
_PR_SET_CHILD_SUBREAPER = 36
_DOCUMENTED = (0, 1, 2, 3, 4, 5, 130)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--points", type=int, required=True)
    parser.add_argument("--kinds", required=True)
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--url", default="")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    call = Caller(args.scratch)
    scenario: Scenario
    if args.url:
        scenario = objects.scenario(args.verb, call, args.url, args.folder)
    else:
        made = (kind(call) for kind in scenarios.ALL)
        scenario = next(one for one in made if one.verb == args.verb)
    kinds = REQUEST_KINDS if args.url else FILE_KINDS
    wanted = set(filter(None, args.kinds.split(",")))
    loop = Loop(scenario, call, Shim(args.scratch / "state"), args.scratch)
    chosen = [kind for kind in kinds if not wanted or kind.name in wanted]
    loop.run(chosen, points=args.points, deadline=time.monotonic() + args.budget)
    print(json.dumps(asdict(loop.report)))


class Caller:
    """Gives commands, each in a forked process. ``code`` and ``said`` are the last one's."""

    def __init__(self, scratch: Path) -> None:
        self._out = scratch / "out"
        self._modules = scratch / "modules"
        self.warm = False  # no: import here what a command had to import

    def __call__(self, argv: tuple[str, ...]) -> int:
        with self._out.open("w+b") as out, redirected(out.fileno()):
            code = self._run(argv)
        if not self.warm:
            for name in self._modules.read_text().split():
                with suppress(Exception):
                    importlib.import_module(name)
        return code

    @property
    def said(self) -> str:
        return self._out.read_text(errors="replace")

    def _run(self, argv: tuple[str, ...]) -> int:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                from iobench.cli.main import main

                code = main(list(argv))
            except SystemExit as ended:
                code = int(ended.code or 0)
            finally:
                sys.stdout.flush()
                if not self.warm:
                    self._modules.write_text("\n".join(list(sys.modules)))
                os._exit(code)
        deadline = time.monotonic() + _COMMAND_LIMIT_S
        while time.monotonic() < deadline:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -99


@contextmanager
def redirected(fd: int) -> Iterator[None]:
    """Standard output and error go to ``fd``, of this process and its children."""
    sys.stdout.flush()
    saved = [os.dup(1), os.dup(2)]
    try:
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        yield
    finally:
        sys.stdout.flush()
        for stream, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, stream)
            os.close(copy)


def reap() -> bool:
    """Wait for what an attempt has left running; whether it all came to its end."""
    deadline = time.monotonic() + _LEFT_LIMIT_S
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.005)
        except ChildProcessError:
            return True


def spread(total: int, points: int, turn: int) -> list[int]:
    """Numbers from 1 to ``total``, each once, coarsely first: any beginning is spread over all.

    ``points``: so many of them (0: all); another ``turn`` has others.
    """
    bits = max(1, total - 1).bit_length()
    turned = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    numbers = [number + 1 for number in turned if number < total]
    if not points or not numbers:
        return numbers
    first = turn * points % len(numbers)
    return [*numbers[first:], *numbers[:first]][:points]


class Loop:
    """All attempts of one verb."""

    def __init__(self, scenario: Scenario, call: Caller, shim: Shim, scratch: Path) -> None:
        self.scenario, self.call, self.shim, self.scratch = scenario, call, shim, scratch
        self.home, self.template = scratch / "home", scratch / "template"
        self.names = scratch / "names"
        self.report = Report(scenario.verb)

    def run(self, kinds: list[Kind], *, points: int, deadline: float) -> None:
        """Kinds take turns, so that a deadline leaves none out."""
        self._prepare()
        todo: dict[str, list[int]] = {}
        self._fresh()
        self.scenario.plant(self.home)
        self.shim.arm(kinds[0], 0, self.home)
        self.call(self.scenario.argv)
        counted = self.shim.disarm()
        for turn, kind in enumerate(kinds):
            total = counted.operations(kind)
            self.report.kinds[kind.name] = Tally(operations=total)
            todo[kind.name] = spread(total, points, turn)
        while any(todo.values()) and time.monotonic() < deadline:
            for kind in kinds:
                if todo[kind.name] and time.monotonic() < deadline:
                    self._count(kind, todo[kind.name].pop(0))
        if not points:  # processes that work side by side may do more in one run than in another
            for kind in kinds:
                number = self.report.kinds[kind.name].operations
                fired = time.monotonic() < deadline
                while fired and time.monotonic() < deadline:
                    number += 1
                    fired = self._count(kind, number)

    def _prepare(self) -> None:
        (self.home / "tmp").mkdir(parents=True)
        os.chdir(self.home)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.home / "tmp")
        self.scenario.prepare(self.home)
        self.call.warm = True
        gc.collect()
        gc.freeze()  # a collection in a child would copy all that it shares
        for left in (self.home / "tmp").iterdir():  # what importing a library has made
            shutil.rmtree(left, ignore_errors=True)
        os.chdir("/")
        self.home.rename(self.template)

    def _fresh(self) -> None:
        """The folder as the verb finds it. Others' files keep their times."""
        os.chdir("/")
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.template, self.home, symlinks=True)
        self.names.write_bytes(b"")
        self.scenario.fresh()
        os.chdir(self.home)

    def _count(self, kind: Kind, number: int) -> bool:
        """One attempt; whether the fault came."""
        problems: list[str] = []
        fired = self._attempt(kind, number, problems)
        if not fired.count:
            return False
        tally = self.report.kinds[kind.name]
        tally.injected += 1
        tally.survived += not problems
        where = f"after {kind.name} {number} ({fired.first.replace(str(self.home), '.')})"
        self.report.problems += [f"{where}: {problem}" for problem in problems]
        return True

    def _attempt(self, kind: Kind, number: int, problems: list[str]) -> Fired:
        scenario, home, call = self.scenario, self.home, self.call
        scenario.killed = kind.code == KILL
        self._fresh()
        scenario.plant(home)
        others = Others(home, *scenario.watched)
        self.shim.arm(kind, number, home)
        code = call(scenario.argv)
        if not reap():
            problems.append("a process was left")
            self.report.orphans += 1
        fired = self.shim.disarm()
        if not fired.count:
            return fired
        problems += how_it_ended(kind, code, call.said)
        if code == 0:
            problems += scenario.holds(home, after_retry=False)
        else:
            problems += scenario.after_failure(home)
        problems += self._others(others)
        scenario.plant(home)
        others = Others(home, *scenario.watched)
        for left in (home / "tmp").iterdir():
            os.utime(left, (time.time() - _OLD_S,) * 2, follow_symlinks=False)
        done = scenario.is_done(home)
        again = call(scenario.argv)
        if again != 0 and not (done and again in (1, 2)):
            problems.append(
                f"the same command again ended with {again}: {call.said.strip()[-200:]}"
            )
        else:
            problems += scenario.holds(home, after_retry=True)
        problems += scenario.clear_up(home)
        problems += self._others(others)
        problems += self._left(fired)
        return fired

    def _others(self, others: Others) -> list[str]:
        changed = others.changed()
        self.report.foreign_bytes_changed += sum(changed.values())
        return [f"somebody else's {name} was changed" for name in changed]

    def _left(self, fired: Fired) -> Iterator[str]:
        if left := [path.name for path in (self.home / "tmp").iterdir()]:
            yield f"temporary files are left: {left[:3]}"
        names = self.names.read_text().split()
        if left := [name for name in names if os.path.exists(f"/dev/shm/{name}")]:
            yield f"shared memory is left: {left[:3]}"
        parts = [
            path
            for path in (self.home / "results").rglob("*.part")
            if fired.first != f"unlink {path}"  # whose removal itself was refused
        ]
        if parts and not self.scenario.killed:  # a killed run's directory is kept as it is
            yield f"{parts[0].relative_to(self.home)} is left"
        if not reap():
            self.report.orphans += 1
            yield "a process was left by the second run"


def how_it_ended(kind: Kind, code: int, said: str) -> Iterator[str]:
    """What is wrong with an exit code and what was said."""
    killed = kind.code == KILL and code == -signal.SIGKILL
    lines = [line for line in said.splitlines() if line.startswith("iobench: ")]
    shown = " ".join(said.split())[-300:]
    if "Traceback" in said:
        yield f"a traceback: {shown}"
    elif (code not in _DOCUMENTED and not killed) or (kind.harmless and code != 0):
        yield f"it ended with {code}: {shown}"
    elif code in (1, 2) and len(lines) != 1:
        yield f"it ended with {code} and {len(lines)} lines: {shown}"


class Others:
    """What is somebody else's below some folders, and whether it is still as it was."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._before = self._look()

    def _look(self) -> dict[str, tuple[int, int, bytes]]:
        found = {}
        files = ((top, path) for top in self._folders for path in sorted(top.rglob("*")))
        for top, path in files:
            name = str(path.relative_to(top))
            if name.startswith("theirs/") or scenarios.is_foreign(name):
                info = path.lstat()
                data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
                found[name] = (info.st_ino, info.st_mtime_ns, data)
        return found

    def changed(self) -> dict[str, int]:
        """Files that are not as they were: name -> bytes, at least 1."""
        now = self._look()
        return {
            name: max(1, len(was[2])) for name, was in self._before.items() if now.get(name) != was
        }


if __name__ == "__main__":
    main()
