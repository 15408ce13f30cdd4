"""Every error that a user can cause, in one tree.

::

    IobenchError                  exit 1  an operation failed
    ├── UsageError                exit 2  the command or a specification is wrong
    │   ├── SpecError             a YAML file or an override does not fit the schema
    │   ├── UnknownNameError      no such workload, dataset, format, codec, storage, accelerator
    │   ├── MissingPlaceError     the directory or file that is named is not there
    │   ├── NoRoomError           more memory or space would be needed than there is
    │   └── TargetRefusedError    iobench does not write to, or delete from, this place
    │       └── TargetHeldError   another process uses the place at the moment
    ├── DatasetError              missing, not iobench's, half generated, or unfit for the workload
    │   └── CorruptSampleError    bytes differ from the manifest (names shard and sample)
    ├── CheckpointError           missing, partial, of another job, or not of this state
    │   └── CorruptCheckpointError  bytes differ from what was saved (names the file)
    ├── StorageError              the storage refused an operation, or failed in it
    │   ├── MissingObjectError    no object has that name
    │   ├── ShortObjectError      an object ends before the requested bytes
    │   ├── TargetLostError       another process has taken over the place in use
    │   └── UnreadableError   exit 5  verify could not read everything, and found no damage
    ├── WorkerError               a loader worker or a rank died
    │   ├── BusError              it died of SIGBUS: mapped memory could not be provided
    │   ├── LostRankError         another rank, with which this one trains, is gone
    │   └── HostLostError         a host of the job has ended, or does not answer
    ├── NoMemoryError             more memory is needed than is available
    ├── UnwrittenError            what was measured can't be written
    ├── InvalidRunError           exit 3  the run broke a rule
    ├── ThresholdError            exit 4  a --fail-on condition holds, or a regression
    ├── InternalError             exit 70  an internal error (EX_SOFTWARE of sysexits.h)
    └── InterruptedRun            exit 130  stopped by the user, partial results saved

What can be known before anything is done, of the command and of the places that it names, is a
UsageError: the command has to be another one. What is at a place and can't be used, and what fails
while it is done, is not: exit code 1.

A message is one line: what happened, where, and what to do. Names and values in it may come from
anyone, so ``IobenchError`` escapes every character that is not printable.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from .text import printable

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class IobenchError(Exception):
    """Base of all errors. ``remedy``: what the user can do; may be empty.

    ``record``: what was measured and can't be written, so that it can still be shown.
    """

    exit_code = 1
    record: object = None

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what = printable(what)
        self.remedy = printable(remedy)
        super().__init__(self.what)

    def __str__(self) -> str:
        if not self.remedy:
            return self.what
        stop = "" if self.what.endswith((".", "?", "!")) else "."
        return f"{self.what}{stop} {self.remedy[:1].upper()}{self.remedy[1:]}"

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickling loses keyword-only arguments, and errors go from process to process.
        return (_rebuild, (type(self), self.what, self.remedy, getattr(self, "__notes__", [])))


def _rebuild(kind: type[IobenchError], what: str, remedy: str, notes: list[str]) -> IobenchError:
    error = kind.__new__(kind)
    IobenchError.__init__(error, what, remedy=remedy)
    for note in notes:
        error.add_note(note)  # shown by --debug, below the traceback
    return error


def rebuilt(error: IobenchError, what: str) -> IobenchError:
    """An error like ``error``, which says ``what`` instead."""
    return _rebuild(type(error), what, error.remedy, getattr(error, "__notes__", []))


def in_option(name: str, parse: Callable[[str], T], text: str) -> T:
    """What the text of an option means. Raises UsageError that names the option."""
    try:
        return parse(text)
    except UsageError as error:
        raise rebuilt(error, f"{name}: {error.what}") from None


def first_line(error: BaseException, limit: int = 200) -> str:
    """The first line of a library's error, as far as it is shown; its kind if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()[:limit]


def kept_in(error: E, directory: object) -> E:
    """The error, which also says where the record is of what was done before, if it was written."""
    if getattr(error, "record", None) is not None or str(directory) in str(error):
        return error
    return also_told(error, f"what was measured until then is in {directory}")


def also_told(error: E, told: str) -> E:
    """The error, which also says this: in its line, or where it is unexpected, in its log."""
    if isinstance(error, IobenchError):
        error.remedy = printable("; ".join(filter(None, (error.remedy, told))))
    else:
        error.add_note(told)
    return error


@contextmanager
def told_after(failure: Exception | None) -> Iterator[None]:
    """If the body fails, too, raise the ``failure`` that came first, with what the body's says."""
    try:
        yield
    except IobenchError as error:
        if failure is None:
            raise
        if not isinstance(failure, UnwrittenError):  # which says the same
            also_told(failure, str(error))
        failure.record = error.record  # type: ignore[attr-defined]
        raise failure from failure.__cause__


def failure_text(error: Exception) -> str:
    """What a record says of a failure, in one line."""
    if isinstance(error, IobenchError):
        return str(error)
    return printable(f"{type(error).__name__}: {first_line(error)}")


class UsageError(IobenchError):
    exit_code = 2


class SpecError(UsageError):
    pass


class UnknownNameError(UsageError):
    """A name that is not registered. The message suggests similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, remedy: str = "") -> None:
        names = sorted(known)
        near = nearest(name, names)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}"
        )
        super().__init__(f"unknown {kind} '{name}': {hint}", remedy=remedy)


class MissingPlaceError(UsageError):
    pass


class NoRoomError(UsageError):
    pass


class TargetRefusedError(UsageError):
    pass


class TargetHeldError(TargetRefusedError):
    pass


class DatasetError(IobenchError):
    pass


class CorruptSampleError(DatasetError):
    pass


class CheckpointError(IobenchError):
    pass


class CorruptCheckpointError(CheckpointError):
    pass


class StorageError(IobenchError):
    pass


class MissingObjectError(StorageError):
    pass


class ShortObjectError(StorageError):
    pass


class UnreadableError(StorageError):
    exit_code = 5


class TargetLostError(StorageError):
    pass


class WorkerError(IobenchError):
    pass


class BusError(WorkerError):
    """A process died of SIGBUS. Only ``who`` died is known: the kernel does not say why."""

    def __init__(self, who: str) -> None:
        super().__init__(
            f"{who} died of SIGBUS: memory that it had mapped could not be provided",
            remedy="a mapped file became shorter or can't be read, or shared memory (/dev/shm) "
            "is full: see the kernel log",
        )


class LostRankError(WorkerError):
    """A rank can't go on, because another one has ended. That one's own error says why."""


class HostLostError(WorkerError):
    pass


class NoMemoryError(IobenchError):
    pass


class UnwrittenError(IobenchError):
    def __init__(self, path: object, why: OSError) -> None:
        super().__init__(
            f"cannot write {path}: {why.strerror or why}",
            remedy="make room there, or choose another with --results",
        )


class InvalidRunError(IobenchError):
    exit_code = 3


class ThresholdError(IobenchError):
    exit_code = 4


class InternalError(IobenchError):
    """An unexpected exception: ``cli.main`` turns every other exception into this one."""

    exit_code = 70


class InterruptedRun(IobenchError):
    exit_code = 130


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names most similar to ``name``, best first."""
    lowered = {k.lower(): k for k in known}
    return [
        lowered[m] for m in difflib.get_close_matches(name.lower(), lowered, n=limit, cutoff=0.5)
    ]
