"""What tests of scheduler/ are built from: requests, planners, executors over the fake model, a stream that runs on
command."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.host_copies import HostCopies
from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.messages_gateway import SamplingParams
from runtime.clock import Clock
from scheduler.agreement import Agreement
from scheduler.draft_shape import DraftShape
from scheduler.execution.executor import Executor
from scheduler.execution.streams import Event, InlineStream, Segment, Stream
from scheduler.plan import Draw, StepResult
from scheduler.planning.chunks import ExtendChunk
from scheduler.planning.kv_manager import KvManager
from scheduler.planning.launched import Launched
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from scheduler.planning.speculation import Speculation
from scheduler.speculation.modes import launches_for
from tests.doubles.hash_model import FakeRunner

CPU = torch.device("cpu")
CHAIN_OF_3 = DraftShape(3)
MODEL = FakeRunner(vocab_size=97, context_length=64)


def greedy(max_tokens: int, *, min_tokens: int = 0, eos: tuple[int, ...] = ()) -> SamplingParams:
    """Greedy parameters."""
    return SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, temperature=0.0, eos_token_ids=eos)


def make_req(
    prompt: tuple[int, ...] = (1, 2, 3), sampling: SamplingParams | None = None, choice: int = 0, name: str = "r"
) -> Req:
    """A request that is not admitted yet."""
    return Req(name, 0, choice, prompt, sampling or greedy(8))


def admitted(
    planner: Planner, prompt: tuple[int, ...] = (1, 2, 3), sampling: SamplingParams | None = None, name: str = "r"
) -> Req:
    """A request with a row, and pages for its whole life."""
    req = make_req(prompt, sampling, name=name)
    assert planner.admit([req], req.prompt_len + req.sampling.max_tokens)
    return req


def begun(
    planner: Planner, prompt: tuple[int, ...] = (1, 2, 3), sampling: SamplingParams | None = None, name: str = "r"
) -> Req:
    """A request whose prompt is launched beside rows that decode. It decodes from the next launch on."""
    req = admitted(planner, prompt, sampling, name)
    planner.launch(prompt_chunk(req), planner.decodes())
    planner.join([req])
    return req


def grow(planner: Planner, req: Req, num_tokens: int) -> bool:
    """Adds pages until `num_tokens` tokens fit, as make_room does when a context grows. False: no room."""
    if planner.kv_manager.grow(req.held, num_tokens) is None:
        return False
    planner._plans.grant(req.held)
    return True


def prompt_chunk(req: Req, start: int = 0, end: int | None = None) -> list[ExtendChunk]:
    """Prompt tokens [start, end) of one request; the last chunk draws its first token."""
    end = req.prompt_len if end is None else end
    return [ExtendChunk(req, start, end, (req,) if end == req.prompt_len else ())]


def draw(
    row: int = 1, sampling: SamplingParams | None = None, *, owner_number: int = 1, choice: int = 0, until: int = 0
) -> Draw:
    """A choice at a row."""
    return Draw(row, owner_number, choice, sampling or greedy(50), until)


class FailAt:
    """Raises in the chosen forwards, counted from 1."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.count = 0

    def __call__(self, inp: ModelInput) -> None:
        self.count += 1
        if self.count in self.failing:
            raise RuntimeError(f"forward {self.count} is broken")


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

    def tell(self) -> None:
        """The scheduler polls here: nobody has to wake it."""

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


def make_executor(
    forward: Stream,
    *,
    runner: Runner | None = None,
    kv: PagedKv | None = None,
    max_requests: int = 8,
    debug: bool = True,
    forward_clock: Clock | None = None,
    host: HostCopies | None = None,
    staging: Stream | None = None,
    shape: DraftShape = CHAIN_OF_3,
    schedule: Stream | None = None,
    num_ranks: int = 1,
) -> Executor:
    """An executor over a fake model of 97 tokens, for contexts of 64 tokens. `shape` is that of its draft, if any."""
    runner = runner or MODEL
    kv = kv or PagedKv(runner.kv_layout(4), 64)
    return Executor(
        runner,
        kv,
        num_rows=max_requests + 1,
        max_pages=kv.layout.num_pages(64),
        forward=forward,
        schedule=schedule or InlineStream(),
        forward_clock=forward_clock,
        host=host,
        staging=staging,
        debug=debug,
        launches=launches_for(runner.draft, shape),
        num_ranks=num_ranks,
    )


def make_pair(
    forward: Stream, *, speculation: Speculation | None = None, agreement: Agreement | None = None, **options: Any
) -> tuple[Executor, Planner]:
    """An executor, and the planner that feeds it."""
    executor = make_executor(forward, **options)
    return executor, make_planner(executor, speculation=speculation, agreement=agreement)


def make_planner(
    executor: Executor,
    *,
    has_twin: bool = False,
    speculation: Speculation | None = None,
    agreement: Agreement | None = None,
) -> Planner:
    """A planner that feeds it."""
    kv, num_rows = executor.kv, executor.page_table.req_to_page.shape[0]
    kv_manager = KvManager(kv.num_pages, kv.layout.page_size, max_requests=num_rows - 1, max_context=64)
    of_group: dict[str, Any] = {"agreement": agreement, "max_graphed": executor.runner.max_graphed}
    return Planner(kv_manager, executor, kv.layout, 97, has_twin=has_twin, speculation=speculation, **of_group)


def ids(*values: int) -> Tensor:
    """Token ids, rows or lengths."""
    return torch.tensor(values, dtype=torch.int64)


def finish(planner: Planner, executor: Executor) -> tuple[Launched, StepResult]:
    """Runs the oldest launch and takes it."""
    assert planner.poll() == []
    copy_done = executor.launches[0].copy_done
    assert copy_done is not None
    copy_done.synchronize()
    (over,) = planner.poll()
    return over


def finish_all(planner: Planner, executor: Executor) -> list[StepResult]:
    return [finish(planner, executor)[1] for _ in range(len(planner.in_flight))]


def drawn(planner: Planner, result: StepResult) -> dict[Req, tuple[int, ...]]:
    return dict(planner.results.drawn(result.rows, result.tokens))


def decode(planner: Planner) -> Launched:
    return planner.launch((), planner.decodes())


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Every tensor of a dataclass or a tuple, in it or in a part of it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
