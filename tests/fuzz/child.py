"""One target under libFuzzer, in a process of its own: ``python -m tests.fuzz.child TARGET ...``.

Everything behind the target's name goes to libFuzzer. atheris instruments iobench while it is
imported, so nothing of iobench may be imported before.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import resource
import sys

import atheris

PROGRAM = "IOBENCH_FUZZ_PROGRAM"
"""Names the file that libFuzzer executes where it starts itself again (merge)."""


LAZY = ("iobench.checkpoint", "iobench.data.formats", "iobench.storage")
"""Packages of plug-ins, which are imported when they are needed: nobody would instrument them."""


def main() -> None:
    name, *options = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with atheris.instrument_imports(include=["iobench"]):
        from tests.fuzz.targets import TARGETS

        _import_plugins()

    from tests.fuzz.mutators import mutate

    target = TARGETS[name]

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        return mutate(data, max_size, seed, atheris.Mutate)

    program = os.environ.get(PROGRAM, sys.argv[0])
    atheris.Setup(
        [program, f"-max_len={target.max_bytes}", *options], target, custom_mutator=mutator
    )
    atheris.Fuzz()


def _import_plugins() -> None:
    for name in LAZY:
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
            if not module.name.endswith("_process"):  # a program
                importlib.import_module(module.name)


if __name__ == "__main__":
    main()
