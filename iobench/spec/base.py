"""Strict, frozen models read from YAML: an unknown key is an error that names its path and the nearest known key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from ..errors import SpecError, UnknownNameError, UsageError, nearest
from ..units import parse_duration, parse_size


def _as_value_error(parse: Any) -> Any:
    def convert(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str | int | float) else value
        except UsageError as error:
            raise ValueError(str(error)) from error

    return convert


Bytes = Annotated[int, BeforeValidator(_as_value_error(parse_size))]
"""A size: an integer of bytes, or text with a unit."""

Seconds = Annotated[float, BeforeValidator(_as_value_error(parse_duration))]
"""A duration: seconds, or text with a unit."""


class Strict(BaseModel):
    """Base of what a user writes: no unknown keys, no mutation."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation is not bool and bool not in get_args(annotation):
            raise ValueError(f"{str(value).lower()} is neither a number nor text")
        return value


class Record(BaseModel):
    """Base of what iobench writes down: keys of newer versions are passed over."""

    model_config = ConfigDict(extra="ignore")


M = TypeVar("M", bound=BaseModel)


def build(model: type[M], data: Any, *, where: str) -> M:
    """Validate ``data``; every problem becomes one SpecError line that starts with ``where`` and the key's path."""
    if not isinstance(data, Mapping):
        raise SpecError(
            f"{where}: expected a mapping of keys to values, found {type(data).__name__}"
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(
            f"{where}: {'; '.join(_explain(model, problem) for problem in error.errors())}"
        ) from None


def _explain(model: type[BaseModel], problem: Any) -> str:
    path = ".".join(_keys(model, problem["loc"])) or "(top level)"
    if problem["type"] == "extra_forbidden":
        owner = _model_at(model, problem["loc"][:-1])
        near = nearest(str(problem["loc"][-1]), owner.model_fields) if owner else []
        known = (
            f"did you mean '{near[0]}'?"
            if near
            else f"known keys: {', '.join(owner.model_fields) if owner else ''}"
        )
        return f"unknown key '{path}', {known}"
    if problem["type"] == "missing":
        return f"'{path}' is missing"
    if problem["type"] == "model_type":
        return f"'{path}': expected a group of keys, found {type(problem['input']).__name__}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"'{path}': {message}"


def _keys(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """What the user wrote of a problem's path; pydantic adds the tags of union members behind the key."""
    keys: list[str] = []
    for part in path:
        if keys and not isinstance(part, int) and _model_at(model, path[: len(keys)]) is None:
            break
        keys.append(str(part))
    return keys


def _model_at(model: type[BaseModel], path: Sequence[Any]) -> type[BaseModel] | None:
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue  # an index into a list, or the tag of a union
        candidates = [field.annotation, *get_args(field.annotation)]
        found = next(
            (c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None
        )
        if found is None:
            return None
        model = found
    return model


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML lets the last of two equal keys win in silence; here the second is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        written = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, _ in node.value:
            if (
                isinstance(key, yaml.ScalarNode)
                and key.value != "<<"
                and written.count(key.value) > 1
            ):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key '{key.value}' is there twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str) -> Any:
    """Raises ValueError in one line for whatever YAML cannot make sense of."""
    try:
        return yaml.load(text, Loader=_UniqueKeys)
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: a date such as 2024-13-45
        raise ValueError(" ".join(str(error).split())) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file. Raises SpecError for what is unreadable, not YAML, or not a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {path}: {error}") from error
    try:
        data = _parse_yaml(text)
    except ValueError as error:
        raise SpecError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise SpecError(
            f"{path}: expected a mapping of keys to values, found {type(data).__name__}"
        )
    return data


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``a.b=c`` on a copy of nested ``data``; the value is YAML (so ``true``, ``4`` and ``[1, 2]`` are what they look like)."""
    result: dict[str, Any] = _deep_copy(data)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise SpecError(
                f"override '{override}' is not of the form key=value",
                remedy="write it like --set reader.concurrency=8",
            )
        try:
            value = _parse_yaml(text)
        except ValueError as error:
            raise SpecError(f"override '{override}': the value is not valid YAML") from error
        *parents, last = key.strip().split(".")
        node = result
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                raise SpecError(
                    f"override '{override}': '{parent}' is a value, not a group of keys"
                )
            node = child
        node[last] = value
    return result


def _deep_copy(value: Any) -> Any:
    return {k: _deep_copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def find_spec(kind: str, name: str) -> Path:
    """The YAML file of a workload or dataset: an explicit path, then ``./<kind>s/``, then the built-in ones."""
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
    """Where specs of this kind are looked up by name, in order."""
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
    """Every named spec of this kind; a nearer one hides a built-in of the same name."""
    found: dict[str, Path] = {}
    for folder in reversed(spec_folders(kind)):
        found.update({path.stem: path for path in sorted(folder.glob("*.yaml"))})
    return found
