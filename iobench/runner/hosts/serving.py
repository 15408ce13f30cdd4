"""What a host that is not the first one does for the first one, as far as its command permits it.

The first host calls methods of ``Member`` by their names. Arguments, results and reports
are JSON, which is checked against the types that the method declares.

What all hosts measure: before anything is done, they must be about to do the same. Then the first
host may ask for other plans: trials, sides, changes. What a host reads at a URL, and what it runs
as code, is still decided by its own command.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from ...base.errors import UsageError
from ...base.text import printable
from ...record.typed import Count
from ...settings.base import apply_overrides
from ...settings.workload import Workload, code_of, option_texts
from ...storage import below, is_local
from ...storage.base import Storage
from ..plan import Plan, make_plan

if TYPE_CHECKING:
    from ..checkpoint_plan import StudyPlan
    from ..tasks.model_load import LoadParts

F = TypeVar("F", bound=Callable[..., Any])


def remote(function: F) -> F:
    """Mark a method as one that the first host may call here."""
    function.is_remote = True  # type: ignore[attr-defined]
    return function


@cache
def arguments_of(function: Callable[..., object]) -> Any:
    """The type of a remote method's arguments, as a tuple."""
    hints = get_type_hints(function, include_extras=True)
    return tuple[tuple(hint for name, hint in hints.items() if name != "return")]  # type: ignore[misc]


@cache
def result_of(function: Callable[..., object]) -> Any:
    """The type of what a remote method returns."""
    return get_type_hints(function, include_extras=True)["return"]


Same = dict[str, str]
"""What a host is about to do, by the names of what must be the same on all hosts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOrder:
    """A plan that each other host makes, too; see ``make_plan``.

    ``first`` and ``count``: the ranks of the host that gets it.
    """

    workload: Workload
    data: str
    origin: str | None
    accelerators: int
    seed: int
    first: int
    count: Count

    @classmethod
    def of(cls, plan: Plan, share: range) -> PlanOrder:
        """The order for the host that has this share of the ranks."""
        return cls(
            workload=plan.workload,
            data=plan.data,
            origin=plan.origin,
            accelerators=plan.accelerators,
            seed=plan.seed,
            first=share.start,
            count=len(share),
        )

    def make(self) -> Plan:
        """Raises as ``make_plan``."""
        return make_plan(
            self.workload,
            self.data,
            origin=self.origin,
            accelerators=self.accelerators,
            repetitions=1,
            seed=self.seed,
            here=range(self.first, self.first + self.count),
        )


def same_of(plan: Plan) -> Same:
    """What of a plan must be the same on all hosts."""
    header = plan.manifest.header.model_dump_json()
    return {
        "data": plan.home.url,
        "dataset": hashlib.sha256(header.encode()).hexdigest(),
        "workload": hashlib.sha256(_settings(plan).encode()).hexdigest(),
    }


def _settings(plan: Plan) -> str:
    """The workload without what trials on this host found; the controller's is used.

    These are the engine, and the number of steps for which a training's pace leaves time.
    """
    workload = plan.workload.model_copy(update={"max_steps": None})
    if plan.engine_choice:
        reader = workload.reader.model_copy(update={"engine": "auto"})
        workload = workload.model_copy(update={"reader": reader})
    return workload.model_dump_json()


def reaching_out(settings: Mapping[str, object]) -> dict[str, object]:
    """What the settings of a workload name as code or write to, and the options of its storage.

    The settings may be wrong, or a part of a workload.
    """
    found, options = code_of(settings), settings.get("storage")
    if isinstance(options, Mapping):
        found |= {f"storage.{key}": text for key, text in option_texts(options).items()}
    log = settings.get("log")
    if isinstance(log, Mapping) and log.get("to") is not None:
        found["log.to"] = log["to"]
    return found


@dataclass(frozen=True, kw_only=True)
class Permitted:
    """What the command of this host names: a plan of the first host may not name anything else.

    That is so of code, of the options of storages, and of URLs, but not of directories of this
    host, which are only read. ``places``: the URLs, also of data below them. ``said``: the rest, by
    the keys of ``reaching_out``.
    """

    places: Sequence[str] = ()
    said: Mapping[str, Sequence[object]] = field(default_factory=dict)

    @classmethod
    def by(
        cls,
        workloads: Iterable[Mapping[str, object]],
        overrides: Iterable[str],
        places: Sequence[str],
    ) -> Permitted:
        """By the settings of workloads that the command names, and by its overrides."""
        said: dict[str, list[object]] = {}
        for settings in [*workloads, *(apply_overrides({}, [text]) for text in overrides)]:
            for key, value in reaching_out(settings).items():
                said.setdefault(key, []).append(value)
        return cls(places=places, said=said)

    @classmethod
    def of(cls, plan: Plan) -> Permitted:
        """By a plan of this host itself."""
        places = [place for place in (plan.data, plan.origin) if place]
        return cls.by([plan.workload.model_dump(mode="json")], (), places)

    def check(self, order: PlanOrder) -> None:
        """Raises UsageError."""
        wrong = [place for place in (order.data, order.origin) if place and not self._knows(place)]
        settings = reaching_out(order.workload.model_dump(mode="json"))
        wrong += [
            f"{key}={value}"
            for key, value in settings.items()
            if value not in self.said.get(key, ())
        ]
        if wrong:
            raise UsageError(
                f"the first host asks for {printable(wrong[0], 100)}, which the command of this "
                "host does not name",
                remedy="start the same command on all hosts, and name it in --data, in --set or by "
                "the file of a workload",
            )

    def _knows(self, place: str) -> bool:
        name = place.partition("?")[0].rpartition("/")[2]
        known = [each for url in self.places for each in (url, below(url, name))]
        return is_local(place) or (place in known and name not in ("", "..", "."))


Work = Callable[[str, tuple[int, ...], str, Callable[[], None]], Generator[object, None, None]]
"""Does these tasks on the host of this name: yields the results, and calls what it is given about
once a second. The other text is what must be seen at the place of the work, too."""


@dataclass(frozen=True)
class SharedWork:
    """Numbered tasks of which each host has a share. ``kind``: the type of a result."""

    kind: type[Any]
    work: Work


@dataclass(frozen=True, kw_only=True)
class Served:
    """What this host has for the first one: plans, as far as ``permitted``, or what is named here.

    ``plan``, ``storage`` or ``loads``: what all hosts made before, with number 0. ``saves``: a
    study whose ranks save. ``results``: where the events of the ranks of this host are kept if the
    first host is lost, with ``command`` and ``rules``.
    """

    permitted: Permitted = Permitted()
    plan: Plan | None = None
    storage: Storage | None = None
    saves: StudyPlan | None = None
    loads: LoadParts | None = None
    shared: SharedWork | None = None
    results: Path = Path()
    command: Sequence[str] = ()
    rules: str = "quick"
