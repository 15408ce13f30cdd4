"""The answer to the question what binds, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...schema.verdict import Stage
from .short import TooShort

Binds = Stage | Literal["undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What binds. ``reason`` says why, where that is not simply the largest gain."""

    binds: Binds
    also: tuple[Stage, ...] = ()  # whose gains can't be told from that of ``binds``
    basis: Literal["tested", "inferred"] = "inferred"
    reason: str = ""
    too_short: TooShort | None = None
