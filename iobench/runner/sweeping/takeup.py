"""Resume a sweep from its ``sweep.json``: what the file may decide, and what not.

The file may come from somebody else. It may name a directory of this host, below which datasets are
generated and removed after the usual checks of ownership. Any other location, the options that say
how to reach it, and what is run as code must be given again by the user; the file only has to
agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import UsageError
from ...base.text import printable
from ...record.sweep import SWEEP_FILE, Setting, Sweep, load_sweep, setting_text
from ...settings.any_workload import is_known, read_any_workload
from ...settings.base import apply_overrides
from ...settings.workload import check_named, code_in, code_of, option_texts
from ...storage import is_local, open_storage
from .plan import code_named, with_own_places, workload_of

_STORAGE = "storage"


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user gave again, as for a new sweep; None or empty: not given."""

    workload: str | None = None
    data_root: str | None = None
    data: str | None = None
    overrides: Sequence[str] = ()
    axes: Mapping[str, Sequence[Setting]] = field(default_factory=dict)


def take_up(directory: Path, given: Given) -> Sweep:
    """Load the sweep of a directory, with each point's data below its ``data_root``.

    Raises IobenchError if it is no sweep; UsageError if something was given that differs from the
    sweep, or if the sweep is on a URL, or names code, that was not given again.
    """
    sweep = load_sweep(directory)
    named = code_named(sweep)
    _check_given(sweep, given, named)
    _check_code(named, given, directory / SWEEP_FILE)
    place = sweep.data or sweep.data_root
    if not is_local(place):
        _check_confirmed(sweep, given, directory / SWEEP_FILE)
    open_storage(place)  # raises an error for an unusable URL; nothing is contacted
    return with_own_places(sweep)


def _check_given(sweep: Sweep, given: Given, named: Mapping[str, list[object]]) -> None:
    for flag, now, then in (
        (
            "the workload",
            None if given.workload == sweep.preset else given.workload,
            sweep.workload,
        ),
        ("--to", given.data_root, sweep.data_root),
        ("--data", given.data, sweep.data),
    ):
        if now is not None and now != then:
            raise UsageError(
                f"{flag} is '{printable(now, 100)}', but was '{printable(then, 100)}' in the sweep",
                remedy="leave it out, or begin a new sweep",
            )
    keys = [*(text.partition("=")[0].strip() for text in given.overrides), *given.axes]
    said = _said(given, own={})
    other = next(
        (
            key
            for key in keys
            if key.partition(".")[0] != _STORAGE
            and not (key in said and all(value in named.get(key, []) for value in said[key]))
        ),
        None,
    )
    if other is not None:
        raise UsageError(
            f"'{other}' can't be changed when a sweep is resumed or confirmed: only keys of "
            "'storage', and what the sweep names as code, can be given again",
            remedy="leave it out, or begin a new sweep",
        )


def _check_code(named: Mapping[str, list[object]], given: Given, path: Path) -> None:
    """Raise UsageError unless the user has named all that the sweep would run as code."""
    # A name of a workload is no statement of the user's: it may be that of a file which lies in
    # the current directory.
    own = {} if given.workload is None else read_any_workload(given.workload)
    said = _said(given, own=own)
    for key, values in named.items():
        for value in values:
            known = {key: value} if value in said.get(key, []) else {}
            check_named({key: value}, known, where=str(path))


def _said(given: Given, *, own: Mapping[str, object]) -> dict[str, list[object]]:
    """What the user names as code by arguments, and by a workload whose content is ``own``."""
    axes = [
        f"{key}={setting_text(value)}" for key, values in given.axes.items() for value in values
    ]
    said: dict[str, list[object]] = {}
    for found in (code_of(own), code_in(given.overrides), *(code_in([text]) for text in axes)):
        for key, value in found.items():
            said.setdefault(key, []).append(value)
    return said


def _check_confirmed(sweep: Sweep, given: Given, path: Path) -> None:
    """Raise UsageError unless the user has said where requests go, and how."""
    allowed = list(_storages(sweep, given))
    flag = "--data" if sweep.data else "--to"
    said = given.data == sweep.data if sweep.data else given.data_root == sweep.data_root
    if said and all(
        workload_of(sweep, point.settings).storage_options() in allowed for point in sweep.points
    ):
        return
    place = printable(sweep.data or sweep.data_root, 100)
    raise UsageError(
        f"{path} names the data at '{place}', but iobench does not use an address only because a "
        "file contains it",
        remedy=f"if that is your data, give {flag} again, and also the workload's file, "
        "--set storage.KEY=VALUE and --sweep storage.KEY=A,B if the sweep had them",
    )


def _storages(sweep: Sweep, given: Given) -> Iterator[dict[str, str]]:
    """Yield the storage options that the user's own arguments and files allow."""
    own: object = {}
    # A name is looked up among the user's and the built-in workloads. A path stands only in the
    # file, so it is not trusted unless the user gave it again.
    if is_known(sweep.workload) or given.workload is not None:
        own = read_any_workload(sweep.workload).get(_STORAGE) or {}
    for values in itertools.product(*given.axes.values()):
        axes = [f"{key}={value}" for key, value in zip(given.axes, values, strict=True)]
        found = apply_overrides({_STORAGE: own}, [*given.overrides, *axes])[_STORAGE]
        if isinstance(found, dict):
            yield option_texts(found)
