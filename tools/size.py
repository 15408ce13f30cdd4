"""``make size``: how large are iobench and its tests, by folder?

Code is what is left of a file without blank lines, comments and docstrings (strings that stand
alone). A function is counted with its body, a nested one also in the one around it.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, TESTS = ROOT / "iobench", ROOT / "tests"

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


@dataclass
class Size:
    """What a folder has. ``longest``: the code of its longest file, and of its longest function."""

    files: int = 0
    code: int = 0
    classes: int = 0
    functions: int = 0
    longest: dict[str, tuple[int, str]] = field(
        default_factory=lambda: {"file": (0, ""), "function": (0, "")}
    )

    def add(self, path: Path) -> None:
        """Count a file."""
        source = path.read_text(encoding="utf-8")
        tree, lines = ast.parse(source), sorted(code_lines(source))
        self.files += 1
        self.code += len(lines)
        self._note("file", len(lines), str(path.relative_to(ROOT)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions += 1
                own = bisect_right(lines, node.end_lineno or 0) - bisect_left(lines, node.lineno)
                self._note("function", own, f"{path.relative_to(ROOT)}:{node.name}")

    def _note(self, what: str, code: int, name: str) -> None:
        self.longest[what] = max(self.longest[what], (code, name))


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that have code.

    Raises SyntaxError, and tokenize.TokenError for a file that ends too early.
    """
    alone = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return found - alone


def sizes(package: Path) -> Iterator[tuple[str, Size]]:
    """Yield the size of each folder of ``package``, then that of the files beside them, and all."""
    every, top = Size(), Size()
    for folder in sorted(path for path in package.iterdir() if path.is_dir()):
        size = Size()
        for path in sorted(folder.rglob("*.py")):
            size.add(path)
            every.add(path)
        if size.files:
            yield folder.name, size
    for path in sorted(package.glob("*.py")):
        top.add(path)
        every.add(path)
    yield "(beside)", top
    yield "all", every


def main() -> int:
    """Print a table of each."""
    for root in (PACKAGE, TESTS):
        print(f"{root.name:12} {'code':>7} {'files':>6} {'classes':>8} {'functions':>10}  longest")
        for name, size in sizes(root):
            (file, where), (function, which) = size.longest["file"], size.longest["function"]
            print(
                f"{name:12} {size.code:7,} {size.files:6,} {size.classes:8,} {size.functions:10,}  "
                f"{where} ({file}), {which.rpartition(':')[2]} ({function})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
