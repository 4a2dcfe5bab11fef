"""No byte of an answer changes unless somebody means it to: `python -m tests.gateway.golden` keeps what is answered."""

import json
import re
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from tests.gateway.bad_input.case import post
from tests.gateway.golden import exchange
from tests.gateway.golden.asks import FLEETS, all_asks
from tests.gateway.golden.exchange import answers_of, fleet, kept
from tests.gateway.untold import UNTOLD

# Faults of bytes, before they are looked at as JSON; a misspelt name, of which no schema tells.
NOT_COMPARED = re.compile(
    r"not valid JSON|appears twice|nested deeper|strings, expected|opening brackets|8388608|unknown field"
)
WHOLE_FLOAT = re.compile(rb"\d(\.0\b|e\d)")


@pytest.mark.parametrize("name", FLEETS)
async def test_each_request_is_answered_as_before(name: str) -> None:
    before = exchange.read()
    found = await answers_of(name)
    changed = [ask for ask, answer in found.items() if answer != before.get(ask)]
    assert not changed, "\n".join(f"{ask}\nbefore {before.get(ask)}\nnow    {found[ask]}" for ask in changed[:3])


def test_the_file_has_an_answer_to_each_request_and_no_other() -> None:
    assert list(exchange.read()) == [ask.name for name in FLEETS for ask in all_asks() if ask.fleet == name]


def schema_of(operation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    return found


async def test_schemas_allow_what_was_served_and_forbid_what_was_refused() -> None:
    """But for the rules that no schema can tell. The schemas are those of the fleet that has answered."""
    async with fleet("one") as serving:
        document = (await serving.setting.client.get("/openapi.json")).json()
    kinds = {path: found["post"] for path, found in document["paths"].items() if "requestBody" in found.get("post", {})}
    validators = {
        path: Draft202012Validator({**schema_of(found), "components": document["components"]})
        for path, found in kinds.items()
    }
    answers, counts = exchange.read(), {True: 0, False: 0}
    for ask in all_asks():
        told, body = answers[ask.name].get("body", ""), b"".join(ask.parts[1:])
        path = next((each for each in kinds if ask.parts == post(each, body)), None)
        if path is None or ask.fleet != "one" or WHOLE_FLOAT.search(body) or NOT_COMPARED.search(told):
            continue
        is_allowed, is_served = validators[path].is_valid(json.loads(body)), " 200 " in answers[ask.name]["status"]
        counts[is_served] += 1
        assert is_allowed if is_served else (not is_allowed or UNTOLD.search(told)), (ask.name, told)
    assert min(counts.values()) > 150, counts


def test_what_varies_is_left_out_and_nothing_else() -> None:
    body = b'{"id":"cmpl-' + b"0af3" * 8 + b'","created":17,"at_ms":1.5,"text":"cmpl-12 at_ms"}'
    raw = b"HTTP/1.1 200 OK\r\ndate: now\r\nserver: x\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    assert kept(b"HTTP/1.1 100 Continue\r\n\r\n" + raw % (len(body), body)) == {
        "status": "HTTP/1.1 200 OK",
        "headers": {"server": "x"},
        "body": '{"id":"cmpl-ID","created":0,"at_ms":0,"text":"cmpl-12 at_ms"}',
    }
    assert kept(b"") == {}
