"""``make same`` names what differs between two sets of documents, and nothing else."""

from __future__ import annotations

import json

from tools.same import differences

BEFORE = {
    "report a --format json": json.dumps({"verdict": {"binds": "prep"}, "rates": [1.5, 2.0]}),
    "report a --format text": "Prep binds\n10 samples/s\n",
    "report a --format html": "<style>b</style><p class='x'>10 samples/s</p>",
}


def test_equal_documents_have_no_difference() -> None:
    assert differences(BEFORE, dict(BEFORE)) == {}


def test_a_changed_value_is_named_by_its_key() -> None:
    after = BEFORE | {
        "report a --format json": json.dumps({"verdict": {"binds": "prep"}, "rates": [1.5, 2.5]})
    }
    assert differences(BEFORE, after) == {
        ("rates[]", "2.0 -> 2.5"): ["report a --format json"],
    }


def test_a_key_that_is_gone_and_one_that_is_new_are_named() -> None:
    after = BEFORE | {
        "report a --format json": json.dumps(
            {"verdict": {"bottleneck": "prep"}, "rates": [1.5, 2.0]}
        )
    }
    assert {key for key, _ in differences(BEFORE, after)} == {
        "verdict.binds",
        "verdict.bottleneck",
    }
    assert differences(BEFORE, after, [("binds", "bottleneck")]) != {}  # the text says "binds"
    after["report a --format text"] = "Prep bottleneck\n10 samples/s\n"
    assert differences(BEFORE, after, [("binds", "bottleneck")]) == {}


def test_the_markup_of_a_page_may_change_but_not_its_text() -> None:
    after = BEFORE | {"report a --format html": "<div><b>10 samples/s</b></div>"}
    assert differences(BEFORE, after) == {}
    after["report a --format html"] = "<div><b>11 samples/s</b></div>"
    assert len(differences(BEFORE, after)) == 1
