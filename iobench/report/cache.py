"""One line on whether the reads of a cold run came from storage."""

from __future__ import annotations

from ..analyse.verdict.cache import cached_image, epoch_deliveries, is_cold, uncached
from ..schema.record import TrainingRecord
from ..units import format_count, format_percent


def cold_reads(doc: TrainingRecord) -> str:
    """The line; '' if the run does not claim cold reads, or no epoch is recorded."""
    found = list(epoch_deliveries(doc))
    if not is_cold(doc) or not found:
        return ""
    gaps = [each for each in found if each.fetched is None]
    if gaps and uncached(doc) and cached_image(doc) is None:
        return "reads go past this host's page cache"
    if gaps:
        where = "" if len(gaps) == len(found) else f" in {format_count(len(gaps))} epochs"
        reason = gaps[0].how.removeprefix("not measured: ") or "no reason was recorded"
        return f"not measured{where}: {reason}"
    if cached_image(doc) is not None:
        return "from a loop device, whose image this host's page cache may hold"
    share = format_percent(1 - max(each.cached for each in found))
    worst = f", in the worst of {format_count(len(found))} epochs" if len(found) > 1 else ""
    return f"{share} came from storage{worst}"
