"""The tables of docs/testing.md: the files that take longest first, the short ones in one row."""

from __future__ import annotations

from pathlib import Path

from tools.durations import by_file, table

CASES = (
    ("tests.unit.test_a", "test_one", 0.75),
    ("tests.unit.test_a.TestClass", "test_two", 0.5),
    ("tests.e2e.test_b", "test_one", 3.0),
    ("tests.e2e.test_c", "test_one[x]", 0.25),
)


def test_each_file_with_its_tests(tmp_path: Path) -> None:
    report = tmp_path / "fast.xml"
    cases = "".join(
        f'<testcase classname="{where}" name="{name}" time="{seconds}"/>'
        for where, name, seconds in CASES
    )
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert table("fast", by_file(report))[4:-1] == [
        "| `tests/e2e/test_b.py` | 1 | 3.0 |",
        "| `tests/unit/test_a.py` | 2 | 1.2 |",
        "| 1 file of less than 1 s | 1 | 0.2 |",
        "| all | 4 | 4.5 |",
    ]
