"""The agents of all hosts as one, for the controller: what it is asked, it asks all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...base.errors import HostLostError
from ...host.nfs import MountStats
from ...host.resources import Snapshot
from ...record.host import Host
from ...storage.base import Storage
from ..agent import CacheState, Change, FetchCounter, HostAgent, Used, change_cache
from .agent import Agent
from .control import Control
from .localreads import ReadingHost

log = logging.getLogger(__name__)


class HostsAgent(HostAgent):
    """The agents of all hosts as one: what it is asked, it asks all of them at the same time."""

    def __init__(
        self,
        storage: Storage,
        control: Callable[[], Control],
        members: Sequence[int] = (),
        *,
        plans: bool = False,
    ) -> None:
        """Make the agents of some hosts (``members``), or of all.

        ``plans``: the objects are those that a plan's loader reads, which each host knows.
        """
        super().__init__(storage)
        self._control, self.plans = control, plans
        self.members = members or range(len(self.control.meeting.hosts))
        self._one = HostAgent(storage)
        self._all: FetchCounter | None = None

    @property
    def control(self) -> Control:
        """The other hosts, which measure with the plan of this agent."""
        return self._control()

    def describe_all(self) -> list[Host]:
        return self.control.ask(ReadingHost.describe, self.describe)

    def empty_cache(self, keys: Sequence[str]) -> CacheState:
        return self._cache("empty", keys)

    def fill_cache(self, keys: Sequence[str]) -> CacheState:
        return self._cache("fill", keys)

    def cache_state(self, keys: Sequence[str]) -> CacheState:
        return self._cache("state", keys)

    def _cache(self, what: Change, keys: Sequence[str]) -> CacheState:
        asked = dict.fromkeys(self.members, (what, () if self.plans else tuple(keys)))
        states = self.control.ask_each(
            ReadingHost.cache, asked, lambda *_: change_cache(self._one, what, keys)
        )
        ratios = tuple(state.ratio for state in states)
        known = [ratio for ratio in ratios if ratio is not None]
        worst = max(known) if len(known) == len(ratios) else None
        how = next((state.how for state in states if state.ratio == worst), states[0].how)
        return CacheState(worst, how, ratios)

    def fetch_counter(self, keys: Sequence[str], *, direct: bool) -> FetchCounter:
        """The counter that all hosts have, if they have the same."""
        if self._all is None:
            found = self.control.ask(
                Agent.fetch_counter,
                lambda: self._one.fetch_counter(keys, direct=direct),
                direct,
            )
            self._all = found[0]
            if any(each.by != found[0].by for each in found):
                without = next(
                    (each for each in found if each.by == "nobody"),
                    FetchCounter(by="nobody", how="not measured: the hosts have other counters"),
                )
                self._all = without
        return self._all

    def mount_counters(self) -> MountStats | None:
        """The sums of the counters of all hosts' mounts; None if one is missing."""
        if self._all is None or self._all.by != "mount":
            return None
        found = self.control.ask(ReadingHost.mount, self._one.mount_counters)
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return known[0]._replace(read_bytes=sum(each.read_bytes for each in known))

    def snapshot(self) -> Snapshot:
        """Of this host; the others take one at the same time, and keep it."""
        taken: list[Snapshot] = []

        self.control.ask(ReadingHost.snapshot, lambda: taken.append(self._one.snapshot()))
        return taken[0]

    def used_since(self, before: Snapshot) -> Used:
        """What all hosts did since the last snapshot; this one's alone if a host is lost."""
        own = self._one.used_since(before)
        try:
            return replace(own, hosts=tuple(self.control.ask(ReadingHost.used, lambda: own)))
        except HostLostError as error:
            log.info("%s", error)
            return own
