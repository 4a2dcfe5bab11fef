"""What a client of the dispatch gets: each token once and in order, and nothing behind its end."""

from dataclasses import dataclass, field

from gateway.routing.requests import Delivery
from protocol.errors import BatonError
from protocol.messages_gateway import FinishReason


@dataclass
class Client:
    """What a client gets: nothing after a finish or a failure, each token once and in order."""

    num_choices: int
    tokens: list[list[int]] = field(default_factory=list)
    finish: list[FinishReason | None] = field(default_factory=list)
    error: BatonError | None = None

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.num_choices)]
        self.finish = [None] * self.num_choices

    @property
    def is_done(self) -> bool:
        return self.error is not None or all(finish is not None for finish in self.finish)

    def on_tokens(self, delivery: Delivery) -> None:
        assert self.error is None and self.finish[delivery.choice] is None, "something follows the end"
        self.tokens[delivery.choice] += delivery.token_ids
        self.finish[delivery.choice] = delivery.finish

    def on_failed(self, error: BatonError) -> None:
        assert not self.is_done, "it fails once, and not when it is done"
        self.error = error
