"""A gateway's Control on a virtual clock, whose unified workers say what a test makes them say."""

from collections.abc import Callable
from typing import cast

from gateway.routing.control import Control
from gateway.routing.control_socket import ControlSocket
from gateway.routing.members import WorkerKey
from gateway.routing.membership import Membership
from gateway.routing.retries import RetryRules
from gateway.words.prompt import Prompt
from protocol.logprobs import PromptLogprobsAsked
from protocol.messages_gateway import (
    Assign,
    CancelRequest,
    ChoiceTokens,
    Preempted,
    Role,
    SamplingParams,
    ToGateway,
    Tokens,
    ToWorker,
)
from tests.doubles.clock import VirtualClock
from tests.gateway.client import Client
from tests.gateway.worker_ends import WorkerEnds, register

PROMPT = (1, 2, 3)


class ControlBench:
    """`sent`: what the gateway has told which worker. Workers in `cut` cannot be reached any more; with
    `is_full`, because they do not take what was sent before."""

    def __init__(self, *worker_ids: str, max_attempts: int = 3, max_tokens: int = 8, margin: int = 0) -> None:
        self.clock = VirtualClock()
        self.sent: list[tuple[str, ToWorker]] = []
        self.cut: set[str] = set()
        self.is_full = False
        self.sampling = SamplingParams(max_tokens)
        self.margin = margin
        self._ends = WorkerEnds()
        rules = RetryRules(max_attempts, 4.0)
        self.control = Control(cast(ControlSocket, self), self.clock, "least_loaded", rules, Membership(7))
        self.dispatch = self.control.dispatch
        for worker_id in worker_ids:
            self.join(worker_id)

    # ---- the socket ----

    def start(self, on_message: Callable[[bytes, bytes], None]) -> None:
        """Nothing comes by itself."""

    def send(self, identity: bytes, raw: bytes) -> bool:
        worker_id = WorkerKey.of(identity).worker_id
        if worker_id in self.cut:
            return False
        if (message := self._ends.hear(identity, raw)) is not None:
            self.sent.append((worker_id, message))
        return True

    def close(self) -> None:
        """Nothing to close."""

    # ---- workers ----

    def join(self, worker_id: str, role: Role = Role.UNIFIED) -> None:
        backend = "" if role is Role.UNIFIED else "zmq"
        self.say(worker_id, register(worker_id, 1, role, backend=backend, margin=self.margin))

    def lose(self, worker_id: str) -> None:
        """Its connection is gone, and the gateway notices."""
        self.cut.add(worker_id)
        self.control.look()

    def say(self, who: str | bytes, message: ToGateway | bytes) -> None:
        """`who`: the id of a worker, or the routing id of whoever it is."""
        identity = who if isinstance(who, bytes) else WorkerKey(who, 1).identity
        self.control._on_raw(identity, self._ends.say(identity, message))

    def tokens(
        self, assign: Assign, choice: int, seq: int, *ids: int, by: str = "u0", finish: str = "", cached: int = 0
    ) -> None:
        """A worker has drawn tokens of one choice."""
        news = ChoiceTokens(assign.request_id, assign.attempt, choice, seq, ids, finish)
        self.say(by, Tokens((news,), {}, {assign.request_id: cached} if cached else {}))

    def preempt(self, assign: Assign, choice: int = 0, by: str = "u0") -> None:
        """A worker has no memory for a choice any more."""
        self.say(by, Preempted(assign.request_id, assign.attempt, choice))

    # ---- requests ----

    def ask(
        self, name: str = "r", n: int = 1, priority: int = 0, prompt_logprobs: PromptLogprobsAsked | None = None
    ) -> tuple[Client, Assign]:
        """A client asks, and a worker gets the request."""
        client = Client(n)
        prompt = Prompt(PROMPT, self.sampling, n, priority=priority, prompt_logprobs=prompt_logprobs)
        self.dispatch.assign(name, prompt, client)
        return client, self.assigns[-1]

    @property
    def assigns(self) -> list[Assign]:
        return [message for _, message in self.sent if isinstance(message, Assign)]

    @property
    def cancels(self) -> list[CancelRequest]:
        return [message for _, message in self.sent if isinstance(message, CancelRequest)]

    def expect_end(self, client: Client, *tokens: list[int]) -> None:
        """The client has these tokens of its choices, all of which have ended, and nothing is left."""
        assert client.tokens == [*tokens] and client.error is None and None not in client.finish
        self.expect_rest()

    def expect_rest(self) -> None:
        """Nothing is in flight, and no worker has a load."""
        assert len(self.dispatch.requests) == self.dispatch.requests.num_choices == 0
        assert self.dispatch.loads == {} and len(self.dispatch._unpaired) == 0
