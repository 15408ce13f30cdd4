"""``python -m tests.snapshots``: write what iobench says today; the diff is the review."""

from __future__ import annotations

import sys

from iobench.base.documents import json_text
from iobench.record.published import DOCUMENTS, json_schema
from tests.snapshots.texts import HERE, SNAPSHOTS, texts

for name in SNAPSHOTS:
    file = HERE / name
    now = texts(name)
    if "iobench: internal error" in now:
        sys.exit(f"not written: {file}: {now[now.index('iobench: internal error') :][:300]}")
    changed = not file.exists() or file.read_text(encoding="utf-8") != now
    file.write_text(now, encoding="utf-8")
    print(f"{'written' if changed else 'unchanged'}: {file}")

for name in DOCUMENTS:  # the published schemas follow from the classes, too
    file = HERE.parent.parent / "results" / f"{name}.schema.json"
    file.write_text(json_text(json_schema(name), indent=1) + "\n", encoding="ascii")
    print(f"written: {file}")
