"""The verdict on a run, its exit status, and what a finding tells."""

import json
import shlex

import pytest

from loadtest.verify.findings import MOST_KEPT, Exit, Finding, Result, as_json, curl, parted, seen
from loadtest.verify.judge import DEFECTS, UNCLEAR, Judged, Verdict
from tests.loadtest.verify.answering import choice


def result(*verdicts: Verdict, num_tokens: int = 1000) -> Result:
    made = Result({}, num_tokens=num_tokens, ended="300 requests")
    for verdict in verdicts:
        made.add("load", Judged(verdict))
    return made


@pytest.mark.parametrize("verdict", Verdict)
def test_one_bad_answer_decides(verdict: Verdict) -> None:
    outcome = result(Verdict.EXACT, Verdict.EXACT, verdict)
    expected = Exit.FOUND if verdict in DEFECTS else Exit.CANNOT_JUDGE if verdict in UNCLEAR else Exit.CLEAN
    assert outcome.exit == expected == result(*[Verdict.EXACT] * 2, verdict, *[Verdict.EXACT] * 300).exit
    assert outcome.sentence.startswith(
        {0: "clean: ", 1: f"found: 1 {verdict}", 3: f"cannot judge: 1 {verdict}"}[expected]
    )


def test_a_run_that_judged_nothing_is_not_clean() -> None:
    assert result().exit == result(Verdict.ERROR).exit == Exit.CANNOT_JUDGE
    quiet = result()
    quiet.add("quiet", Judged(Verdict.EXACT))
    assert quiet.exit == Exit.CANNOT_JUDGE and quiet.sentence == "cannot judge: no answer under load was right"


def test_near_ties_and_a_stop_are_doubts() -> None:
    assert result(Verdict.EXACT, *[Verdict.TIED] * 8, num_tokens=100).exit == Exit.CANNOT_JUDGE
    assert result(Verdict.EXACT, *[Verdict.TIED] * 3, num_tokens=100).exit == Exit.CLEAN
    outcome = result(Verdict.EXACT)
    outcome.stopped = "its TTFT went up"
    assert outcome.exit == Exit.CANNOT_JUDGE and outcome.sentence == "cannot judge: its TTFT went up"


def test_the_rate_that_a_run_could_see() -> None:
    assert seen(187) == "a fault that hits 1.59% of the answers would be missed once in 20 runs"


def test_findings_are_bounded_and_counted() -> None:
    outcome = result()
    for _ in range(MOST_KEPT + 5):
        outcome.add("load", Judged(Verdict.WRONG), Finding(Verdict.WRONG, "load", "x"))
    assert len(outcome.findings) == MOST_KEPT and outcome.sentence == "found: 55 wrong"
    told = json.loads(json.dumps(as_json(outcome, {})))
    assert told["exit"] == 1 and told["verdicts"] == {"load": {"wrong": 55}} and len(told["findings"]) == MOST_KEPT


def test_texts_begin_a_little_before_they_part() -> None:
    got, known = parted(choice(range(5, 25)), choice(range(5, 17)), 10)
    assert "tokens from 2: 7 8 9" in got and got.endswith("; length") and "tokens from 2: 7 8" in known
    assert parted(choice([5]), None, None) == ("'5'; tokens from 0: 5; length", "")


def test_a_command_sends_the_request_again_without_its_key() -> None:
    words = shlex.split(curl("http://h:1/p", b'{"prompt": "it\'s"}', has_key=True))
    assert words[:3] == ["curl", "-s", "http://h:1/p/v1/completions"] and words[-1] == '{"prompt": "it\'s"}'
    assert "Authorization: Bearer $OPENAI_API_KEY" in words
