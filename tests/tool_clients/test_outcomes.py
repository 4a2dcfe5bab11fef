"""What each kind of suite prints is read: its cases, how they went, and why."""

import json

import pytest

from tests.tool_clients.outcomes import FAILED, PASSED, SKIPPED, Case, of_comply, of_lines, of_provider_check, of_pytest

LINES = """a warning of a client
{"name": "create", "outcome": "passed", "reason": ""}
{"name": "stream", "outcome": "failed", "reason": "AssertionError:\\n  1 != 2"}
"""
JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="suite.TestOne" name="test_a"/>
<testcase classname="suite.TestOne" name="test_b[x]"><failure message="assert 1&#10;== 2">trace</failure></testcase>
<testcase classname="suite.TestOne" name="test_c"><error message="no fixture"/></testcase>
<testcase classname="suite.TestOne" name="test_d"><skipped message="no images"/></testcase>
<testcase classname="suite.TestOne" name="test_e"><system-out>told</system-out></testcase>
</testsuite></testsuites>"""
COMPLY = {
    "results": [
        {"id": "basic", "status": "passed"},
        {"id": "image", "status": "failed", "errors": ["HTTP 400", "no id"]},
        {"id": "thoughts", "status": "skipped", "errors": ["another model"]},
    ]
}
CHECKS = {
    "checks": [
        {"id": "a", "status": "pass", "assertion": "it answers", "measured": {}},
        {"id": "b", "status": "fail", "assertion": "it ends", "measured": {"reason": None}},
        {"id": "c", "status": "warn", "assertion": "it calls", "measured": {"reason": "one call"}},
        {"id": "d", "status": "skip", "assertion": "it lists", "measured": {"reason": "no list"}},
    ]
}


def test_lines_of_our_own_programs() -> None:
    assert of_lines(LINES) == [Case("create", PASSED), Case("stream", FAILED, "AssertionError: 1 != 2")]


def test_the_report_of_pytest() -> None:
    assert of_pytest(JUNIT) == [
        Case("TestOne::test_a", PASSED),
        Case("TestOne::test_b[x]", FAILED, "assert 1 == 2"),
        Case("TestOne::test_c", FAILED, "no fixture"),
        Case("TestOne::test_d", SKIPPED, "no images"),
        Case("TestOne::test_e", PASSED),
    ]


def test_the_json_of_llm_comply() -> None:
    assert of_comply(json.dumps(COMPLY)) == [
        Case("basic", PASSED),
        Case("image", FAILED, "HTTP 400; no id"),
        Case("thoughts", SKIPPED, "another model"),
    ]


def test_the_json_of_provider_check_where_a_warning_is_a_failure() -> None:
    assert of_provider_check(json.dumps(CHECKS)) == [
        Case("a", PASSED),
        Case("b", FAILED, "it ends"),
        Case("c", FAILED, "one call"),
        Case("d", SKIPPED, "no list"),
    ]


def test_an_outcome_that_no_suite_is_known_to_tell_raises() -> None:
    with pytest.raises(ValueError, match="create: unknown outcome perhaps"):
        of_lines('{"name": "create", "outcome": "perhaps", "reason": ""}')
