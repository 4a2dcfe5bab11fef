"""The kinds of requests in a benchmark's batch, and requests that join and leave it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from protocol.grammar import grammar_name
from protocol.logit_rules import LogitRules
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import Assign, CancelRequest, SamplingParams

GUESTS = 4  # requests that have joined before the first of them leaves


@dataclass(frozen=True)
class Kind:
    """What each request asks for. With `joins`, in every step one more request joins the batch and one leaves."""

    name: str
    temperature: float = 0.0
    top_p: float = 1.0
    num_stops: int = 0  # tokens that may not be drawn before the end
    joins: bool = False
    rules: LogitRules | None = None
    logprobs: LogprobsAsked | None = None
    grammar: str = ""  # the text that answers follow

    def params(self, num_tokens: int) -> SamplingParams:
        """The parameters of a request that draws all of `num_tokens` tokens."""
        return SamplingParams(
            max_tokens=num_tokens,
            min_tokens=num_tokens if self.num_stops else 0,
            temperature=self.temperature,
            top_p=self.top_p,
            stop_token_ids=tuple(range(100, 100 + self.num_stops)),
            ignore_eos=True,
            rules=self.rules,
            logprobs=self.logprobs,
            grammar=grammar_name(self.grammar),
            eos_token_ids=(0,) if self.grammar else (),
        )

    def assign(self, name: str, prompt_ids: tuple[int, ...], num_tokens: int) -> Assign:
        """A request for a unified worker."""
        params = self.params(num_tokens)
        return Assign(name, 0, prompt_ids, params, num_choices=1, prefill=None, grammar=self.grammar)

    def num_requests(self, batch: int) -> int:
        """Requests that need memory at once. The rows and pages of a guest that has left are not free at once."""
        return batch + 2 * GUESTS if self.joins else batch


GREEDY = Kind("greedy")
KINDS = (
    GREEDY,
    Kind("sampled", temperature=1.0),
    Kind("top-p", temperature=1.0, top_p=0.9),
    Kind("min_tokens, 900 stops", num_stops=900),
    Kind("one joins, one leaves", joins=True),
    Kind("biases of 20 tokens", rules=LogitRules(logit_bias=tuple((token, 1.5) for token in range(20)))),
    Kind("450 tokens allowed", rules=LogitRules(allowed_token_ids=tuple(range(0, 900, 2)))),
    Kind("20 bad words of 3 tokens", rules=LogitRules(bad_words=tuple((token, 2, 3) for token in range(20)))),
    Kind("three penalties", rules=LogitRules(0.5, 0.5, 1.1)),
    Kind("log-probabilities", logprobs=LogprobsAsked()),
    Kind("20 likeliest tokens", logprobs=LogprobsAsked(20)),
    Kind("20 likeliest, processed", temperature=1.0, logprobs=LogprobsAsked(20, processed=True)),
)


class Guests:
    """Requests beside those of the batch. One joins with each launch; once there are GUESTS, the oldest leaves."""

    def __init__(self, tell: Callable[[Assign | CancelRequest], None], kind: Kind, num_tokens: int) -> None:
        self._tell, self._kind, self._num_tokens = tell, kind, num_tokens
        self._names: deque[str] = deque()
        self._changed_at = -1  # number of launches at the last change
        self._num = 0

    def __len__(self) -> int:
        return len(self._names)

    def change(self, num_launches: int) -> None:
        """Lets one join and one leave, once per launch."""
        if num_launches == self._changed_at:
            return

        self._changed_at = num_launches
        self._num += 1
        self._names.append(f"guest{self._num}")
        self._tell(self._kind.assign(self._names[-1], (1,), self._num_tokens))
        if len(self._names) > GUESTS:
            self._tell(CancelRequest(self._names.popleft(), 0))
