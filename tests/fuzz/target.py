"""What a fuzz target is, and what they have in common."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from iobench.base.errors import InternalError, IobenchError

CUT = b"\n--8<--\n"
"""Between the parts of an input that stands for several files."""


@dataclass(frozen=True)
class Target:
    """One parser, called with bytes that anybody could have written.

    It returns, or raises an IobenchError of one line, or one of ``documented``: exceptions that the
    parser's docstring names, and that its callers turn into an IobenchError. Whatever else it
    raises is a defect, and so is more memory or time than ``tests.fuzz`` allows.
    """

    parse: Callable[[bytes], object]
    documented: tuple[type[Exception], ...] = ()
    max_bytes: int = 16 << 10
    """Inputs are no longer than this: coverage needs small ones, and they run faster."""

    def __call__(self, data: bytes) -> None:
        try:
            self.parse(data)
        except InternalError:
            raise
        except IobenchError as error:
            if len(str(error).splitlines()) != 1:
                raise AssertionError(f"an error of several lines: {str(error)!a}") from error
        except self.documented:
            pass


def parts(data: bytes, count: int) -> list[bytes]:
    """The files that an input stands for, ``count`` of them; those that it lacks are empty."""
    found = data.split(CUT, count - 1)
    return found + [b""] * (count - len(found))


@functools.cache
def scratch(name: str) -> Path:
    """A folder of this process, for a target whose parser opens files by their names."""
    root = Path(tempfile.mkdtemp(prefix=f"iobench-fuzz-{name}-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root
