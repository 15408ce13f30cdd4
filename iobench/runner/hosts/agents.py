"""The agents of all hosts as one, for the controller: what it is asked, it asks all of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ...base.errors import HostLostError
from ...host.nfs import MountStats
from ...host.resources import Snapshot
from ...record.host import Host
from ...storage.base import Storage
from ..agent import CacheState, FetchCounter, HostAgent, Used, change_cache
from ..plan import Plan
from .agent import Agent
from .control import Control
from .reads import worst_state

log = logging.getLogger(__name__)


class HostsAgent(HostAgent):
    """The agents of all hosts as one: what it is asked, it asks all of them at the same time."""

    def __init__(self, storage: Storage, control: Control, plan: Plan) -> None:
        super().__init__(storage)
        self.control, self.plan = control, plan
        self._one = HostAgent(storage)
        self._all: FetchCounter | None = None

    def of(self, plan: Plan) -> HostsAgent:
        return HostsAgent(plan.storage, self.control, plan)

    def describe_all(self) -> list[Host]:
        return self.control.ask(Agent.describe, self.describe)

    def empty_cache(self, keys: Sequence[str]) -> CacheState:
        return self._cache("empty", keys)

    def fill_cache(self, keys: Sequence[str]) -> CacheState:
        return self._cache("fill", keys)

    def cache_state(self, keys: Sequence[str]) -> CacheState:
        return self._cache("state", keys)

    def _cache(self, what: Literal["empty", "fill", "state"], keys: Sequence[str]) -> CacheState:
        one = self._one
        return worst_state(
            self.control.ask(Agent.cache, lambda: change_cache(one, what, keys), what)
        )

    def fetch_counter(self, keys: Sequence[str], *, direct: bool) -> FetchCounter:
        """The counter that all hosts have, if they have the same."""
        if self._all is None:
            found = self.control.ask(
                Agent.fetch_counter, lambda: self._one.fetch_counter(keys, direct=direct), direct
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
        found = self.control.ask(Agent.mount, self._one.mount_counters)
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return known[0]._replace(read_bytes=sum(each.read_bytes for each in known))

    def snapshot(self) -> Snapshot:
        """Of this host; the others take one at the same time, and keep it."""
        taken: list[Snapshot] = []

        self.control.ask(Agent.snapshot, lambda: taken.append(self._one.snapshot()))
        return taken[0]

    def used_since(self, before: Snapshot) -> Used:
        """What all hosts did since the last snapshot; this one's alone if a host is lost."""
        own = self._one.used_since(before)
        try:
            return replace(own, hosts=tuple(self.control.ask(Agent.used, lambda: own)))
        except HostLostError as error:
            log.info("%s", error)
            return own
