"""A client leaves at every moment of its request's life: soon nothing of it is left anywhere.

The process in which the phase begins is held until the client has gone.
"""

import json
import socket
from urllib.parse import urlsplit

import pytest

from runtime.clock import MonotonicClock
from tests.faults.client import Client
from tests.faults.conftest import Lender
from tests.faults.deployment import CONTEXT, RUNNER
from tests.faults.grid import LIMIT_S, PHASES, stretched

PROMPT_LEN = 301
ENDLESS = CONTEXT - PROMPT_LEN  # tokens: they would take minutes


def send_request(url: str, prompt: list[int], max_tokens: int, n: int, stream: bool) -> socket.socket:
    """A request whose answer nobody reads."""
    address = urlsplit(url)
    assert address.hostname and address.port
    connection = socket.create_connection((address.hostname, address.port))
    wanted = {"prompt": prompt, "max_tokens": max_tokens, "n": n, "stream": stream, "temperature": 0}
    body = json.dumps({**wanted, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    return connection


@pytest.mark.parametrize(
    "n,stream",
    [
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(1, False, marks=pytest.mark.faults),
        pytest.param(3, True, marks=pytest.mark.faults),
    ],
)
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_leaves(phase: str, n: int, stream: bool, lender: Lender) -> None:
    deployment = lender.borrow("")
    baton, clock = deployment.baton, MonotonicClock()
    company = Client(baton.url, [5, 5, 9], 60).start()
    assert company.has_begun()
    marker = [2, 7, 1, 8]
    deployment.arm(phase, marker, "decode", 0)
    prompt = [*marker, *range(PROMPT_LEN - len(marker))]
    connection = send_request(baton.url, prompt, 20 if phase == "finishing" else ENDLESS, n, stream)
    deployment.proof(phase)
    connection.close()
    left_at = clock.now()
    deployment.let_go()
    assert company.has_ended() and company.verdict(RUNNER.expected_tokens) == "exact"
    assert baton.wait_for_rest()
    took = clock.now() - left_at
    assert took <= stretched(LIMIT_S), f"at rest {took:.1f} s after the client left"
    assert baton.tokens(prompt, max_tokens=9, temperature=0) == RUNNER.expected_tokens(prompt, 9)
    deployment.expect_recovery()
    lender.give_back()
