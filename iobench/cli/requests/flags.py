"""The parts of a request: flags, their kinds of values, and the fields that all verbs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from inspect import get_annotations
from pathlib import Path
from typing import Any, TypeVar

from ...base.documents import MAX_NUMBER
from ...base.errors import UsageError
from ...base.units import MAX_BYTES, MIN_SHARE, parse_count, parse_duration, parse_size

ALL = "--help-all"
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of value: its name in the help, how it is parsed, and how to write it.

    ``parse`` raises UsageError for a text that is no such value.
    """

    metavar: str
    parse: Callable[[str], object] = str
    example: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerbFlag:
    """A flag of a verb, or one of its words, whose ``name`` has no dashes.

    ``least``, ``above`` and ``most`` are the limits of its value. ``requires``: one of these flags
    must be given, too. ``excludes``: none of these may be given. ``more``: only ``--help-all``
    shows it.
    """

    name: str
    help: str
    kind: ValueKind | None = None  # None: a flag without a value
    several: bool = False
    short: str = ""
    choices: tuple[str, ...] = ()
    group: str = ""
    more: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    @property
    def is_word(self) -> bool:
        return not self.name.startswith("-")

    def value_of(self, text: str) -> object:
        """Parse a value and check its limits. Raises UsageError, which names the flag."""
        assert self.kind is not None
        remedy = f"write it like {self.kind.example}" if self.kind.example else ""
        try:
            value = self.kind.parse(text)
        except UsageError as error:
            raise UsageError(f"{self.name}: {error.what}", remedy=error.remedy or remedy) from None
        if isinstance(value, int | float):
            self._check(value, text, remedy)
        return value

    def _check(self, value: float, text: str, remedy: str) -> None:
        least, above, most = self.least, self.above, self.most
        unit = " s" if self.kind is TIME else ""
        if least is not None and most is not None and not least <= value <= most:
            must = f"{least:,g} to {most:,g}{unit}"
        elif least is not None and value < least:
            must = f"at least {least:g}"
        elif above is not None and value <= above:
            must = f"more than {above:g}"
        elif most is not None and value > most:
            must = f"at most {most:,g}{unit}"
        else:
            return
        raise UsageError(f"{self.name} must be {must}, but is {text[:40]}", remedy=remedy)


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Flags under one title in the help, with what all of them require and exclude."""

    title: str
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


# How the fields of a request are declared. A flag has the name of its field (``budget_s`` is
# --budget), unless ``name`` gives another one.


def flag(kind: ValueKind, help: str, *, default: object = None, **more: Any) -> Any:
    """A flag with a value, which need not be given."""
    return _declared(kind, help, default, **more)


def must(kind: ValueKind, help: str, **more: Any) -> Any:
    """A flag with a value, which must be given."""
    return _declared(kind, help, MISSING, **more)


def many(kind: ValueKind, help: str, **more: Any) -> Any:
    """A flag that can be given several times, each time with a value."""
    return _declared(kind, help, (), several=True, **more)


def switch(help: str, **more: Any) -> Any:
    """A flag without a value."""
    return _declared(None, help, False, **more)


def word(
    metavar: str, help: str, *, kind: ValueKind | None = None, default: Any = MISSING, **more: Any
) -> Any:
    """An argument that is not a flag. ``several``: there may be more than one."""
    return _declared(kind or TEXT, help, default, name=metavar, **more)


def shared(declared: VerbFlag, default: Any = MISSING) -> Any:
    """A flag that several verbs have."""
    if default is MISSING:
        default = () if declared.several else False if declared.kind is None else None
    return field(default=default, metadata={_FLAG: declared})


def _declared(
    kind: ValueKind | None,
    help: str,
    default: Any,
    *,
    of: FlagGroup | None = None,
    name: str = "",
    **more: Any,
) -> Any:
    if of is not None:
        more["group"] = of.title
        for each in ("requires", "excludes"):
            more[each] = (*getattr(of, each), *more.get(each, ()))
    return field(
        default=default, metadata={_FLAG: VerbFlag(name=name, help=help, kind=kind, **more)}
    )


_FLAG = "flag"


def whole_number(text: str) -> int:
    """Parse a count. Raises UsageError."""
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a whole number") from None
    if abs(value) > MAX_BYTES:
        raise UsageError(f"{text[:40]} is out of range")
    return value


def number(text: str) -> float:
    """Parse a finite number. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None
    if not abs(value) <= MAX_NUMBER:  # NaN fails every comparison
        raise UsageError(f"{text[:40]} is out of range")
    return value


def rate(text: str) -> float:
    """Parse bytes per second, like ``20GB/s``. Raises UsageError."""
    value = float(parse_size(text.strip().removesuffix("/s")))
    if value <= 0:
        raise UsageError(f"it must be more than 0, but is '{text}'")
    return value


def share(text: str) -> float:
    """Parse a share above 0 and below 1: ``1%``, ``0.01``. Raises UsageError."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not MIN_SHARE <= value < 1:
        raise UsageError(f"it must be more than 0 and less than 1, but is '{text}'")
    return value


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(whole_number(each) for each in text.split(","))


TEXT = ValueKind("TEXT")
NAME = ValueKind("NAME")
DIR = ValueKind("DIR")
URL = ValueKind("URL")
FILE = ValueKind("FILE")
FOLDER = ValueKind("DIR", Path)
SETTING = ValueKind("KEY=VALUE")
COUNT = ValueKind("N", whole_number, "8")
COUNTS = ValueKind("N", _whole_numbers)
NUMBER = ValueKind("X", number, "0.5")
USD = ValueKind("USD", number)
RATE_PER_S = ValueKind("RATE", number)
TIME = ValueKind("TIME", parse_duration, "30min")
SIZE = ValueKind("SIZE", parse_size, "20GiB")
PARAMETERS = ValueKind("COUNT", parse_count, "86.6M")
BYTES_PER_S = ValueKind("RATE", rate, "20GB/s")
SHARE = ValueKind("SHARE", share, "1% or 0.01")
CHANGE = ValueKind("CHANGE", share, "2% or 0.02")

OUTPUT = FlagGroup("output")


@dataclass(frozen=True, kw_only=True)
class VerbRequest:
    """What a verb is asked: the output and the log, and in subclasses its own words and flags.

    ``given``: the names of the flags that the command line has. ``command``: its words, and
    ``began_s`` when it was started (monotonic).
    """

    format: str = flag(NAME, "output format (default: text)", default="text", of=OUTPUT)
    output: str | None = flag(
        FILE,
        "write the document to this file instead of stdout; an existing file is replaced, "
        "unless it is a link or a part of a dataset, of checkpoints or of a record",
        of=OUTPUT,
        more=True,
        short="-o",
    )
    quiet: bool = switch("show no progress on stderr", of=OUTPUT, more=True, short="-q")
    log_level: str | None = flag(
        NAME,
        "lowest level to log, on stderr or to --log-file (default: warning; with --log-file: info)",
        of=OUTPUT,
        more=True,
        choices=LOG_LEVELS,
    )
    log_file: str | None = flag(
        FILE, "append the log of all processes to this file", of=OUTPUT, more=True
    )
    debug: bool = switch("show the traceback of an error", of=OUTPUT, more=True)
    verb: str = ""
    given: frozenset[str] = frozenset()
    command: tuple[str, ...] = ()
    began_s: float = 0.0

    @property
    def json(self) -> bool:
        return self.format == "json"

    def given_of(self, names: Sequence[str]) -> str:
        """The first of these flags that was given; empty if none was."""
        return next((name for name in names if name in self.given), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One verb: its request, and what its help says besides that.

    ``help`` is its line in ``iobench --help``, of at most 56 characters. The docstring of
    ``request`` is its description. ``formats`` are the values of ``--format``; the first is the
    default. ``keeps``: SIGTERM, by which batch schedulers stop jobs, does what Ctrl-C does.
    """

    name: str
    request: type[VerbRequest]
    help: str
    examples: str
    formats: tuple[str, ...] = ("text", "json")
    keeps: bool = False


TABLE: dict[str, Verb] = {}
"""The verbs of the modules that were imported."""

R = TypeVar("R", bound=VerbRequest)


def verb(
    name: str,
    help: str,
    *,
    examples: Sequence[str],
    formats: tuple[str, ...] = ("text", "json"),
    keeps: bool = False,
) -> Callable[[type[R]], type[R]]:
    """Enter a request as a verb. ``examples``: what follows ``iobench NAME``."""

    def entered(request: type[R]) -> type[R]:
        TABLE[name] = Verb(
            name=name,
            request=request,
            help=help,
            examples="".join(f"  iobench {name} {each}".rstrip() + "\n" for each in examples),
            formats=formats,
            keeps=keeps,
        )
        return request

    return entered


def flags_of(request: type[VerbRequest]) -> dict[str, VerbFlag]:
    """The flags of a request by their fields: its own first, those that all verbs share last."""
    known = {each.name: each.metadata[_FLAG] for each in fields(request) if each.metadata}
    names = [name for each in request.__mro__ for name in get_annotations(each)]
    return {
        name: known[name] if known[name].name else replace(known[name], name=_flag_name(name))
        for name in dict.fromkeys(names)
        if name in known
    }


def _flag_name(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def names_of(request: type[VerbRequest]) -> tuple[str, ...]:
    """The names of a request's flags, without its words and the flags that all verbs have."""
    all_have = flags_of(VerbRequest)
    return tuple(
        each.name
        for name, each in flags_of(request).items()
        if name not in all_have and not each.is_word
    )


# Flags that several verbs have

ORIGIN = VerbFlag(
    name="--origin",
    kind=URL,
    help="directory or URL of the data of a scanned dataset; without it, only data in the "
    "manifest's own directory is read",
    more=True,
)
RESULTS = VerbFlag(
    name="--results",
    kind=FOLDER,
    help="directory for what is recorded (default: results)",
    more=True,
)
TAGS = VerbFlag(
    name="--tag",
    kind=SETTING,
    help="a label of the run for its record, its reports, CSV and OpenMetrics, e.g. box=nfs-b; "
    "repeatable",
    several=True,
    more=True,
)
DETAILS = VerbFlag(
    name="--details",
    help="print the evidence, too: the storage's curve, what each stage costs, where the time "
    "went, every finding (--format text; other formats always have it)",
)
BREAK_LOCK = VerbFlag(
    name="--break-lock",
    help="take over the lock of a process that died on another host; needed on S3, NFS and other "
    "storage where a lock remains after its process. First the lock is watched for a "
    "heartbeat",
    more=True,
)
OVERRIDES = VerbFlag(
    name="--set",
    kind=SETTING,
    help="override a key, e.g. loader.workers=8; repeatable",
    several=True,
)
RULES = VerbFlag(
    name="--rules",
    kind=NAME,
    help="rule set; what breaks a rule of mlperf is INVALID (default: quick)",
    choices=("quick", "mlperf"),
    more=True,
)
HISTORY = VerbFlag(
    name="--history",
    kind=FOLDER,
    help="directory of earlier runs, which tell the drift between runs (default: the runs beside "
    "those that are named); repeatable",
    several=True,
    more=True,
)
FAIL_ON_CHANGE = VerbFlag(
    name="--fail-on",
    kind=CHANGE,
    help="exit with status 4 if the candidate is worse, with this threshold (e.g. 2%): of the "
    "primary metric, or of those that --metric names",
)
IF_INCONCLUSIVE = VerbFlag(
    name="--if-inconclusive",
    kind=NAME,
    help="what --fail-on does where nothing is significant, a metric is missing, or a run is "
    "INVALID: exit with status 4, warn and exit with status 0, or pass (default: fail)",
    choices=("fail", "warn", "pass"),
    more=True,
)
FAIL_ON_CONDITION = VerbFlag(
    name="--fail-on",
    kind=ValueKind("CONDITION"),
    help="exit with status 4 if this holds for the median, or if the metric was not measured, "
    "e.g. 'accelerator_utilization_sustained<0.9'; repeatable",
    several=True,
)
WORKERS = VerbFlag(
    name="--workers",
    kind=COUNT,
    help="number of processes on each host (default: one for each core)",
    least=1,
)

MANY_HOSTS = FlagGroup("many hosts")


@dataclass(frozen=True, kw_only=True)
class HostsRequest(VerbRequest):
    """The flags of a command on many hosts."""

    hosts: str | None = flag(
        ValueKind("H1,H2,..."),
        "with --print: the hosts to start iobench on; 'here': use this host alone, even if "
        "torchrun, srun, mpirun or an Indexed Job has started iobench on several",
        of=MANY_HOSTS,
        more=True,
    )
    print_lines: bool = switch(
        "print the commands that start this on --hosts, and do nothing else",
        name="--print",
        of=MANY_HOSTS,
        more=True,
    )
    join_within: float = flag(
        TIME,
        "how long the hosts wait for each other (default: 2min)",
        default=120.0,
        of=MANY_HOSTS,
        more=True,
    )


ACCELERATORS_PER_HOST = VerbFlag(
    name="--accelerators-per-host",
    kind=COUNT,
    help="number of ranks on each host, in place of --accelerators",
    group=MANY_HOSTS.title,
    more=True,
    least=1,
    excludes=("--accelerators",),
)
