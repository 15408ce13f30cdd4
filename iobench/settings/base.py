"""Base classes and readers of the schemas, and types of numbers with their bounds.

Models of what users write in YAML are strict and frozen: an unknown key is an error that names its
path and the nearest known key. Models of what iobench writes in JSON are less strict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from .. import __version__
from ..base.documents import (
    MAX_DOCUMENT_BYTES,
    MAX_NUMBER,
    json_text,
    parse_json,
    read_regular,
    require_place,
    write_whole,
)
from ..base.errors import (
    IobenchError,
    SpecError,
    UnknownNameError,
    UnwrittenError,
    UsageError,
    nearest,
)
from ..base.text import printable
from ..base.units import MAX_SECONDS, MIN_SECONDS, parse_duration, parse_size, utc_now
from .tags import Tags, tags
from .yamlfile import MAX_DEPTH, parse_yaml, read_yaml

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def _as_value_error(
    parse: Callable[[str | int | float], object],
) -> Callable[[object], object]:
    def convert(value: object) -> object:
        try:
            return parse(value) if isinstance(value, str | int | float) else value
        except UsageError as error:
            raise ValueError(str(error)) from error

    return convert


Bytes = Annotated[int, BeforeValidator(_as_value_error(parse_size))]
"""A size: an integer number of bytes, or text with a unit."""

Seconds = Annotated[float, BeforeValidator(_as_value_error(parse_duration))]
"""A duration: a number of seconds, or text with a unit."""


class Strict(BaseModel):
    """Base of models that a user writes: no unknown keys, no mutation, only valid text.

    ``any_bytes`` names the keys whose text may hold lone surrogates: paths, in which Python
    represents bytes that are not UTF-8 in this way (PEP 383).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    any_bytes: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: object, info: ValidationInfo) -> object:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation is not bool and bool not in get_args(annotation):
            raise ValueError(f"{str(value).lower()} is neither a number nor text")
        if info.field_name not in cls.any_bytes and _is_broken(value):
            raise ValueError(
                "it is not text: it holds bytes that are not UTF-8, or a lone surrogate"
            )
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _numbers_make_sense(cls, value: object) -> object:
        if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
            raise ValueError("it is out of range")
        return value


def _is_broken(value: object) -> bool:
    """Return whether any text in ``value`` has a lone surrogate.

    pydantic cannot report an error about such text itself.
    """
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Mapping):
        return any(_is_broken(key) or _is_broken(each) for key, each in value.items())
    return isinstance(value, list | tuple) and any(map(_is_broken, value))


class Record(BaseModel):
    """Base of what iobench records: unknown keys, from newer versions, are ignored.

    What checks a class is built when its first object is made, since a process needs few of them.
    """

    model_config = ConfigDict(extra="ignore", defer_build=True)


class RecordHead(Record):
    """The head of every document that iobench writes: who wrote it, when, and how that ended.

    A study and a training that was watched are the job of a run, and have the head of a run.
    """

    schema_version: str
    iobench_version: str
    created: str  # ISO 8601, UTC
    command: list[str]
    status: str
    error: str = ""  # one line, if status is failed
    tags: Tags = {}  # labels that the user gave it


def head(command: Sequence[str], created: str | None = None) -> dict[str, Any]:
    """What every new record begins with: who writes it, when, for which command and labels."""
    return {
        "iobench_version": __version__,
        "created": created or utc_now(),
        "command": list(command),
        "tags": tags(),
    }


class OpenRecord(BaseModel):
    """Base of a part of a record that differs between versions, hosts and storages.

    Known keys are checked for their types and bounds, and a missing key has its default. Unknown
    keys are kept as they are. When the record is written again, it
    has exactly the keys that it was read with.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, defer_build=True)

    @property
    def recorded(self) -> bool:
        """Whether the file has any key of this part."""
        return bool(self.model_fields_set)

    @model_serializer(mode="wrap")
    def _as_given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {
            key: value for key, value in serialize(self).items() if key in self.model_fields_set
        }


M = TypeVar("M", bound=BaseModel)

_MAX_PROBLEMS = 5
_MAX_KEY = 60
_AS_LIKE = 0.1  # two names are as like as each other to what was written, if so near in ratio
_MAX_OVERRIDE = 200  # characters of an override that an error shows


def build(model: type[M], data: object, *, where: str) -> M:
    """Validate ``data`` as ``model``.

    Raises SpecError in one line that starts with ``where`` and names the path of each wrong key.
    """
    if not isinstance(data, Mapping):
        raise SpecError(
            f"{where}: expected a mapping of keys to values, found {type(data).__name__}"
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(f"{where}: {explain(model, error)}") from None


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """Describe the first few problems of ``model`` in one line that names the keys."""
    problems = error.errors(include_url=False, include_context=False)
    shown = "; ".join(_explain(model, problem) for problem in problems[:_MAX_PROBLEMS])
    more = len(problems) - _MAX_PROBLEMS
    return f"{shown}; and {more} more" if more > 0 else shown


def save_record(path: Path, record: RecordHead) -> None:
    """Write a record atomically. Raises UnwrittenError that has the record."""
    try:
        write_whole(path, json_text(record) + "\n")
    except OSError as error:
        failure = UnwrittenError(path, error)
        failure.record = record
        raise failure from error


def load_record(path: Path, model: type[M], *, version: str, what: str) -> M:
    """Read a record that iobench wrote. ``what`` is a directory that has one, in words.

    Raises IobenchError in one line, with the file and the key, if there is none or it does not fit.
    """
    return fitting(path, model, read_json(path, version=version, what=what))


def read_json(path: Path, *, version: str, what: str) -> dict[str, object]:
    """Read a JSON object that iobench wrote, of the same major version as ``version``.

    ``what`` is a directory that has one, in words. Raises MissingPlaceError if there is no such
    directory. Raises IobenchError in one line that names the file if it is not there, cannot be
    read, is not a JSON object, or has another major version of the schema.
    """
    try:
        data = parse_json(read_regular(path, MAX_DOCUMENT_BYTES))
    except FileNotFoundError:
        require_place(path.parent, f"name {what}")
        raise IobenchError(f"no {path.name} in {path.parent}", remedy=f"name {what}") from None
    except (OSError, ValueError) as error:
        denied = isinstance(error, PermissionError)
        broken = "it is incomplete, or iobench did not write it: name another file"
        raise IobenchError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}",
            remedy="check the permissions" if denied else broken,
        ) from error
    if not isinstance(data, dict):
        raise IobenchError(f"{path} is not a JSON object", remedy="name a file that iobench wrote")
    found = str(data.get("schema_version", ""))
    if found.partition(".")[0] != version.partition(".")[0]:
        writer = data.get("iobench_version")
        if not found or writer == __version__:
            raise IobenchError(f"{path} is a document of another kind", remedy=f"name {what}")
        by = f", written by iobench {printable(writer, 20)}" if isinstance(writer, str) else ""
        raise IobenchError(
            f"{path} has schema version '{found[:20]}'{by}; this version reads {version}",
            remedy="use the version of iobench that wrote it, or a newer one",
        )
    return data


def fitting(where: Path | str, model: type[M], data: object) -> M:
    """Validate ``data`` as ``model``. Raises IobenchError that names ``where`` and wrong keys."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise IobenchError(f"{where} does not fit the schema: {explain(model, error)}") from None


def _explain(model: type[BaseModel], problem: ErrorDetails) -> str:
    path = ".".join(_keys(model, problem["loc"]))
    path = path if len(path) <= 4 * _MAX_KEY else f"{path[: 4 * _MAX_KEY]}..."
    named = f"'{path}': " if path else ""  # what concerns several keys names them itself
    if problem["type"] == "extra_forbidden":
        owner = _model_at(model, problem["loc"][:-1])
        key = str(problem["loc"][-1])[:_MAX_KEY]
        near = _elsewhere(model, key)
        near = near or (_meant(owner, key, problem["input"]) if owner else [])
        known = (
            f"did you mean {' or '.join(repr(name) for name in near)}?"
            if near
            else f"known keys: {', '.join(owner.model_fields) if owner else ''}"
        )
        return f"unknown key '{path}', {known}"
    if problem["type"] == "missing":
        return f"'{path}' is missing"
    if problem["type"] == "model_type":
        return f"{named}expected a group of keys, found {type(problem['input']).__name__}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if message.startswith(_PYDANTIC):
        message = message.removeprefix(_PYDANTIC)
        for theirs, ours in _OURS.items():
            message = message.replace(theirs, ours)
        given = problem["input"]
        if isinstance(given, str | int | float | bool):
            message += f", but is {str(given)[:_MAX_KEY]!r}"
        return f"'{path}' must be {message}"
    return named + message.replace("String should match", "it must match")


_PYDANTIC = "Input should be "
_OURS = {
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid integer, got a number with a fractional part": "a whole number",
    "a valid integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
    "a valid boolean, unable to interpret input": "true or false",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
}
"""The words of pydantic, and those of the other errors."""


def _elsewhere(model: type[BaseModel], key: str) -> list[str]:
    """Where the model has this very key in a group: ``workers`` is ``loader.workers``."""
    groups = {name: _model_at(model, [name]) for name in model.model_fields}
    return [
        f"{name}.{key}" for name, group in groups.items() if group and key in group.model_fields
    ]


def _meant(owner: type[BaseModel], key: str, value: object) -> list[str]:
    """The known keys that are most like an unknown one, best first: one, or some as like as it.

    If a group of keys was written, they are those of groups that have these keys, if there are any.
    """
    found = nearest(key, owner.model_fields)
    like = [SequenceMatcher(None, name, key.lower()).ratio() for name in found]
    near = [name for name, ratio in zip(found, like, strict=True) if ratio > like[0] - _AS_LIKE]
    if not isinstance(value, Mapping):
        return near
    groups = {name: group for name in owner.model_fields if (group := _model_at(owner, [name]))}
    fitting = [name for name, group in groups.items() if set(value) <= set(group.model_fields)]
    return nearest(key, fitting, 1) or near


def _keys(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the part of a problem's path that the user wrote.

    pydantic appends the tags of union members to the keys.
    """
    keys: list[str] = []
    for part in path:
        if keys and not isinstance(part, int) and _model_at(model, path[: len(keys)]) is None:
            break
        keys.append(str(part))
    return keys


def _model_at(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel] | None:
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue  # an index of a list, or the tag of a union
        candidates = [field.annotation, *get_args(field.annotation)]
        found = next(
            (c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None
        )
        if found is None:
            return None
        model = found
    return model


def apply_overrides(data: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """Apply overrides of the form ``a.b=c`` to a copy of nested ``data``.

    The value is parsed as YAML, so that ``true``, ``4`` and ``[1, 2]`` have their usual types.
    Raises SpecError.
    """
    result = {key: _deep_copy(value) for key, value in data.items()}
    for override in overrides:
        key, equals, text = override.partition("=")
        shown = printable(override, _MAX_OVERRIDE)
        if not equals or not key.strip():
            raise SpecError(
                f"override '{shown}' is not of the form key=value",
                remedy="write it like --set reader.concurrency=8",
            )
        try:
            value = parse_yaml(text)
        except ValueError as error:
            raise SpecError(f"override '{shown}': the value is not valid YAML") from error
        *parents, last = key.strip().split(".")
        if len(parents) >= MAX_DEPTH:
            raise SpecError(f"override '{shown}' has more than {MAX_DEPTH} levels")
        node = result
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise SpecError(
                    f"override '{shown}': '{parent[:_MAX_KEY]}' is a value, not a group of keys"
                )
            node = child
        node[last] = value
    return result


def with_overrides(spec: M, overrides: Sequence[str], *, where: str) -> M:
    """The same with other settings. Raises SpecError as ``apply_overrides`` and ``build``."""
    return build(type(spec), apply_overrides(spec.model_dump(mode="json"), overrides), where=where)


def read_spec(kind: str, name: str, overrides: Sequence[str] = ()) -> tuple[dict[str, object], str]:
    """What the file of a specification says with ``overrides``, and how errors name the file.

    Raises SpecError, UnknownNameError as ``find_spec``.
    """
    path = find_spec(kind, name)
    where = str(path) if path.stem != name else f"{kind} '{name}'"
    return apply_overrides(read_yaml(path), overrides), where


def _deep_copy(value: object) -> object:
    return {k: _deep_copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def find_spec(kind: str, name: str) -> Path:
    """Find the YAML file of a workload or dataset.

    ``name`` is a path, or a name that is looked up in ``./<kind>s/`` and then among the built-in
    specs. Raises SpecError, UnknownNameError.
    """
    explicit = Path(name)
    if explicit.suffix in (".yaml", ".yml") or "/" in name:
        if not explicit.is_file():
            raise SpecError(f"no such {kind} file: {name}")
        return explicit
    for folder in spec_folders(kind):
        candidate = folder / f"{name}.yaml"
        if candidate.is_file():
            return candidate
    raise UnknownNameError(
        kind, name, known_specs(kind), remedy=f"list them with: iobench list {kind}s"
    )


def spec_folders(kind: str) -> list[Path]:
    """Return the folders in which specs of this kind are looked up by name, in this order."""
    package = Path(__file__).resolve().parent.parent
    builtin = next(
        (p for p in (package / f"{kind}s", package.parent / f"{kind}s") if p.is_dir()),
        package / f"{kind}s",
    )
    local = Path.cwd() / f"{kind}s"
    return (
        [local, builtin] if local.is_dir() and local.resolve() != builtin.resolve() else [builtin]
    )


def known_specs(kind: str) -> dict[str, Path]:
    """Return the file of every named spec of this kind.

    A spec in ``./<kind>s/`` replaces the built-in one of the same name.
    """
    found: dict[str, Path] = {}
    for folder in reversed(spec_folders(kind)):
        files = (path for path in sorted(folder.glob("*.yaml")) if path.is_file())
        found.update({path.stem: path for path in files})
    return found


MAX_COUNT = 2**63 - 1

Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
Number = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Few = Annotated[int, Field(strict=True, ge=0, le=10**9)]
"""A number of processes, steps or requests: it is used in loops and products."""
Ranks = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Figure = Annotated[float, Field(strict=True, ge=0)]
Amount = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)] | Figure
"""A number that is mostly an integer, and then stays one when written again: mean bytes, cores."""
Positive = Annotated[float, Field(strict=True, ge=1e-30)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Duration = Annotated[float, Field(strict=True, ge=MIN_SECONDS, le=MAX_SECONDS)]
