"""Types of numbers in records, with the bounds within which the analysis can compute."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..base.units import MAX_SECONDS, MIN_SECONDS

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
