"""One plain load on one server, for comparisons: how many requests, how large, how many at a time, what disturbs them.

    closed loop   `concurrency` clients; each sends its next request when its last one has ended
    open loop     requests arrive on their own, `rate` a second on average, however many still run
    intruders     long prompts beside either, `intruder_rate` a second, one output token each, counted separately

`run_load` warms the server up and measures one round, as `baton bench` does.
"""

from dataclasses import dataclass
from typing import Any, Final

from loadtest.drive.server import find_model
from loadtest.drive.talk import COMPLETIONS, Asking, TokenHistory
from loadtest.http_exchange import Connections, Server
from loadtest.measure import Load, measure, prepared
from loadtest.report import Figures, figures
from loadtest.work.arrivals import AtOnce, Gamma
from loadtest.work.conversations import RandomWork
from loadtest.work.lengths import Lengths
from runtime.clock import Clock

ROUND_S = 240.0  # a request without an answer by then has failed
FIELDS: Final[dict[str, Any]] = {"temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class PlainLoad:
    """The requests of a round. `vocab` bounds the random prompt ids. Rates are per second; 0 is none."""

    num_requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    vocab: int
    seed: int
    rate: float = 0.0
    intruder_rate: float = 0.0
    intruder_tokens: int = 1500

    def words(self) -> str:
        """The load in one line."""
        how = f"{self.rate:g} a second" if self.rate else f"{self.concurrency} at a time"
        beside = (
            f", a prompt of {self.intruder_tokens:,} every {1 / self.intruder_rate:g} s" if self.intruder_rate else ""
        )
        return f"{self.num_requests} requests, {how}, {self.prompt_tokens} tokens in, {self.output_tokens} out{beside}"

    @property
    def measured(self) -> Load:
        """The same for `measure`. A request for each client warms up, of the same shape with another prompt."""
        prompt, answer = Lengths("fixed", self.prompt_tokens), Lengths("fixed", self.output_tokens)
        return Load(
            work=RandomWork(prompt, answer, vocab=self.vocab),
            arrivals=Gamma(self.rate) if self.rate else AtOnce(),
            max_concurrency=None if self.rate else self.concurrency,
            num_conversations=self.num_requests,
            num_warmups=min(self.num_requests, self.concurrency),
            intruder_rate=self.intruder_rate,
            intruder_tokens=self.intruder_tokens,
            seed=self.seed,
            stops_when_saturated=False,
        )


async def run_load(server: Server, clock: Clock, load: PlainLoad, model: str | None = None) -> Figures:
    """Warms the server up, then measures one round. `model` defaults to the first one that the server lists."""
    found, connections = await find_model(server, clock, model), Connections(server, clock)
    asking = Asking(connections, COMPLETIONS, found.model, TokenHistory, FIELDS, ROUND_S)
    try:
        endpoint = await prepared(server, found, asking, load.measured, clock)
    finally:
        connections.close()
    return figures(await measure(endpoint, load.measured, None, lambda _: None))
