"""Requests made up from /openapi.json, valid and not: whatever comes, the answer is one that the page declares.

What the page allows is served, and what it forbids is refused, but for the rules that no schema can tell.
2,000 in the exhaustive run, a share of them else. After every 50 a request whose answer is known; at the end nothing
is held, left or grown.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("schemathesis", reason="the package `schemathesis` is not installed")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from jsonschema_rs import Draft202012Validator
from requests import PreparedRequest
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.baton_process import BatonProcess
from tests.gateway.untold import UNTOLD

pytestmark = pytest.mark.broad
FLAGS = "--port 0 --max-total-tokens 8192 --dtype float32 --context-length 64"
KNOWN: dict[str, Any] = {"prompt": [70, 300, 22], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
NUM_STATUS = 15  # for each of the routes that generate nothing; fewer where there is nothing to make up
EVERY = 50
MAX_GROWTH = 48 * 2**20  # bytes of one process, from the middle to the end
FOREIGN: tuple[Any, ...] = ("a text", -7, 0.5, [[]], {"a": 1}, True)  # most fields take hardly one of them


def has_whole_float(value: Any) -> bool:
    """Whether a number such as 1.0 is in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(has_whole_float(each) for each in inner) or (isinstance(value, float) and value.is_integer())


def without_whole_floats(value: Any) -> Any:
    """The same with 1 in the place of 1.0."""
    if isinstance(value, dict):
        return {key: without_whole_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_whole_floats(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def spoiled(allowed: Case[Any], field: str, value: Any) -> Case[Any]:
    """A body that the page allows, but for one field."""
    allowed.body = {**without_whole_floats(allowed.body), field: value}
    return allowed


class Sender:
    """Sends cases and checks what comes back."""

    def __init__(self, server: BatonProcess, document: dict[str, Any]) -> None:
        self.server = server
        self._document = document
        self.num_compared = {True: 0, False: 0}  # bodies that the page allows, and those that it forbids
        self.num_sent = 0
        self.statuses: dict[int, int] = {}
        self._expected = server.tokens(**KNOWN)

    def run(self, operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, number: int) -> None:
        """`number` requests of one kind."""
        self._send_all(operation.as_strategy(generation_mode=mode), number)

    def run_spoiled(self, operation: APIOperation[Any, Any, Any, Any], number: int) -> None:
        """`number` bodies with one wrong field. What schemathesis calls invalid is often no body that can be compared:
        no JSON, or allowed beside a wrong header."""
        schema = self._schema(operation.path)
        while "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        fields = st.sampled_from(sorted(schema["properties"]))
        allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
        self._send_all(st.builds(spoiled, allowed, fields, st.sampled_from(FOREIGN)), number)

    def _schema(self, path: str) -> dict[str, Any]:
        schema: dict[str, Any] = self._document["paths"][path]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        return schema

    def _send_all(self, cases: SearchStrategy[Case[Any]], number: int) -> None:

        @settings(
            max_examples=number,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def send(case: Case[Any]) -> None:
            self.send(case)

        send()

    def send(self, case: Case[Any]) -> None:
        """One request."""
        response = case.call(base_url=self.server.url)
        status = response.status_code
        assert status < 500 or status == 503, (status, response.text)
        case.validate_response(response, checks=CHECKS)
        self._compare(case.operation.path, response.request, status, response.text)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.num_sent += 1
        if self.num_sent % EVERY == 0:
            self.know()

    def _compare(self, path: str, sent: PreparedRequest, status: int, text: str) -> None:
        """Whether the page and the server agree about a body. Only where nothing else is wrong, such as a header."""
        content = self._document["paths"][path].get("post", {}).get("requestBody", {}).get("content")
        is_json = sent.headers.get("content-type") == "application/json" and sent.method == "POST"
        if not content or not is_json or not isinstance(sent.body, str | bytes) or "x-baton-timeline" in text:
            return

        schema = {**self._schema(path), "components": self._document["components"]}
        try:
            body = json.loads(sent.body)
        except ValueError:  # some are no JSON
            assert status != 200, sent.body
            return

        if has_whole_float(body):
            return  # to a schema, 1.0 is an integer

        is_allowed = Draft202012Validator(schema).is_valid(body)
        self.num_compared[is_allowed] += 1
        if is_allowed:
            assert status == 200 or UNTOLD.search(text), (body, text)
        else:
            assert status != 200, body

    def know(self) -> None:
        """The known answer is still the same."""
        assert self.server.tokens(**KNOWN) == self._expected


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    """The bundled model on a pair, with a context so short that no answer takes long."""
    log: Path = tmp_path_factory.mktemp("made_up") / "log"
    with BatonProcess("serve", *FLAGS.split(), log=log) as baton:
        yield baton


@pytest.mark.parametrize("number", [25, pytest.param(500, marks=pytest.mark.full)], ids=["share", "all"])
def test_made_up_requests(server: BatonProcess, number: int) -> None:
    """`number` for each route that generates, valid and not."""
    load_all_checks()
    document = server.get("/openapi.json")
    page = schemathesis.openapi.from_dict(document)
    sender = Sender(server, document)
    middle: dict[Any, int] = {}
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            sender.run(page[path]["POST"], mode, number)
            if mode is GenerationMode.NEGATIVE:
                sender.run_spoiled(page[path]["POST"], number // 2)
        middle = middle or {process: process.memory_info().rss for process in server.children()}
    for path, method in (
        ("/v1/models/{name}", "GET"),
        ("/v1/models", "GET"),
        ("/health", "GET"),
        ("/health_generate", "GET"),
        ("/abort_request", "POST"),
        ("/workers", "GET"),
        ("/metrics", "GET"),
        ("/server_info", "GET"),
        ("/model_info", "GET"),
        ("/version", "GET"),
        ("/flush_cache", "POST"),
        ("/reset_prefix_cache", "POST"),
    ):
        sender.run(page[path][method], GenerationMode.POSITIVE, NUM_STATUS)
    sender.know()
    assert sender.num_sent >= 6 * number and {200, 400, 404} <= sender.statuses.keys(), sender.statuses
    assert min(sender.num_compared.values()) >= number // 4, sender.num_compared
    assert server.wait_for_rest()
    grown = {process.pid: process.memory_info().rss - rss for process, rss in middle.items()}
    assert max(grown.values()) < MAX_GROWTH, grown
    assert "Traceback" not in server.log_text() and "fault" not in server.log_text(), server.log_text()[-2000:]
