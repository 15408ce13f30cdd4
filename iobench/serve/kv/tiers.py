"""Which chunks a request finds in memory and on storage: exact, in virtual time.

Both tiers forget what was used least recently. A prompt is looked up from its begin to the first
chunk that is nowhere; from there on it is computed. Of chunks that are used together the end of the
prompt is forgotten first, because no chunk is of use without those before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ...settings.kv_cache import KvScenario
from ..arrivals import Instants
from .traffic import Prompts


class Step(NamedTuple):
    """What one prompt does, by the numbers of chunks.

    ``dram``: how many are found in memory. ``looked``: how many were looked for on the storage.
    ``load``: found there. ``write``: new there. ``delete``: forgotten there.
    """

    dram: int
    looked: int
    load: list[int]
    write: list[int]
    delete: list[int]


class Tiers:
    """Memory in front of storage, each with room for so many chunks.

    What is computed goes into memory, and to the storage: at once, or with ``seen-twice`` when a
    chunk is used for the second time. What is loaded goes into memory. A chunk that is found in
    memory is not looked for on the storage, so it does not count as used there.
    """

    def __init__(
        self, dram: int, capacity: int, admission: Literal["always", "seen-twice"]
    ) -> None:
        self.room, self.capacity, self.admission = dram, capacity, admission
        self.dram: OrderedDict[int, None] = OrderedDict()
        self.stored: OrderedDict[int, None] = OrderedDict()
        self._seen: set[int] = set()

    def prompt(self, chunks: Sequence[int]) -> Step:
        """One request, whose prompt has these chunks."""
        dram, stored = self.dram, self.stored
        load, in_memory, looked, known = list[int](), 0, 0, 0
        for chunk in chunks:
            if chunk in dram:
                in_memory += 1
            else:
                looked += 1
                if chunk not in stored:
                    break
                load.append(chunk)
            known += 1
        for chunk in reversed(load):
            stored.move_to_end(chunk)
        write = self._admitted(chunks, known)
        for chunk in reversed(write):
            stored[chunk] = None
        for chunk in reversed(chunks):
            dram[chunk] = None
            dram.move_to_end(chunk)
        _forget(dram, self.room)
        return Step(in_memory, looked, load, write, _forget(stored, self.capacity))

    def _admitted(self, chunks: Sequence[int], known: int) -> list[int]:
        """The chunks that the storage gets, in the order of the prompt."""
        if self.admission == "always":
            return [chunk for chunk in chunks[known:] if chunk not in self.stored]
        lacking = [chunk for chunk in chunks if chunk not in self.stored]
        again = [chunk for chunk in lacking if chunk in self._seen]
        self._seen.update(lacking)
        return again


def _forget(tier: OrderedDict[int, None], room: int) -> list[int]:
    """Forget what is beyond the room, and was used least recently."""
    return [tier.popitem(last=False)[0] for _ in range(len(tier) - room)]


FILLED = 0.75
"""After this share of the time before a window the tiers are taken to hold what they usually do."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What one request of a window does. Chunks have numbers of the window, each written once.

    ``tokens``: of the prompt. ``in_memory`` and ``loaded``: of these, found in memory and on the
    storage. ``lookups``: chunks that are looked for on the storage, of which the last one is not
    there unless all are loaded. ``copies``: slots of memory in which chunks are found. ``into``:
    the slot of each chunk that is loaded; -1: it is not found there before it is forgotten.
    """

    tokens: int
    in_memory: int
    loaded: int
    lookups: int
    loads: tuple[int, ...]
    writes: tuple[int, ...]
    deletes: tuple[int, ...]
    copies: tuple[int, ...] = ()
    into: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """The requests of a window, all decided before it begins.

    ``before``: chunks that must be on the storage when it begins, because they are loaded or
    deleted. ``chunks``: all numbers are below. ``stored``: chunks of the tier at the begin, whether
    or not they are needed. ``most``: chunks that lie there at the same time, of those that are.
    ``slots``: of memory, for as many chunks as lie there at the same time and are found later.
    ``earlier``: a row for each request of the ``earlier_s`` seconds before it: when it arrived, in
    nanoseconds below 0, the tokens of its prompt, and of these, found in memory and on the storage.
    """

    instants: Instants
    requests: list[Planned]
    before: list[int] = field(default_factory=list)
    chunks: int = 0
    stored: int = 0
    most: int = 0
    slots: int = 0
    earlier: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 4), np.int64))
    earlier_s: float = 0.0

    @property
    def only_loaded(self) -> list[int]:
        """What must lie there if nothing is written or deleted: all that is loaded."""
        return sorted({chunk for each in self.requests for chunk in each.loads})


def plan_window(spec: KvScenario, prompts: Prompts) -> WindowPlan:
    """Let all prompts pass through the tiers; the plan of those that arrive in the window."""
    tiers = Tiers(spec.dram_chunks, spec.capacity_chunks, spec.admission)
    first = int(np.searchsorted(prompts.times_s, 0))
    since_s = (1 - FILLED) * float(prompts.times_s[0]) if first else 0.0
    earlier = list[tuple[int, ...]]()
    for request, time_s in enumerate(prompts.times_s[:first].tolist()):
        found = tiers.prompt(prompts.chunks(request))
        if time_s >= since_s:
            known = _tokens(spec, int(prompts.tokens[request]), found)
            earlier.append((min(-1, round(time_s * 1e9)), *known))
    numbers, stays, plan = _Numbers(), _Stays(), list[Planned]()
    stored = len(tiers.stored)
    for request in range(first, len(prompts.tokens)):
        chunks = prompts.chunks(request)
        held = {chunk for chunk in chunks if chunk in tiers.dram}
        found = tiers.prompt(chunks)
        stays.prompt(chunks, held, found)
        tokens, in_memory, loaded = _tokens(spec, int(prompts.tokens[request]), found)
        plan.append(
            Planned(
                tokens=tokens,
                in_memory=in_memory,
                loaded=loaded,
                lookups=found.looked,
                loads=numbers.there(found.load),
                writes=numbers.written(found.write),
                deletes=numbers.deleted(found.delete),
            )
        )
    slots, places = stays.slots()
    instants = np.asarray(prompts.times_s[first:] * 1e9).astype(np.int64)
    return WindowPlan(
        instants=instants,
        requests=[
            replace(each, copies=copies, into=into)
            for each, (copies, into) in zip(plan, places, strict=True)
        ],
        before=numbers.before,
        chunks=numbers.next,
        stored=stored,
        most=len(numbers.before) + numbers.grown,
        slots=slots,
        earlier=np.array(earlier, np.int64).reshape(-1, 4),
        earlier_s=-since_s,
    )


def _tokens(spec: KvScenario, tokens: int, found: Step) -> tuple[int, int, int]:
    """The tokens of a prompt, and of these, found in memory and on the storage."""
    # One token at least is computed, which the first one of the answer follows from.
    most = tokens - 1
    in_memory = min(most, found.dram * spec.chunk_tokens)
    return tokens, in_memory, min(most - in_memory, len(found.load) * spec.chunk_tokens)


class _Stays:
    """The stays of chunks in memory, from a prompt that brings one until the last that finds it."""

    def __init__(self) -> None:
        self._now: dict[int, int] = {}
        self._begin, self._last = list[int](), list[int]()
        self._prompts: list[tuple[list[int], list[int]]] = []  # stays that are found, or begin

    def _new(self, chunk: int, begin: int) -> None:
        self._now[chunk] = len(self._begin)
        self._begin.append(begin)
        self._last.append(begin)

    def prompt(self, chunks: Sequence[int], held: set[int], found: Step) -> None:
        """One prompt, of whose chunks these were held in memory."""
        at, hits = len(self._prompts), list[int]()
        for place, chunk in enumerate(chunks):
            if chunk not in held:
                self._new(chunk, at)
            elif place < found.dram + len(found.load):
                if chunk not in self._now:  # since before the window
                    self._new(chunk, -1)
                hits.append(self._now[chunk])
                self._last[hits[-1]] = at
        self._prompts.append((hits, [self._now[chunk] for chunk in found.load]))

    def slots(self) -> tuple[int, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        """How many slots hold all of them, and the slots that each prompt finds and fills."""
        free, slot, most = list[int](), dict[int, int](), 0
        ends: dict[int, list[int]] = {}
        begins: dict[int, list[int]] = {}
        for stay, (begin, last) in enumerate(zip(self._begin, self._last, strict=True)):
            if last > begin:
                begins.setdefault(begin, []).append(stay)
                ends.setdefault(last, []).append(stay)
        for at in range(-1, len(self._prompts)):
            for stay in begins.get(at, ()):
                slot[stay] = free.pop() if free else most
                most = max(most, slot[stay] + 1)
            free += [slot[stay] for stay in ends.get(at, ())]
        return most, [
            (tuple(slot[stay] for stay in hits), tuple(slot.get(stay, -1) for stay in loads))
            for hits, loads in self._prompts
        ]


class _Numbers:
    """Numbers of the chunks of a window: a chunk that is written again gets another one."""

    def __init__(self) -> None:
        self.next, self.before, self.grown = 0, list[int](), 0
        self._now: dict[int, int] = {}
        self._balance = 0

    def _new(self, chunk: int) -> int:
        self._now[chunk] = self.next
        self.next += 1
        return self.next - 1

    def _old(self, chunk: int) -> int:
        if chunk not in self._now:
            self.before.append(self._new(chunk))
        return self._now[chunk]

    def there(self, chunks: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._old(chunk) for chunk in chunks)

    def written(self, chunks: Sequence[int]) -> tuple[int, ...]:
        self._balance += len(chunks)
        self.grown = max(self.grown, self._balance)
        return tuple(self._new(chunk) for chunk in chunks)

    def deleted(self, chunks: Sequence[int]) -> tuple[int, ...]:
        self._balance -= len(chunks)
        found = self.there(chunks)
        for chunk in chunks:
            del self._now[chunk]
        return found
