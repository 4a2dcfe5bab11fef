"""Checks the answer of one request as it arrives: each token is right, once and in order, and none follows the end."""

from dataclasses import dataclass, field

from gateway.routing.control import Control
from gateway.routing.requests import Delivery, RequestRecord
from protocol.errors import BatonError
from protocol.logprobs import PromptLogprobsAsked
from protocol.messages_gateway import FinishReason
from tests.explore.expected import check_logprobs, check_prompt_logprobs, expected
from tests.explore_handoff.agenda import Agenda
from tests.explore_handoff.scenario import Arrival
from tests.explore_handoff.story import Story


@dataclass
class Client:
    """A client has an end when every choice is finished or given up, when it got an error, or has left."""

    arrival: Arrival
    agenda: Agenda
    story: Story
    tokens: list[list[int]] = field(default_factory=list)
    finish: list[FinishReason | None] = field(default_factory=list)
    given_up: set[int] = field(default_factory=set)
    error: str = ""  # the code
    has_left: bool = False
    control: Control | None = None  # which has taken its request
    record: RequestRecord | None = None  # of its request

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.arrival.num_choices)]
        self.finish = [None] * self.arrival.num_choices

    @property
    def is_done(self) -> bool:
        """Whether it waits for nothing."""
        wanted = [finish for choice, finish in enumerate(self.finish) if choice not in self.given_up]
        return bool(self.error) or self.has_left or all(wanted)

    @property
    def outcome(self) -> str:
        """One word."""
        return self.error or ("left" if self.has_left or self.given_up else "done")

    def on_tokens(self, delivery: Delivery) -> None:
        """See gateway.routing.requests.Listener."""
        name, choice = self.arrival.name, delivery.choice
        self._tell(f"gets {list(delivery.token_ids)} {delivery.finish or ''} of choice {choice}")
        assert not self.error and not self.has_left, f"{name} gets tokens after its end"
        assert choice not in self.given_up and self.finish[choice] is None, f"{name}/{choice} gets tokens after its end"
        right, reason = expected(self.arrival.prompt, self.arrival.params, choice)
        got = self.tokens[choice]
        got += delivery.token_ids
        assert tuple(got) == right[: len(got)], f"wrong token: {name}/{choice} got {got}, expected {list(right)}"
        start = len(got) - len(delivery.token_ids)
        scores = dict(enumerate(delivery.logprobs, start))
        check_logprobs(scores, self.arrival.prompt, self.arrival.params, choice, got, start)
        if self.arrival.prompt_logprobs is not None:
            self._check_prompt(self.arrival.prompt_logprobs)
        if delivery.finish is not None:
            assert (len(got), delivery.finish) == (len(right), reason), f"{name}/{choice} ends too early or late: {got}"
            self.finish[choice] = delivery.finish

    def _check_prompt(self, asked: PromptLogprobsAsked) -> None:
        """Its prompt's log-probabilities are there before the first token."""
        assert self.record is not None and self.record.prompt_part is not None
        scores = [each for each in self.record.prompt_part.tokens(asked.num_top) if each is not None]
        check_prompt_logprobs(scores, self.arrival.prompt, asked, is_whole=True)

    def on_failed(self, error: BatonError) -> None:
        """See gateway.routing.requests.Listener."""
        assert not self.is_done, f"{self.arrival.name} fails after its end"
        self.fail(error)

    def fail(self, error: BatonError) -> None:
        """It gets an error."""
        self.error = error.code
        self._tell(f"fails: {error.code}: {error.message}")

    def gateway_is_gone(self) -> None:
        """Its connection ends."""
        self.error = "gateway_gone"
        self._tell("sees its connection end")

    def leave(self, choice: int) -> None:
        """Its user wants no more, of one choice or (-1) at all."""
        if self.control is None or self.is_done:
            return
        self.story.fault(self.agenda.now, f"client {self.arrival.name}", "leaves", "all" if choice < 0 else f"{choice}")
        if choice < 0:
            self.has_left = True
        else:
            self.given_up.add(choice)
        self.control.dispatch.cancel(self.arrival.name, choice)

    def _tell(self, text: str) -> None:
        self.story.tell(self.agenda.now, f"client {self.arrival.name}", text)
