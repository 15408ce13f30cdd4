"""The bottleneck, what it costs, what would help. The base run: demand 2,000, storage 4,000, prep
6,000, loader 8,000. It has no stages left out, so the bottleneck is inferred from its ceilings; the
tested verdict is in test_causes.py. Texts are in tests/snapshots.
"""

from __future__ import annotations

from typing import Any

import pytest

from iobench.judge.rebuild import conclude
from iobench.record.verdict import Advice, Verdict
from tests.unit.conftest import build_run


def judge(**changes: Any) -> Verdict:
    found = build_run(**changes).job.verdict
    assert isinstance(found, Verdict)
    return found


def advised(found: Verdict) -> dict[str, Advice]:
    return {advice.id: advice for advice in found.advice}


SLOW = {"rates": {"storage_raw": 650, "fetch": 600}, "measured": 580, "au": 0.29}
FEW_READS = {"rates": {"storage_raw": 1500, "fetch": 600}, "measured": 590, "au": 0.3}
PREP = {"rates": {"prep": 1000}, "measured": 980, "au": 0.49}


@pytest.mark.parametrize(
    ("changes", "expected", "advice"),
    [
        # 4,000 / (0.9 x 1,000) = 4.4
        (
            {},
            {"bottleneck": "accelerator", "starved": False, "headroom": 2.0, "accelerators_fed": 4}
            | {"predicted_samples_per_s": 2000},
            ("none", 1.0, []),
        ),
        # Stalls: T2 = 1/580, T3 = T1 = 1/2000. fio had as many reads in flight as the reader: more
        # were not measured. Gains are over what was measured.
        (
            SLOW,
            {"bottleneck": "storage", "starved": True, "headroom": 0.3, "accelerators_fed": 0}
            | {"fetch_stall": 0.71, "prep_stall": 0, "storage_bound": "unknown"},
            ("faster-storage", 2000 / 580, []),
        ),
        # 4 reads in flight x 1500 / 600
        (
            FEW_READS,
            {"bottleneck": "storage", "storage_bound": "latency"},
            ("concurrency", 2.5, ["reader.concurrency=10"]),
        ),
        # (1/1000 - 1/2000) x 980; 8 cores, 2 accelerators
        (
            PREP,
            {"bottleneck": "prep", "prep_stall": 0.49, "fetch_stall": 0.02},
            ("workers", 2.0, ["loader.workers=4"]),
        ),
        (
            {"rates": {"loader": 800}, "measured": 790, "au": 0.4}
            | {"loader": {"transport": "tensor"}},
            {"bottleneck": "loader"},
            ("transport", 2.6 / 1.4, ["loader.transport=ring"]),
        ),
        # A ceiling that the run refutes: measured on a busier host, 300 samples/s alone.
        (
            {"rates": {"prep": 300}, "measured": 900, "au": 0.45},
            {"bottleneck": "prep"},
            ("workers", 2.0, ["loader.workers=4"]),
        ),
    ],
    ids=["accelerator", "storage", "few reads in flight", "prep", "loader", "refuted ceiling"],
)
def test_what_binds_and_what_would_help(
    changes: dict[str, Any], expected: dict[str, Any], advice: tuple[str, float, list[str]]
) -> None:
    found = judge(**changes)
    assert found.basis == "inferred"
    for name, value in expected.items():
        told = getattr(found, name)
        assert told == (value if isinstance(value, str) else pytest.approx(value)), name
    first, (name, gain, settings) = found.advice[0], advice
    assert (first.id, first.settings) == (name, settings)
    assert first.predicted_gain == pytest.approx(gain, rel=0.03)
    gains = [each.predicted_gain or 0 for each in found.advice]
    assert gains == sorted(gains, reverse=True)
    demand, measured = 2000, changes.get("measured", 1900)
    assert name == "none" or max(gains) <= demand / measured + 1e-9


def test_prep_with_no_idle_core_asks_for_cores_or_cheaper_samples() -> None:
    spec = {"name": "d", "content": "jpeg", "codec": "gzip", "compress_ratio": 4.0}
    data = {"spec": spec, "cheaper_codecs": ["zstd:1", "lz4", "none"]}
    found = judge(**PREP, loader={"workers": 4}, dataset=data)
    assert found.advice[0].id == "cores"
    assert found.advice[0].predicted_gain == pytest.approx(2000 / 980)
    assert "codec" not in advised(found)  # uncompressed, storage would give 1,000 as well
    cheap = judge(**PREP, dataset=data | {"spec": spec | {"compress_ratio": 2.5}})
    assert advised(cheap)["codec"].predicted_gain == pytest.approx(1600 / 980)


def test_a_saturated_client_is_not_blamed_on_storage() -> None:
    doc = build_run(
        rates={"storage_raw": 1500, "fetch": 600},
        measured=590,
        au=0.3,
        host={"cores": 1, "affinity_cores": 1, "effective_cores": 1.0},
        concluded=False,
    )
    hungry = doc.job.ceilings["fetch"].model_copy(
        update={"cpu_s_per_gb": 16.0}
    )  # 0.06 GB/s x 16 = 0.96 of 1 core
    found = conclude(doc.with_job(ceilings=doc.job.ceilings | {"fetch": hungry})).job.verdict
    assert (found.bottleneck, found.storage_bound) == ("cpu", "client")
    assert advised(found)["direct"].settings == ["reader.direct=true"]
    assert advised(found)["cores"].predicted_gain == pytest.approx(2, rel=0.05)
    assert found.gains["cpu"].value == advised(found)["cores"].predicted_gain
    assert "faster-storage" not in advised(found)


def test_a_library_is_not_advised_what_only_iobenchs_reader_has() -> None:
    """Direct IO and reads in flight are refused for libraries, or mean nothing to them."""
    library = {"kind": "webdataset", "direct": False, "workers": 2}
    waiting = judge(
        rates={"storage_raw": 1500, "fetch": 600, "loader": None},
        measured=590,
        au=0.3,
        loader=library,
    )
    assert waiting.advice[0].id == "workers"
    assert waiting.advice[0].settings == ["loader.workers=5"]
    assert "direct" not in advised(waiting)
    warm = build_run(residency=0.5, loader=library)
    (finding,) = [each for each in warm.findings if each.rule == "cache.cold-residency"]
    assert "direct" not in finding.remedy


def test_compression_is_advised_only_where_cores_outrun_storage() -> None:
    spec = {"name": "d", "content": "raw", "codec": "none", "compress_ratio": 2.0}
    found = judge(**SLOW, dataset={"spec": spec})
    assert advised(found)["compress"].predicted_gain == pytest.approx(2.0)
    gains = [each.predicted_gain for each in found.advice]
    assert gains == sorted(gains, reverse=True)
    assert "compress" not in advised(judge(**SLOW))
