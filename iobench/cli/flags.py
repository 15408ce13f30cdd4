"""The parts of a request: kinds of values, what flags need of each other, and what all verbs share.

A request is a frozen dataclass. cyclopts makes the flags of its fields (``budget_s`` is --budget),
and their help of the text below each of them.

Here and in ``verbs.py`` annotations are objects and not texts: cyclopts asks for the types of a
request many times for each command, and would compile each text anew.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number as Between

from ..base.documents import MAX_NUMBER
from ..base.errors import UsageError
from ..base.units import MAX_BYTES, MIN_SHARE, Quantity, parse_count, parse_duration, parse_size
from ..report.media import DOCUMENTS, PAGES, RECORDS

if TYPE_CHECKING:
    from ..runner.budget import Budget, Given

T = TypeVar("T")


class WholeHelp:
    """Whether all flags are shown, or those alone that matter first (``--help``)."""

    asked = False

    def __bool__(self) -> bool:
        return self.asked

    def __xor__(self, other: bool) -> bool:
        return self.asked ^ other


WHOLE_HELP = WholeHelp()
MORE: Any = Parameter(show=WHOLE_HELP)  # type: ignore[arg-type]
"""A flag that only ``--help-all`` shows."""


@dataclass(frozen=True)
class Company:
    """What a field needs beside it: one of the fields ``needs``, and none of ``without``."""

    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def needs(*names: str) -> Company:
    return Company(needs=names)


def without(*names: str) -> Company:
    return Company(without=names)


_OF_GROUPS: dict[Parameter, Company] = {}


def group(title: str, company: Company | None = None, *, place: int = 0) -> Parameter:
    """Flags under one title in the help, with what all of them need."""
    found = Parameter(group=Group(title, sort_key=place))
    if company is not None:
        _OF_GROUPS[found] = company
    return found


def value(
    metavar: str, parse: Callable[[str], object], example: str = "", *, whole: bool = False
) -> Parameter:
    """A kind of value. ``parse`` raises UsageError for a text that is none.

    ``whole``: it makes a tuple of one text.
    """

    def convert(kind: Any, tokens: Sequence[Token]) -> object:
        found = []
        for token in tokens:
            try:
                found.append(parse(token.value))
            except UsageError as error:
                remedy = error.remedy or (f"write it like {example}" if example else "")
                raise UsageError(f"{token.keyword}: {error.what}", remedy=remedy) from None
        return tuple(found) if get_origin(kind) is tuple and not whole else found[-1]

    return Parameter(converter=convert, metavar=metavar, n_tokens=1, accepts_keys=False)


def named(*kinds: str) -> Parameter:
    """What a shell completes to names of these kinds: of specifications, or of models."""

    def names(_: object) -> list[str]:
        from ..checkpoint.models import MODELS
        from ..settings.base import known_specs

        found = {
            name for kind in kinds for name in (known_specs(kind) if kind != "model" else MODELS)
        }
        return sorted(name for name in found if re.fullmatch(r"[A-Za-z0-9._-]+", name))

    return Parameter(completer=names)


def at_least(least: float, most: float | None = None) -> Parameter:
    return Parameter(validator=Between(gte=least, lte=most))


def above(bound: float, most: float | None = None) -> Parameter:
    return Parameter(validator=Between(gt=bound, lte=most))


def at_most(most: float) -> Parameter:
    return Parameter(validator=Between(lte=most))


def whole_number(text: str) -> int:
    """Parse a count. Raises UsageError."""
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a whole number") from None
    if abs(value) > MAX_BYTES:
        raise UsageError(f"{text[:40]} is out of range")
    return value


def several(parse: Callable[[str], T], most: int | None = None) -> Callable[[str], tuple[T, ...]]:
    """A parser of values with commas between them, and ``most`` of them at most."""

    def parts(text: str) -> tuple[T, ...]:
        found = tuple(parse(each.strip()) for each in text.split(","))
        if most is not None and len(found) > most:
            raise UsageError(f"'{text[:40]}' has more than {most} values")
        return found

    return parts


def positive(text: str) -> int:
    """Parse a count of at least 1. Raises UsageError."""
    found = whole_number(text)
    if found < 1:
        raise UsageError(f"it must be at least 1, but is '{text[:40]}'")
    return found


def number(text: str) -> float:
    """Parse a finite number. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not a number") from None
    if not abs(value) <= MAX_NUMBER:  # NaN fails every comparison
        raise UsageError(f"{text[:40]} is out of range")
    return value


def duration(text: str) -> float:
    """Parse seconds, like ``30min``, or 0. Raises UsageError, also for a number without a unit."""
    value = parse_duration(text)
    if value and text.strip()[-1] in "0123456789.":
        raise UsageError(
            f"'{text[:40]}' has no unit",
            remedy=f"write {text[:40].strip()}s or {text[:40].strip()}ms",
        )
    return value


def rate(text: str) -> float:
    """Parse bytes per second, like ``20GB/s``. Raises UsageError, also for one without a unit."""
    size = text.strip().removesuffix("/s").strip()
    value = float(parse_size(size))
    if value <= 0:
        raise UsageError(f"it must be more than 0, but is '{text}'")
    if not size[-1].isalpha():
        raise UsageError(f"'{text}' has no unit", remedy=f"write {size}MB/s or {size}GB/s")
    return value


def quantity(parse: Callable[[str], float]) -> Callable[[str], Quantity]:
    """A parser of what changes: a factor such as ``2x``, or else what ``parse`` takes."""

    def change(text: str) -> Quantity:
        if not text.strip().lower().endswith("x"):
            return Quantity(float(parse(text)))
        factor = number(text.strip()[:-1])
        if not 0 < factor <= MAX_FACTOR:
            raise UsageError(f"'{text}' is no factor above 0", remedy="write it like 2x")
        return Quantity(factor, relative=True)

    return change


def share(text: str) -> float:
    """Parse a share above 0 and below 1: ``1%``, ``0.01``. Raises UsageError."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not MIN_SHARE <= value < 1:
        raise UsageError(f"it must be more than 0 and less than 1, but is '{text}'")
    return value


def condition(text: str) -> str:
    """A condition on a metric, as it is written. Raises SpecError for what is none."""
    from ..judge.validity import parse

    parse(text)
    return text


MAX_FACTOR = 1e6
SHARE = value("SHARE", share, "1% or 0.01")
RECORDS_KEPT = group("records, rules and locks", place=1)
MANY_HOSTS = group("many hosts", place=2)
OUTPUT = group("output", place=3)

Name = Annotated[str, Parameter(metavar="NAME")]
Names = Annotated[tuple[str, ...], value("NAME,NAME", several(str), whole=True)]
"""Several names in one word, with commas between them."""
Dir = Annotated[str, Parameter(metavar="DIR")]
Url = Annotated[str, Parameter(metavar="URL")]
File = Annotated[str, Parameter(metavar="FILE")]
Folder = Annotated[Path, Parameter(metavar="DIR")]
Place = Annotated[str | Path, Parameter(metavar="DIR")]
Settings = Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE")]
if TYPE_CHECKING:  # from Python also as a mapping, of which cyclopts need not know
    KeysAndValues = Sequence[str] | Mapping[str, object]
else:
    KeysAndValues = Settings
Count = Annotated[int, value("N", whole_number, "8")]
Number = Annotated[float, value("X", number, "0.5")]
Usd = Annotated[float, value("USD", number)]
Rate = Annotated[float, value("RATE", number)]
Time = Annotated[float, value("TIME", duration, "30min")]
Size = Annotated[int, value("SIZE", parse_size, "20GiB")]
Parameters = Annotated[int, value("COUNT", parse_count, "86.6M")]
BytesPerS = Annotated[float, value("RATE", rate, "20GB/s")]
Counts = Annotated[tuple[int, ...], value("N,N", several(positive), "1,2,4", whole=True)]
Times = Annotated[
    tuple[float, ...], value("TIME,TIME", several(duration, most=2), "0.7ms,0.2ms", whole=True)
]
Share = Annotated[float, SHARE]
NewRate = Annotated[Quantity, value("RATE", quantity(rate), "5GB/s, or 2x")]
NewTime = Annotated[Quantity, value("TIME", quantity(duration), "5ms, or 0.5x")]
NewCount = Annotated[Quantity, value("N", quantity(number), "16, or 2x")]
Change = Annotated[float, value("CHANGE", share, "2% or 0.02")]
Conditions = Annotated[tuple[str, ...], value("CONDITION", condition)]
Documents = Annotated[str, OUTPUT, Parameter(choices=DOCUMENTS)]
Pages = Annotated[str, OUTPUT, Parameter(choices=PAGES)]
Records = Annotated[str, OUTPUT, Parameter(choices=RECORDS)]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _Frozen:
    """Each class below it is a frozen dataclass, whose fields are given by name."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


_GIVEN: "dict[str, Given]" = {
    "repeat": "repetitions",
    "calibration_s": "calibration",
    "ablations_s": "ablations",
    "time_s": "steps",
    "duration_s": "duration",
}
"""The flags that a budget does not change where they are given."""


class Question(_Frozen):
    """What is asked, on the command line or from Python: in subclasses, words and flags.

    ``command``: the words of the command line, and ``began_s`` when it was started (monotonic).
    """

    command: Annotated[tuple[str, ...], Parameter(parse=False)] = ()
    began_s: Annotated[float, Parameter(parse=False)] = 0.0

    @property
    def fixed(self) -> "frozenset[Given]":
        """What ``--budget`` leaves as it is, because it was given."""
        values = {name: getattr(self, name, None) for name in _GIVEN}
        settings = {
            text.partition("=")[0].strip()
            for name in ("overrides", "set_a", "set_b")
            for text in getattr(self, name, ())
        }
        found = {_GIVEN[name] for name, value in values.items() if value is not None}
        return frozenset(found | ({"steps"} if settings & {"max_steps", "epochs"} else set()))

    @property
    def budget(self) -> "Budget":
        """The time that the verb may take, from the start of iobench on."""
        from ..runner.budget import Budget

        return Budget(
            seconds=getattr(self, "budget_s", None), began_s=self.began_s, given=self.fixed
        )

    def __post_init__(self) -> None:
        """Raise UsageError for a value that can't be, or that lacks or excludes another one."""
        hints = get_type_hints(type(self), include_extras=True)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.default == () and isinstance(value, Mapping):
                object.__setattr__(self, each.name, _settings(value, plain=each.name == "tags"))
            _check(each.name, hints[each.name], value)
        for name, company in requirements(type(self)):
            if not self.first_of([name]):
                continue
            own = flag_of(name)
            if company.needs and not self.first_of(company.needs):
                needed = " or ".join(map(flag_of, company.needs))
                raise UsageError(
                    f"{own} can only be used with {needed}",
                    remedy=f"add {needed}, or leave {own} out",
                )
            if other := self.first_of(company.without):
                raise UsageError(
                    f"{other} can't be used with {own}", remedy=f"leave {other} out, or {own}"
                )

    def given(self, kind: Callable[..., object]) -> dict[str, Any]:
        """What the request has under the names of the parameters of ``kind``."""
        names = signature(kind).parameters
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def made(self, kind: Callable[..., T], **more: object) -> T:
        """A ``kind`` of what the request has under the names of its parameters, and of ``more``."""
        return kind(**{**self.given(kind), **more})

    def first_of(self, names: Iterable[str]) -> str:
        """The flag of the first of these fields that says anything; empty if none does."""
        usual = {each.name: each.default for each in fields(self)}
        return next((flag_of(each) for each in names if getattr(self, each) != usual[each]), "")


def _settings(values: Mapping[str, object], *, plain: bool) -> tuple[str, ...]:
    """Settings as the command line has them: a value in JSON, which is YAML, or a plain text."""
    shown = {
        key: value if plain else json.dumps(value, default=str) for key, value in values.items()
    }
    return tuple(f"{key}={value}" for key, value in shown.items())


def _check(name: str, hint: Any, value: object) -> None:
    """Raise UsageError for a value that the field does not allow. cyclopts does so by itself."""
    kind, *about = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    choices = [
        each
        for part in (kind, *get_args(kind))
        if get_origin(part) is Literal
        for each in get_args(part)
    ]
    if choices and value is not None and value not in choices:
        raise UsageError(f"{flag_of(name)} is {value!r}, but must be one of {choices}")
    for each in about:
        for validate in getattr(each, "validator", None) or ():
            try:
                validate(kind, value)
            except ValueError as error:
                raise UsageError(f"{flag_of(name)} is {value!r}: {error}") from None


class VerbRequest(Question):
    """The output and the log of a verb.

    ``keeps``: it measures or writes something, so that it matters which host does it.
    """

    keeps: ClassVar[bool] = False

    format: Annotated[str, OUTPUT, Parameter(choices=("text", "json"))] = "text"
    """output format (default: text); --json and --html are short for --format json and html"""
    output: Annotated[File | None, OUTPUT, MORE, Parameter(alias="-o")] = None
    """write the document to this file instead of stdout; an existing file is replaced, unless it
    is a link or a part of a dataset, of checkpoints or of a record"""
    quiet: Annotated[bool, OUTPUT, MORE, Parameter(alias="-q")] = False
    """show no progress on stderr"""
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, OUTPUT, MORE] = None
    """lowest level to log, on stderr or to --log-file (default: warning; with --log-file: info)"""
    log_file: Annotated[File | None, OUTPUT, MORE] = None
    """append the log of all processes to this file"""
    debug: Annotated[bool, OUTPUT, MORE] = False
    """show the traceback of an error"""

    @property
    def json(self) -> bool:
        return self.format == "json"

    @property
    def verb(self) -> str:
        return self.command[1]


_NAMED = {
    "asynchronous": "async",
    "budget_usd": "max-cost",
    "overrides": "set",
    "print_lines": "print",
    "print_tool": "print",
    "run_directory": "from",
    "samples_per_s": "samples-per-s",
    "host_write_bytes_per_s": "host-write",
    "per_host": "accelerators-per-host",
    "stall_budgets": "stall-budget",
    "storage_bytes_per_s": "storage-limit",
    "storage_read_bytes_per_s": "storage-read-limit",
    "storage_write_bytes_per_s": "storage-write-limit",
    "tags": "tag",
}
"""Flags that do not have the name of their field."""


def name_of(field_name: str) -> str:
    """The name of a field's flag, without dashes before it."""
    return _NAMED.get(field_name, field_name.removesuffix("_s").replace("_", "-"))


def flag_of(field_name: str) -> str:
    return f"--{name_of(field_name)}"


def names_of(request: type[Question]) -> tuple[str, ...]:
    """The fields of a request, without those that all verbs have."""
    all_have = {each.name for each in fields(VerbRequest)}
    return tuple(each.name for each in fields(request) if each.name not in all_have)


def fields_of(request: type[Question], of: Parameter) -> tuple[str, ...]:
    """The fields of a request that are in a group."""
    hints = get_type_hints(request, include_extras=True)
    return tuple(name for name, hint in hints.items() if of in get_args(hint)[1:])


def requirements(request: type[Question]) -> Iterator[tuple[str, Company]]:
    """What the fields of a request need of each other."""
    for name, hint in get_type_hints(request, include_extras=True).items():
        for each in get_args(hint)[1:]:
            if isinstance(each, Company):
                yield name, each
            elif each in _OF_GROUPS:
                yield name, _OF_GROUPS[each]


# Flags that several verbs have

OVERRIDES = Parameter(help="override a key, e.g. loader.workers=8; repeatable")
Overrides = Annotated[Settings, OVERRIDES]
ConditionsOnMetrics = Annotated[
    Conditions,
    Parameter(
        help="exit with status 4 if this holds for the median, or if the metric was not measured, "
        "e.g. 'accelerator_utilization_sustained<0.9'; repeatable"
    ),
]
Workers = Annotated[
    Count | None,
    at_least(1),
    Parameter(help="number of processes on each host (default: one for each core)"),
]
AcceleratorsPerHost = Annotated[
    Count | None,
    MANY_HOSTS,
    MORE,
    at_least(1),
    without("accelerators"),
    Parameter(help="number of ranks on each host, in place of --accelerators"),
]


class ReportedRequest(VerbRequest):
    """The flags of a verb that prints a report."""

    format: Documents = "text"
    details: Annotated[bool, OUTPUT] = False
    """print the evidence, too, and not only the answer (--format text; other formats always have
    it)"""


class RecordingRequest(Question):
    """The flags of a verb that records runs."""

    keeps: ClassVar[bool] = True
    results: Annotated[Folder, RECORDS_KEPT, MORE] = Path("results")
    """directory for what is recorded (default: results)"""
    tags: Annotated[KeysAndValues, RECORDS_KEPT, MORE] = ()
    """a label of the run for its record, its reports, CSV and OpenMetrics, e.g. box=nfs-b;
    repeatable"""


class RuledRequest(Question):
    """The flag of a verb whose runs are judged by rules."""

    rules: Annotated[Literal["quick", "mlperf"], RECORDS_KEPT, MORE] = "quick"
    """rule set; what breaks a rule of mlperf is INVALID (default: quick)"""


class LockingRequest(Question):
    """The flag of a verb that locks a dataset or checkpoints."""

    break_lock: Annotated[bool, RECORDS_KEPT, MORE] = False
    """take over the lock of a process that died on another host; needed on S3, NFS and other
    storage where a lock remains after its process. First the lock is watched for a heartbeat"""


class ScannedRequest(Question):
    """The flag of a verb that also reads data that others wrote."""

    origin: Annotated[Url | None, MORE] = None
    """directory or URL of the data of a scanned dataset; without it, only data in the manifest's
    own directory is read"""


class HistoryRequest(ReportedRequest):
    """The flag of a verb that takes the drift between runs into account."""

    history: Annotated[tuple[Path, ...], RECORDS_KEPT, MORE, Parameter(metavar="DIR")] = ()
    """directory of earlier runs, which tell the drift between runs (default: the runs beside those
    that are named); repeatable"""


class GateRequest(ReportedRequest):
    """The flags of a comparison that can fail."""

    fail_on: Change | None = None
    """exit with status 4 if the candidate is worse, with this threshold (e.g. 2%): of the primary
    metric, or of those that --metric names"""
    if_inconclusive: Annotated[Literal["fail", "warn", "pass"], MORE] = "fail"
    """what --fail-on does where nothing is significant, a metric is missing, or a run is INVALID:
    exit with status 4, warn and exit with status 0, or pass (default: fail)"""


class HostsRequest(VerbRequest):
    """The flags of a command on many hosts."""

    hosts: Annotated[str | None, MANY_HOSTS, MORE, Parameter(metavar="H1,H2,...")] = None
    """with --print: the hosts to start iobench on; 'here': use this host alone, even if torchrun,
    srun, mpirun or an Indexed Job has started iobench on several"""
    print_lines: Annotated[bool, MANY_HOSTS, MORE] = False
    """print the commands that start this on --hosts, and do nothing else"""
    join_within: Annotated[Time, MANY_HOSTS, MORE] = 120.0
    """how long the hosts wait for each other (default: 2min)"""


class TrialsRequest(RecordingRequest, HostsRequest, ReportedRequest):
    """The flags of a verb that measures several plans, and records them."""

    def check_of_training(self, name: str, *flags: str) -> None:
        """Raise UsageError for flags that only a training heeds, which ``name`` is not."""
        if flag := self.first_of(flags):
            raise UsageError(
                f"{flag} is for the workload of a training, which '{name}' is not",
                remedy=f"leave {flag} out",
            )


CHECKPOINT = group("of a model's checkpoint")
StallBudgets = Annotated[
    tuple[float, ...],
    CHECKPOINT,
    SHARE,
    Parameter(
        help="largest share of the time that saves may take; repeatable (default: 1% and 5%)"
    ),
]
MAX_HOSTS = 10**6
"""As ``record.checkpoint``, which a help does not import."""


class SharedStorage(ReportedRequest):
    """The flags of hosts that save to one storage at the same time."""

    hosts_writing: Annotated[Count | None, CHECKPOINT, MORE, at_least(1, MAX_HOSTS)] = None
    """hosts that save at the same time, each its part of the model (default: the whole job is
    taken to get what one host gets)"""
    hosts_restoring: Annotated[Count | None, CHECKPOINT, MORE, at_least(1, MAX_HOSTS)] = None
    """hosts that read at the same time after an interruption; replicas read a part again
    (default: those that write)"""
    storage_write_bytes_per_s: Annotated[BytesPerS | None, CHECKPOINT, MORE] = None
    """what the storage takes from all hosts together, e.g. 40GB/s (default: not known)"""
    storage_read_bytes_per_s: Annotated[BytesPerS | None, CHECKPOINT, MORE] = None
    """what the storage gives all hosts together, e.g. 80GB/s (default: not known)"""
