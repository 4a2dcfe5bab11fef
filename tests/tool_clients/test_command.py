"""The table of `python -m tests.tool_clients`, what makes it fail, and a client through the gateway that it serves."""

import httpx

from tests.tool_clients.__main__ import report, scripted_server, verdict
from tests.tool_clients.outcomes import FAILED, PASSED, SKIPPED, Case, of_lines
from tests.tool_clients.suites import Suite

SUITE = Suite(("npm:ai",), lambda *_: (), of_lines, {"image": "images are refused"})
GOOD = [Case("text", PASSED), Case("image", FAILED, "HTTP 400"), Case("pdf", SKIPPED, "not asked for")]


def test_a_case_that_fails_by_choice_is_no_failure_and_has_its_reason() -> None:
    assert verdict(SUITE, GOOD) == []
    assert report("AI SDK", {"npm:ai": "7.0"}, SUITE, GOOD) == [
        "| AI SDK | ai 7.0 | 3 | 1 | 1 | 1 |",
        "  failed image: images are refused",
        "  skipped pdf: not asked for",
    ]


def test_another_failure_and_a_known_one_that_passes_are_told() -> None:
    cases = [Case("text", FAILED, "empty"), Case("image", PASSED)]
    assert verdict(SUITE, cases) == ["text: empty", "image: expected to fail, because images are refused"]


async def test_the_scripted_model_calls_through_the_gateway_also_where_a_grammar_forces_it() -> None:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}],
    }
    async with scripted_server() as (server, model), httpx.AsyncClient(timeout=300) as client:
        free, forced = [
            (await client.post(server.url + "/chat/completions", json=body | fields)).json()["choices"][0]
            for fields in ({}, {"tool_choice": "required"})
        ]
    assert (free["finish_reason"], forced["finish_reason"]) == ("stop", "tool_calls")
    assert [call["function"]["name"] for call in forced["message"]["tool_calls"]] == ["look_up"]
    assert model.unfit == []
