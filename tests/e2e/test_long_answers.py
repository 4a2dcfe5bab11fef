"""Large answers to small bodies from real processes: refused, or sent while a neighbour's stream goes on."""

import json
import socket
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from bench.gateway.lone_gateway import peak_memory_mb
from tests.e2e.baton_process import PATIENCE_S, BatonProcess

pytestmark = pytest.mark.slow

PROMPT = [30 + place % 990 for place in range(1900)]
SCORED: dict[str, Any] = {"prompt": PROMPT, "prompt_logprobs": 20, "max_tokens": 1, "temperature": 0}
NEIGHBOUR: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True}


@pytest.fixture(scope="module")
def baton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    log: Path = tmp_path_factory.mktemp("logs") / "baton"
    with BatonProcess(*"serve --port 0 --unified 1 --dtype float32".split(), log=log) as process:
        yield process


def gateway_of(baton: BatonProcess) -> psutil.Process:
    [gateway] = (each for each in baton.children() if "gateway" in each.cmdline())
    return gateway


def test_an_answer_of_millions_of_log_probabilities_is_refused(baton: BatonProcess) -> None:
    response = baton.http.post("/v1/completions", json={**SCORED, "n": 64})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "prompt_logprobs")
    assert "would tell 2553600 log-probabilities of prompts, expected at most 1000000" in error["message"]


def test_a_neighbours_stream_goes_on_while_a_large_answer_is_unread_and_while_it_is_read(baton: BatonProcess) -> None:
    gateway = gateway_of(baton)
    neighbour = baton.stream(**NEIGHBOUR)
    assert next(neighbour)["choices"]
    before_mb = peak_memory_mb(gateway.pid)

    where = urlsplit(baton.url)
    raw = json.dumps({**SCORED, "n": 25}).encode()
    head = "POST /v1/completions HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    with socket.create_connection((where.hostname, where.port), PATIENCE_S) as client:
        client.sendall(head.format(len(raw)).encode() + raw)
        parts = [client.recv(1)]
        assert len(list(islice(neighbour, 50))) == 50, "while all of it but a byte is unread"
        while part := client.recv(1 << 20):
            parts.append(part)
            if len(parts) % 50 == 0:
                assert next(neighbour)["choices"]
    grown_mb = peak_memory_mb(gateway.pid) - before_mb
    neighbour.close()

    _, _, body = b"".join(parts).partition(b"\r\n\r\n")
    choices = json.loads(body)["choices"]
    first = choices[0]["prompt_logprobs"]
    assert len(choices) == 25 and len(first) == len(PROMPT) and first[0] is None and len(first[1]) >= 20
    assert all(each["prompt_logprobs"] == first for each in choices)
    assert grown_mb < len(body) / 2**20 / 2, "the gateway never holds the whole answer"
    assert baton.wait_for_rest()
