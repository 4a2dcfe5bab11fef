"""The prompts that a worker computes: which get memory, and which chunks of them the next launch takes.

add -> its grammar is compiled -> it waits in line -> admitted -> computed in chunks -> its first tokens are drawn
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from protocol.prefixes import ID_BYTES
from runtime.clock import Clock
from runtime.waiting_line import LEVEL_S, WaitingLine
from scheduler.planning.chunks import ExtendChunk, plan_chunks
from scheduler.planning.planner import Planner
from worker.learning import Learning
from worker.policies import Policies
from worker.requests import Assigned
from worker.served import Served

A = TypeVar("A", bound=Assigned)


class Prompts(Generic[A]):
    """Requests from their arrival until their first tokens are drawn.

    `seat` gives a request its rows and pages; False: there is no room. `num_cached` tells how many tokens of its prompt
    it would then find cached. `level_s`: see WaitingLine.
    """

    def __init__(
        self,
        planner: Planner,
        clock: Clock,
        policies: Policies,
        served: Served[A],
        seat: Callable[[A], bool],
        num_cached: Callable[[A], int],
        level_s: float = LEVEL_S,
    ) -> None:
        self._planner, self._clock, self._policies = planner, clock, policies
        self._served, self._seat, self._num_cached = served, seat, num_cached
        self.learning: Learning[A] = Learning(planner, served.by_key.values)
        self.waiting: WaitingLine[A] = WaitingLine(policies.prefix(num_cached), level_s)
        self.computing: dict[A, None] = {}  # no more than there are rows

    @property
    def num_waiting(self) -> int:
        """Requests without memory."""
        return len(self.waiting) + len(self.learning)

    @property
    def tokens_left(self) -> int:
        """Prompt tokens of all requests that no launch computes yet."""
        return sum(request.prompt_left for request in self._served.by_key.values())

    @property
    def unfinished(self) -> list[A]:
        """Admitted requests with prompt tokens that no launch computes yet."""
        return [request for request in self.computing if request.prompt_left]

    def add(self, request: A) -> None:
        """A new request."""
        if not self.learning.hold(request):
            self._queue(request)

    def drop(self, request: A) -> None:
        """It has ended."""
        self.learning.drop(request)
        self.waiting.remove(request)
        self.computed(request)

    def computed(self, request: A) -> None:
        """Its first tokens are drawn. Other calls do nothing."""
        self.computing.pop(request, None)

    def admit(self) -> list[A]:
        """Admits requests in the order of the line, and returns them. One that is too early, or does not fit yet, holds
        the later ones back."""
        self.learning.settle(self._queue, self._served.fail)
        admitted = list[A]()
        if not self.waiting:
            return admitted
        budget = self._policies.launch_tokens(self._decode_tokens(len(self._planner.decodes())))
        while (request := self.waiting.first()) is not None:
            if self._is_too_early(request, budget) or not self._seat(request):
                break
            self.waiting.remove(request)
            request.num_cached = request.prompt.held.num_cached
            self.computing[request] = None
            self._planner.replays.begin(request.prompt)
            admitted.append(request)
        return admitted

    def _is_too_early(self, request: A, budget: int | None) -> bool:
        """Whether `request` should stay in line: the prompts that are being computed fill a launch without it, or one
        of them is about to cache much of it.

        `budget`: the most tokens of a launch; None: a launch takes one whole prompt. "Much" is all that is cached of
        this prompt now and a quarter of the rest, at least a page. The wait is short: each such prompt is soon done, or
        ends. Prompts whose earlier answers are still being read do not count.
        """
        chunk_size, kv_manager = self._policies.chunk_size, self._planner.kv_manager
        computing = self._going_on(self.computing)
        num_tokens = sum(min(other.prompt_left, chunk_size or other.prompt_left) for other in computing)
        if num_tokens >= (budget or 1):  # without a budget any prompt fills a launch
            return True
        if not computing or not kv_manager.caches or request.wanted_cached is None:  # it can use no cached KV
            return False

        key, num_cached = request.cache_key, self._num_cached(request)
        end = num_cached + max(kv_manager.page_size, (request.prompt_len - num_cached) // 4)
        start = key.ids[: (end + kv_manager.lookahead) * ID_BYTES]
        return end + max(kv_manager.lookahead, 1) <= request.prompt_len and any(
            other.cache_key.salt == key.salt and other.cache_key.ids.startswith(start) for other in computing
        )

    def next_chunks(self, num_decodes: int = 0) -> tuple[ExtendChunk, ...]:
        """The chunks of the next launch, beside so many choices that decode in it or wait for it. The oldest request
        comes first.

        A draft begins with the target's features of `lookahead` tokens at a prompt's end, so one launch computes them
        all.
        """
        requests = self._going_on(self.unfinished)
        policies, decode_tokens = self._policies, self._decode_tokens(num_decodes)
        sizes = plan_chunks(
            [request.prompt_left for request in requests],
            policies.chunk_size,
            decode_tokens if policies.enable_mixed_chunk else 0,
            policies.launch_tokens(decode_tokens),
            max(self._planner.kv_manager.lookahead, 1),
        )

        chunks = list[ExtendChunk]()
        for request, size in zip(requests, sizes, strict=True):
            prompt, end = request.prompt, request.prompt.num_computed + size
            samples = [req for req in request.reqs if req.finish is None] if end == prompt.prompt_len else []
            if size:
                asked = request.assign.prompt_logprobs
                chunks.append(ExtendChunk(prompt, prompt.num_computed, end, tuple(samples), request.to_host, asked))
        return tuple(chunks)

    def _decode_tokens(self, num_decodes: int) -> int:
        return self._planner.speculation.most_tokens(num_decodes)

    def _going_on(self, admitted: Iterable[A]) -> list[A]:
        """Those whose prompts may be launched: their answers are read as far as they go."""
        return [request for request in admitted if request.prompt not in self._planner.replays]

    def _queue(self, request: A) -> None:
        assign = request.assign
        self.waiting.add(request, self._clock.now(), assign.priority, resumes=assign.resumes)
