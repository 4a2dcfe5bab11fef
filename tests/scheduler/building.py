"""What tests of scheduler/ are built from: requests, engines over the fake model, and a stream that runs on command."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.paged_kv import PagedKv
from protocol.request import SamplingParams
from runtime.clock import Clock
from scheduler.engine import Engine
from scheduler.kv_book import KvBook
from scheduler.req import Req
from scheduler.streams import Event, Segment, Stream
from scheduler.streams_host import InlineStream
from tests.doubles.hash_model import FakeRunner

CPU = torch.device("cpu")


def greedy(max_tokens: int, *, min_tokens: int = 0, eos: tuple[int, ...] = ()) -> SamplingParams:
    """Greedy parameters."""
    return SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, temperature=0.0, eos_token_ids=eos)


def make_req(
    prompt: tuple[int, ...] = (1, 2, 3), sampling: SamplingParams | None = None, choice: int = 0, name: str = "r"
) -> Req:
    """A request that is not admitted yet."""
    return Req(name, 0, choice, prompt, sampling or greedy(8))


def admitted(
    engine: Engine, prompt: tuple[int, ...] = (1, 2, 3), sampling: SamplingParams | None = None, name: str = "r"
) -> Req:
    """A request with a row, and pages for its whole life."""
    req = make_req(prompt, sampling, name=name)
    (req.holding,) = engine.book.admit(req.prompt_len, req.prompt_len + req.sampling.max_tokens, 1) or ()
    engine.write_pages(req.held)
    return req


class ManualEvent:
    """A point in a ManualStream; to wait for it is to run the stream up to it."""

    def __init__(self, stream: "ManualStream") -> None:
        self.reached = False
        self._stream = stream

    def done(self) -> bool:
        return self.reached

    def synchronize(self) -> None:
        while not self.reached:
            self._stream.run_one()


class ManualStream:
    """Runs nothing until it is told to. `log` names what ran, in order."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self.closed = False

    def launch(self, segments: Sequence[Segment], *used: Any) -> None:
        self.queue.extend(partial(segment, *used) for segment in segments)

    def record(self) -> Event:
        event = ManualEvent(self)

        def reach() -> None:
            event.reached = True

        self.queue.append(reach)
        return event

    def wait(self, event: Event) -> None:
        if not event.done():
            self.queue.append(event.synchronize)

    def run_one(self) -> None:
        self.queue.popleft()()

    def synchronize(self) -> None:
        while self.queue:
            self.run_one()

    def mark(self) -> Event:
        return InlineStream().record()

    def to_host(self, source: Tensor) -> Tensor:
        return source.clone()

    def read_host(self, tensor: Tensor) -> list[int]:
        values: list[int] = tensor.tolist()
        return values

    def close(self) -> None:
        self.synchronize()
        self.closed = True


def make_engine(
    forward: Stream,
    *,
    runner: FakeRunner | None = None,
    num_pages: int = 64,
    page_size: int = 4,
    max_requests: int = 8,
    debug: bool = True,
    forward_clock: Clock | None = None,
) -> Engine:
    """An engine over a fake model of 97 tokens."""
    runner = runner or FakeRunner(vocab_size=97, context_length=64)
    return Engine(
        runner,
        PagedKv(runner.kv_layout(page_size), num_pages),
        KvBook(num_pages, page_size, max_requests=max_requests, max_context=64),
        forward=forward,
        schedule=InlineStream(),
        device=CPU,
        forward_clock=forward_clock,
        debug=debug,
    )
