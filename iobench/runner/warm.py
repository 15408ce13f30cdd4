"""Bring a dataset into the page cache, for a loader that nothing but files can be put under."""

from __future__ import annotations

from ..memory import total_bytes
from ..units import format_bytes, format_percent
from .agent import HostAgent
from .plan import Plan

_MAX_SHARE = 0.5
"""Share of the memory that the dataset may take, so that the page cache keeps it."""

_MIN_RESIDENT = 0.98


def why_not_warm(plan: Plan) -> str:
    """Why the dataset can't be read from the page cache; empty if it can."""
    memory, size = total_bytes(), plan.manifest.header.stored_bytes
    if not plan.storage.traits.page_cache:
        return "this host's page cache keeps nothing of this storage"
    if memory is None or size > _MAX_SHARE * memory:
        had = "an unknown amount" if memory is None else format_bytes(memory)
        return (
            f"the dataset has {format_bytes(size)}, too much for the page cache of a host with "
            f"{had} of memory"
        )
    return ""


def fill_cache(plan: Plan, agent: HostAgent) -> str:
    """Read the dataset once, so that the page cache has it; return why it has not, or empty."""
    if why := why_not_warm(plan):
        return why
    state = agent.fill_cache(plan.keys)
    if state.ratio is not None and state.ratio < _MIN_RESIDENT:
        return f"the page cache keeps only {format_percent(state.ratio)} of the dataset"
    return ""
