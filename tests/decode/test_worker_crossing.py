"""A cancel that meets another message on its way: whatever crosses it, nothing stays owned and the others are exact.

Every message between workers, and to the gateway, is under way for some turns. The test waits until one of the kind
that it names is, and cancels then.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from model.inputs import ModelInput
from protocol.messages_gateway import FirstToken, RequestFailed, Tokens
from protocol.messages_handoff import (
    CancelJob,
    Hello,
    HelloAccepted,
    JobCredit,
    JobFailed,
    JobFinishedEarly,
    KvDelivered,
    PrefillJob,
)
from tests.cluster import Worker
from tests.decode.driving import VOCAB, Driven, greedy, prompt_of
from tests.doubles.hash_model import FakeRunner

DELAY = 3  # turns
PARAMS = greedy(12)
VICTIM = prompt_of("victim", 42)  # whole chunks: nobody else computes in a launch of its own
POISON = VOCAB - 1  # of a token that only the prompt that shall fail has


class LateMail(Driven):
    """Messages arrive DELAY turns after they were sent, in order."""

    def __init__(self, runner: FakeRunner, topology: str) -> None:
        super().__init__(runner, topology, page_size=4, chunk_size=7, num_pages=256)
        self.mail: deque[tuple[int, Any, Callable[[], None]]] = deque()  # due, message, how to deliver it
        self.num_turns = 0
        self.named: dict[int, str] = {}  # requests by their reservation

    def turn(self) -> bool:
        """Delivers what is due, then every worker's turn."""
        self.num_turns += 1
        while self.mail and self.mail[0][0] <= self.num_turns:
            self.mail.popleft()[2]()
        return super().turn() or bool(self.mail)

    def at_rest(self) -> bool:
        """Nothing is under way either."""
        return not self.mail and super().at_rest()

    def under_way(self, kind: type, name: str) -> bool:
        """Whether a message of this kind is under way, of the request `name` if it is of a request."""
        for _, message, _ in self.mail:
            if isinstance(message, kind):
                pieces = getattr(message, "choices", None)
                named = {piece.request_id for piece in pieces or ()}
                of = self.named.get(getattr(message, "reservation", 0), getattr(message, "request_id", name))
                if name in (named or {of}):
                    return True
        return False

    def _deliver(self, worker: Worker) -> None:
        box, due = worker.outbox, self.num_turns + DELAY
        for to_gateway in box.gateway:
            self.mail.append((due, to_gateway, partial(self._on_gateway, to_gateway)))
        for address, to_prefill in box.prefill:
            prefill, sender = self.prefills[address.instance], self._instance_of(worker)
            if isinstance(to_prefill, PrefillJob):
                self.named[to_prefill.reservation] = to_prefill.assign.request_id
            self.mail.append((due, to_prefill, partial(prefill.on_peer, sender, to_prefill)))
        for instance, to_decode in box.decode:
            decode, sender = self.decodes[instance], self._instance_of(worker)
            self.mail.append((due, to_decode, partial(decode.on_peer, sender, to_decode)))
        box.gateway.clear()
        box.prefill.clear()
        box.decode.clear()


def raise_on_poison(inp: ModelInput) -> None:
    if bool((inp.input_ids_T[: sum(inp.extend_lens)] == POISON).any()):
        raise RuntimeError("broken kernel")


def victim_for(kind: type) -> tuple[list[int], int]:
    """The prompt, and how many tokens, of a request in whose life there is a message of this kind."""
    prompt = [token % POISON for token in VICTIM]
    if kind in (JobFailed, RequestFailed):
        return [*prompt[:-1], POISON], 12
    return prompt, (1 if kind is JobFinishedEarly else 12)


KINDS = [
    Hello,
    HelloAccepted,
    PrefillJob,
    CancelJob,
    JobCredit,
    JobFailed,
    JobFinishedEarly,
    KvDelivered,
    FirstToken,
    Tokens,
    RequestFailed,
]


@pytest.mark.parametrize("choice", [-1, 0, *(pytest.param(c, marks=pytest.mark.slow) for c in (1, 2))])
@pytest.mark.parametrize(
    "topology,kind",
    [*(("1P1D", kind) for kind in KINDS), ("1U", Tokens), ("1U", RequestFailed)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_cancel_meets(topology: str, kind: type, choice: int) -> None:
    runner = FakeRunner(vocab_size=VOCAB, context_length=256, before_forward=raise_on_poison)
    cluster = LateMail(runner, topology)
    company = [token % POISON for token in prompt_of("company", 30)]
    prompt, max_tokens = victim_for(kind)
    cluster.ask("victim", prompt, greedy(max_tokens), 3)
    if kind is CancelJob:  # it is the first cancel's own
        cluster.run(lambda: cluster.under_way(PrefillJob, "victim"))
        cluster.cancel("victim")
    cluster.ask("company", company, PARAMS, 2)
    cluster.run(lambda: cluster.under_way(kind, "victim"))
    assert cluster.under_way(kind, "victim")

    cluster.cancel("victim", choice)
    cluster.cancel("victim", choice)
    cluster.run()
    cluster.cancel("victim", choice)  # of what is over
    cluster.run()

    failed = {"victim"} & set(cluster.failures)
    assert bool(failed) == (kind is RequestFailed or (kind is JobFailed and choice != -1))
    cancelled = {choice} if choice >= 0 and kind is not CancelJob else {0, 1, 2}
    # The end may have been under way already.
    cut = [("victim", each) for each in cancelled if not cluster.answers["victim", each].finish]
    cluster.ask("next", company[:20], PARAMS)
    cluster.run()
    cluster.expect_end(*cut, failed=failed)
