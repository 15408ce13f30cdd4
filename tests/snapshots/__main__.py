"""``python -m tests.snapshots``: write what iobench says today; the diff is the review."""

from __future__ import annotations

import sys

from tests.snapshots.texts import HERE, SNAPSHOTS, texts

for name in SNAPSHOTS:
    file = HERE / name
    now = texts(name)
    if "iobench: internal error" in now:
        sys.exit(f"not written: {file}: {now[now.index('iobench: internal error') :][:300]}")
    changed = not file.exists() or file.read_text(encoding="utf-8") != now
    file.write_text(now, encoding="utf-8")
    print(f"{'written' if changed else 'unchanged'}: {file}")
