"""Which prompts get memory, and which chunks of them a launch takes: unlike the roles, without a loop or a device."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.errors import BatonError
from protocol.messages_gateway import Assign, FinishReason
from scheduler.plan import GrammarLearnt, MaskReady
from scheduler.planning.planner import Planner
from tests.doubles.clock import VirtualClock
from tests.scheduler.building import greedy
from tests.scheduler.remembering import Remembers, finish, make
from worker.policies import Policies
from worker.prompts import Prompts
from worker.requests import Assigned
from worker.served import Served


class Role:
    """Computes prompts in rows of their first choices only."""

    num_waiting = 0

    def __init__(self, policies: Policies, made: tuple[Planner, Remembers]) -> None:
        self.planner, self.executor = made
        self.served: Served[Assigned] = Served(self, policies)
        self.prompts = Prompts(self.planner, VirtualClock(), policies, self.served, self._seat, self._num_cached)
        self.errors: dict[str, BatonError] = {}

    def ask(self, name: str, prompt: tuple[int, ...], n: int = 1, grammar: str = "", num_replayed: int = 0) -> Assigned:
        sampling = replace(greedy(2), grammar=grammar)
        request = Assigned(Assign(name, 0, prompt, sampling, n, None, num_replayed=num_replayed))
        self.served.take(request)
        self.prompts.add(request)
        return request

    def launch(self) -> list[tuple[str, int, int]]:
        """(request, start, end) of each chunk that is launched."""
        if chunks := self.prompts.next_chunks():
            self.planner.launch(chunks)
        return [(chunk.req.request_id, chunk.start, chunk.end) for chunk in chunks]

    def admit(self) -> None:
        self.prompts.admit()

    def ended(self, request: Assigned, error: BatonError | None) -> None:
        if error is not None:
            self.errors[request.assign.request_id] = error
        self.prompts.drop(request)
        self.planner.release(request.prompt)

    def _seat(self, request: Assigned) -> bool:
        return self.planner.admit(request.reqs[:1], request.prompt_len, key=request.wanted_cached)

    def _num_cached(self, request: Assigned) -> int:
        return self.planner.num_cached(request.prompt, request.wanted_cached)


@pytest.mark.parametrize(
    "lookahead,prompt,waits",
    [
        (0, (1, 1, 1, 1, 9), True),
        (0, (1, 1, 1, 1), False),  # a token is left to be computed
        (1, (1, 1, 1, 1, 1), True),
        (1, (1, 1, 1, 1, 9), False),  # the page's last slot looks ahead to another token
        (1, (1, 1, 1, 1), False),
        (2, (1, 1, 1, 1, 1), False),
        (2, (1, 1, 1, 1, 1, 1), True),
    ],
)
def test_a_prompt_waits_for_a_page_that_it_will_find_only(lookahead: int, prompt: tuple[int, ...], waits: bool) -> None:
    """Pages have four tokens. The prompt that is computed has eight ones."""
    role = Role(Policies(chunk_size=64), make(lookahead=lookahead, caches=True))
    computing = role.ask("computing", (1,) * 8)
    assert role.prompts.admit() == [computing]
    request = role.ask("r", prompt)
    assert role.prompts.admit() == ([] if waits else [request])
    role.planner.kv_manager.keep(computing.prompt.held, computing.cache_key)
    assert (role.planner.num_cached(request.prompt, request.cache_key) == 4) == waits
    role.launch()
    finish(role.planner, role.executor)
    role.prompts.computed(computing)
    assert role.prompts.admit() == ([request] if waits else [])
    assert request.num_cached == request.prompt.held.num_cached == (4 if waits else 0)


def test_a_prompt_waits_while_launches_are_full_without_it() -> None:
    role = Role(Policies(chunk_size=4, max_prefill_tokens=8), make())
    for index in range(4):
        role.ask(f"r{index}", (index + 1,) * 5)
    assert [request.assign.request_id for request in role.prompts.admit()] == ["r0", "r1"]
    assert role.launch() == [("r0", 0, 4), ("r1", 0, 4)]
    assert [request.assign.request_id for request in role.prompts.admit()] == ["r2", "r3"], "one token is left of each"
    assert role.launch() == [("r0", 4, 5), ("r1", 4, 5), ("r2", 0, 4), ("r3", 0, 2)]


@pytest.mark.parametrize("mixed, alone, beside", [(True, 9, 6), (False, 9, 9)])
def test_choices_that_decode_take_their_share_of_a_mixed_launch(mixed: bool, alone: int, beside: int) -> None:
    role = Role(Policies(chunk_size=9, enable_mixed_chunk=mixed), make())
    role.ask("r", (1,) * 20)
    role.prompts.admit()
    for num_decodes, expected in ((0, alone), (3, beside)):
        (chunk,) = role.prompts.next_chunks(num_decodes)
        assert (chunk.start, chunk.end, chunk.samples) == (0, expected, ())


def test_the_last_chunk_draws_for_each_choice_that_goes_on() -> None:
    role = Role(Policies(chunk_size=4), make())
    request = role.ask("r", (1,) * 6, 3)
    role.prompts.admit()
    role.launch()
    request.reqs[1].finish = FinishReason.CANCELLED
    (chunk,) = role.prompts.next_chunks()
    assert (chunk.start, chunk.end, chunk.samples) == (4, 6, (request.reqs[0], request.reqs[2]))


@pytest.mark.parametrize("fault", ["", "no answer can follow it"])
def test_a_request_waits_for_its_grammar_unless_it_leaves(fault: str) -> None:
    role = Role(Policies(chunk_size=64), make())
    stays, leaves = [role.ask(name, (1,) * 4, grammar="slow") for name in ("stays", "leaves")]
    plain = role.ask("plain", (2,) * 4)
    assert role.prompts.admit() == [plain] and role.prompts.num_waiting == 2
    role.served.drop(leaves)
    assert role.prompts.num_waiting == 1

    role.executor.outcomes.append(GrammarLearnt("slow", fault))
    role.planner.poll()
    assert role.prompts.admit() == ([] if fault else [stays])
    assert {name: error.message for name, error in role.errors.items()} == ({"stays": fault} if fault else {})
    assert role.prompts.num_waiting == 0 and set(role.served.by_key.values()) == {plain, *([] if fault else [stays])}


def test_a_prompt_waits_until_the_outputs_of_its_earlier_attempt_are_read() -> None:
    role = Role(Policies(chunk_size=64), make())
    request = role.ask("r", (1,) * 4, grammar="g", num_replayed=1)
    role.executor.outcomes.append(GrammarLearnt("g"))
    role.planner.poll()
    assert role.prompts.admit() == [request] and role.launch() == []
    assert role.prompts.unfinished == [request]

    role.executor.outcomes.append(MaskReady(*request.prompt.held.owner))
    role.planner.poll()
    assert role.launch() == [("r", 0, 4)]


@pytest.mark.parametrize("seed", range(10))
def test_a_request_leaves_every_queue_wherever_it_is(seed: int) -> None:
    """And the numbers that the gateway is told agree with what is there."""
    rng = random.Random(seed)
    role = Role(Policies(chunk_size=4, max_prefill_tokens=10), make(num_pages=24))
    alive: dict[str, Assigned] = {}
    left_from: set[str] = set()

    def leave() -> None:
        request = alive.pop(rng.choice(list(alive)))
        is_waiting, left = request in role.prompts.waiting, request.prompt_left
        left_from.add("line" if is_waiting else "computing" if left else "computed")
        role.served.drop(request)

    def ask() -> None:
        name = f"r{len(alive)}-{rng.random()}"
        alive[name] = role.ask(name, tuple(rng.choices(range(1, 9), k=rng.randint(1, 20))))

    def turn() -> None:
        for request in role.prompts.admit():
            assert request.prompt.holding is not None and request in role.prompts.computing
        if role.launch():
            finish(role.planner, role.executor)
        role.planner.collect()

    acts: list[Callable[[], None]] = [ask, ask, turn, turn, leave]
    for _ in range(150):
        act = rng.choice(acts)
        if act is not leave or alive:
            act()
        requests = list(alive.values())
        assert set(role.prompts.waiting) | set(role.prompts.computing) == set(requests)
        assert role.prompts.num_waiting == sum(request.prompt.holding is None for request in requests)
        assert role.prompts.tokens_left == sum(request.prompt_left for request in requests)
        assert set(role.prompts.unfinished) == {req for req in role.prompts.computing if req.prompt_left}
    assert left_from == {"line", "computing", "computed"}
    role.served.drop_all()
    turn()
    counts = role.planner.kv_manager.counts()
    assert (role.prompts.num_waiting, role.prompts.computing, counts.free) == (0, {}, counts.total)
