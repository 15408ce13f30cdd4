"""A record passes through few files on its way through ``conclude``, as iobench/README.md says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from iobench.judge.judged import Judged
from iobench.judge.rebuild import conclude
from iobench.record.run import RunRecord, load_training

ROOT = Path(__file__).resolve().parents[2]
MOST = 15


def test_a_record_passes_through_few_files() -> None:
    doc = load_training(ROOT / "results/reference/storage-bound")
    seen: set[str] = set()

    def enter(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and "/iobench/" in code.co_filename:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(isinstance(frame.f_locals.get(name), RunRecord | Judged) for name in names):
                seen.add(code.co_filename.rpartition("/iobench/")[2])

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        conclude(doc)
    finally:
        sys.setprofile(before)
    assert "judge/rebuild.py" in seen
    assert len(seen) <= MOST, sorted(seen)
