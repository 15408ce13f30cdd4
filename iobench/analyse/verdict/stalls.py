"""The shares of the time that accelerators waited for fetch and for prep.

From the run's own events where they are recorded. Otherwise as in DS-Analyzer (Mohan et al., VLDB
2021): let T1, T3 and T2 be the time per sample of the accelerator alone, with everything but fetch,
and of the real run. Then ``prep_stall = (T3 - T1) / T2`` and ``fetch_stall = (T2 - T3) / T2``. The
time of saves counts in neither.
"""

from __future__ import annotations

from .evidence import Evidence
from .metrics import NULL_ACCELERATOR


def stalls(evidence: Evidence, missing: dict[str, str]) -> tuple[float | None, float | None]:
    """(prep stall, fetch stall) as shares of the time without saves, 0 to 1; together at most 1.

    A reason for each None is added to ``missing``. Without events of its own, the prep stall
    includes the harness, which DS-Analyzer does not separate.
    """
    shares = evidence.shares
    saves = shares.saves or 0.0
    if evidence.accelerator is None:
        return _missing(missing, NULL_ACCELERATOR)
    if shares.fetch is not None and shares.prep is not None and saves < 1:
        loading = 1 - saves
        prep = _share(shares.prep / loading)
        return prep, min(1 - prep, _share(shares.fetch / loading))
    if evidence.prep is None:
        return _missing(missing, "the prep ceiling was not measured")
    if evidence.measured is None or saves >= 1:
        return _missing(missing, "no repetition was completed")
    measured = evidence.measured / (1 - saves)
    without_fetch = min(
        rate for rate in (evidence.accelerator, evidence.prep, evidence.harness) if rate is not None
    )
    prep = _share(measured / without_fetch - measured / evidence.accelerator)
    return prep, min(1 - prep, _share(1 - measured / without_fetch))


def _missing(missing: dict[str, str], reason: str) -> tuple[None, None]:
    missing["prep_stall"] = missing["fetch_stall"] = reason
    return None, None


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
