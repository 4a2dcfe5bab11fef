"""Nonsense from a peer is refused by field, value and what was expected; it ends no worker and harms no neighbour."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.frame import LastMessage
from protocol.kv_layout import KvLayout
from protocol.messages_gateway import Assign, RankEndpoint, SamplingParams, WorkerAddress
from protocol.messages_handoff import (
    TO_DECODE,
    TO_PREFILL,
    DataCredit,
    Hello,
    HelloAccepted,
    HelloRefused,
    JobFailed,
    JobFinishedEarly,
    PrefillJob,
)
from scheduler.planning.req import first_tokens_fault, hidden_fault, request_fault
from tests.decode.driving import VOCAB, Phase, drive_to, expect_rest, greedy, make_cluster, prompt_of
from transfer.landing.transfer import Delivered

PARAMS = greedy(9)
PROMPT = tuple(prompt_of("r", 21))

NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"prompt_ids": ()}, "prompt: got no tokens, expected at least 1"),
    ({"prompt_ids": (1, -3, 2)}, "prompt: got token id -3, expected ids in [0, 211)"),
    ({"prompt_ids": (1, 211)}, "prompt: got token id 211, expected ids in [0, 211)"),
    ({"num_choices": 0}, "n: got 0, expected at least 1"),
    ({"num_choices": -1}, "n: got -1, expected at least 1"),
    ({"num_choices": 2**62}, f"n: got {2**62}, this worker runs at most 32 choices"),
    ({"sampling": greedy(0)}, "max_tokens: got 0, expected at least 1"),
    ({"sampling": greedy(-7)}, "max_tokens: got -7, expected at least 1"),
    ({"sampling": greedy(5, top_k=2**63)}, f"top_k: got {2**63}, expected at most {2**63 - 1}"),
]
HUGE = ({"sampling": greedy(2**64 - 1)}, f"the request needs a context of {2**64 + 19} tokens")
NAMES = [str(index) for index in range(len(NONSENSE) + 1)]


@pytest.mark.parametrize("topology", ["1P1D", "1U"])
@pytest.mark.parametrize("changes,says", [*NONSENSE, HUGE], ids=NAMES)
def test_an_assign_that_makes_no_sense(topology: str, changes: dict[str, Any], says: str) -> None:
    cluster = make_cluster(topology)
    cluster.ask("fine", 30, PARAMS, 2)
    drive_to(cluster, "fine", Phase.RUNNING) if topology == "1P1D" else cluster.steps(9)
    prefill = None if topology == "1U" else next(iter(cluster.addresses.values()))
    assign = replace(Assign("bad", 0, PROMPT, PARAMS, 1, prefill), **changes)
    cluster.workers[-1].on_gateway(assign)
    cluster.run()
    assert cluster.failures["bad"].code == "bad_request"
    assert cluster.failures["bad"].message.startswith(says)
    cluster.expect_end(failed=list(cluster.failures))


@pytest.mark.parametrize(
    "changes,says",
    [
        *NONSENSE,
        ({"attempt": -1}, f"attempt: got -1, expected 0 to {2**32 - 1}"),
        ({"attempt": 2**32}, f"attempt: got {2**32}, expected 0 to {2**32 - 1}"),
        ({"reservation": -1}, f"reservation: got -1, expected 0 to {2**64 - 1}"),
    ],
)
def test_a_job_that_makes_no_sense(changes: dict[str, Any], says: str) -> None:
    cluster = make_cluster()
    prefill = cluster.prefill
    cluster.ask("fine", 30, PARAMS, 2)
    drive_to(cluster, "fine", Phase.REQUESTED)
    reservation = changes.get("reservation", 77)
    asked = {name: value for name, value in changes.items() if name != "reservation"}
    prefill.on_peer(200, PrefillJob(replace(Assign("bad", 0, PROMPT, PARAMS, 1, None), **asked), reservation))
    assert prefill.outbox.decode == [(200, JobFailed(reservation, "bad_request", says))]
    prefill.outbox.decode.clear()
    cluster.run()
    cluster.expect_end(failed=list(cluster.failures))


def test_a_job_that_starts_within_a_page_fails_with_one_sentence() -> None:
    cluster = make_cluster(chunk_size=64)  # the next launch has room for another prompt
    prefill = cluster.prefill
    cluster.ask("fine", 30, PARAMS, 2)
    drive_to(cluster, "fine", Phase.REQUESTED)
    size, later = prefill.planner.kv_manager.page_size, 2**62
    prefill.on_peer(200, PrefillJob(Assign("bad", 0, PROMPT, PARAMS, 1, None), later, start=1))
    prefill.turn()
    failed = [message for _, message in prefill.outbox.decode if isinstance(message, JobFailed)]
    begins = f"begins a page of {size} and one of {size} tokens"
    says = f"start: got 1, expected a token that {begins}, and at most {len(PROMPT)}"
    assert failed == [JobFailed(later, "wire_error", says)]
    prefill.outbox.decode.clear()
    cluster.run()
    cluster.expect_end(failed=list(cluster.failures))


def test_the_largest_sensible_numbers_are_served() -> None:
    cluster = make_cluster()
    params = SamplingParams(
        max_tokens=3, temperature=3e38, top_k=2**63 - 1, top_p=-1.0, min_p=7.0, seed=2**64 - 1, min_tokens=-5
    )
    cluster.assign("r", [0, VOCAB - 1], params)
    cluster.run()
    assert not cluster.failures and len(cluster.answers["r", 0].ids) == 3
    expect_rest(cluster)


@pytest.mark.parametrize(
    "tokens,says",
    [
        ((), "prefill sent 0 first tokens, expected 2"),
        ((1, 2, 3), "prefill sent 3 first tokens, expected 2"),
        ((1, -4), "prefill sent the first token -4, expected ids in [0, 211)"),
        ((211, 0), "prefill sent the first token 211, expected ids in [0, 211)"),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_first_tokens_that_make_no_sense(tokens: tuple[int, ...], says: str, early: bool) -> None:
    cluster = make_cluster()
    decode = cluster.decode
    cluster.ask("fine", 30, greedy(40))
    cluster.ask("r", list(PROMPT), PARAMS, 2)
    drive_to(cluster, "r", Phase.REQUESTED)
    request = decode.served.by_key["r", 0]
    if early:
        decode.on_peer(request.prefill.instance, JobFinishedEarly(request.reservation, tokens))
    else:
        decode._on_transfer(request, Delivered(request.reservation, LastMessage(tokens, 0, 0)))
    cluster.run()
    assert (cluster.failures["r"].code, cluster.failures["r"].message) == ("internal_error", says)
    cluster.expect_end(failed=["r"])


def test_a_greeting_under_another_name_is_refused() -> None:
    cluster = make_cluster()
    prefill = cluster.prefill
    hello = Hello(
        WorkerAddress("decode-9", 9, ranks=(RankEndpoint("x"),)), prefill.planner.layout, prefill._peers.fingerprint
    )
    prefill.on_peer(8, hello)
    ((to, refused),) = prefill.outbox.decode
    assert to == 8 and isinstance(refused, HelloRefused) and "got 9, expected 8" in refused.reason
    prefill.outbox.decode.clear()
    prefill.on_peer(8, PrefillJob(Assign("r", 0, PROMPT, PARAMS, 1, None), 1))
    cluster.run()
    assert prefill.planner.num_launches == 0
    expect_rest(cluster)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: TO_PREFILL.decode(TO_PREFILL.encode(DataCredit(1, -1))),
        lambda: TO_DECODE.decode(
            TO_DECODE.encode(HelloAccepted(WorkerAddress("p", 1), -1, KvLayout.uniform(1, 1, 4, 16, "float32")))
        ),
    ],
)
def test_negative_credit_does_not_cross_the_wire(refuse: Callable[[], object]) -> None:
    with pytest.raises(WireError, match="got -1, Input should be greater than or equal to 0"):
        refuse()


def test_what_makes_sense_has_no_fault() -> None:
    assert request_fault((0, 9), PARAMS, 3, vocab_size=10, max_choices=3) is None
    assert first_tokens_fault((0, 9), 2, 10) is None


@pytest.mark.parametrize(
    "hidden,says",
    [
        (np.array([0.5, -3e38, 1e-45], "<f4").tobytes(), None),
        (b"", "prefill sent a hidden state of 0 bytes, expected 12"),
        (bytes(13), "prefill sent a hidden state of 13 bytes, expected 12"),
        (np.array([0, np.nan, -np.inf], "<f4").tobytes(), None),
    ],
)
def test_a_hidden_state_that_no_draft_can_begin_with(hidden: bytes, says: str | None) -> None:
    fault = hidden_fault(hidden, 3)
    assert fault is says is None or (fault is not None and says is not None and fault.startswith(says))


def test_without_a_draft_no_hidden_state_is_expected() -> None:
    assert hidden_fault(b"", 0) is None
    assert hidden_fault(bytes(4), 0) == "prefill sent a hidden state of 4 bytes, expected 0"


@given(st.binary(max_size=24), st.integers(0, 5))
def test_any_bytes_are_a_hidden_state_or_a_fault(hidden: bytes, size: int) -> None:
    if hidden_fault(hidden, size) is None:
        assert len(hidden) == 4 * size
