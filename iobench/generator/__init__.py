"""DatasetSpec -> shards + manifest: parallel, seeded, resumable, never overwriting.

``plan`` decides everything (a pure function of the spec); ``writer`` makes one unit of work; ``pool`` spreads units over processes;
``journal`` remembers finished units; ``engine`` ties them together; ``cleaner`` takes a dataset away again.
"""

from .cleaner import CleanReport, clean
from .engine import GenerateReport, Progress, generate
from .plan import ShardPlan, plan_shards, sample_sizes

__all__ = [
    "CleanReport",
    "GenerateReport",
    "Progress",
    "ShardPlan",
    "clean",
    "generate",
    "plan_shards",
    "sample_sizes",
]
