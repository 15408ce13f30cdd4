"""Names with stars: the same answer as a regular expression gives, in a time that is bounded."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from iobench.settings.wildcards import matches

TEXT = st.text("ab/*", max_size=12)


@given(TEXT, st.text("ab/", max_size=12))
def test_the_answer_is_that_of_a_regular_expression(pattern: str, name: str) -> None:
    expression = "[^/]*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == bool(re.fullmatch(expression, name))


@given(st.lists(st.sampled_from(["a", "b", "ab", "*"]), max_size=7), st.text("ab", max_size=9))
def test_pieces_between_stars_in_their_order(pieces: list[str], name: str) -> None:
    """Patterns with several stars and names without folders, which chance alone seldom makes."""
    pattern = "".join(pieces)
    expression = "[^/]*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == bool(re.fullmatch(expression, name))
