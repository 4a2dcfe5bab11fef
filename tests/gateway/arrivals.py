"""Loads on a modelled fleet: requests with a hot prefix, many prefixes, chats; and figures of what became of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random

from runtime.settings import Pairing
from tests.gateway.modelled_fleet import HEARTBEAT_S, NUM_OUTPUTS, Asked, Fleet

# ---- workloads ----


def ids(rng: Random, num: int) -> list[int]:
    """Token ids that nobody else has."""
    return [rng.randrange(1, 60_000) for _ in range(num)]


def one_prefix(rng: Random, num_prefix: int, num_rest: int, groups: int = 1) -> Iterator[tuple[list[int], int]]:
    """Endless prompts of `groups` groups, and their groups. Those of a group have `num_prefix` tokens in common."""
    prefixes = [ids(rng, num_prefix) for _ in range(groups)]
    while True:
        group = rng.randrange(groups)
        yield [*prefixes[group], *ids(rng, num_rest)], group


def serve(fleet: Fleet, prompts: Iterator[tuple[list[int], int]], num_requests: int, at_a_time: int) -> None:
    """`at_a_time` clients, each of which asks again when it has its answer, until `num_requests` are answered."""
    begun, ended = count(), list[Asked]()

    def done(asked: Asked) -> None:
        ended.append(asked)
        ask()

    def ask() -> None:
        if next(begun) < num_requests:
            fleet.ask(*next(prompts), done)

    for _ in range(at_a_time):
        ask()
    fleet.run(lambda: len(ended) == num_requests)


def chat(fleet: Fleet, rng: Random, num_chats: int, num_turns: int, at_a_time: int, num_system: int = 0) -> None:
    """Chats of their own, `at_a_time` at once. A turn adds its answer and 20 to 200 new tokens to the prompt; all begin
    with the same `num_system` tokens."""
    system = ids(rng, num_system)
    begun, ended = count(), list[int]()

    def begin() -> None:
        if (number := next(begun)) < num_chats:
            turn(number, [*system, *ids(rng, rng.randrange(100, 1000))], 1)

    def turn(number: int, prompt: list[int], at: int) -> None:
        def done(asked: Asked) -> None:
            if at < num_turns:
                more = [*prompt, *[5] * NUM_OUTPUTS, *ids(rng, rng.randrange(20, 200))]
                fleet.after(rng.uniform(0.3, 1.0), lambda: turn(number, more, at + 1))
            else:
                ended.append(number)
                begin()

        fleet.ask(prompt, number, done)

    for _ in range(at_a_time):
        begin()
    fleet.run(lambda: len(ended) == num_chats)


# ---- what is looked at ----


def share(asked: Sequence[Asked], worker_of: Callable[[Asked], str], worker_id: str = "") -> float:
    """The part of the requests that went to `worker_id`; by default the largest part that one worker got."""
    counts = Counter(map(worker_of, asked))
    return (counts[worker_id] if worker_id else max(counts.values())) / len(asked)


def prefill_share(asked: Sequence[Asked]) -> float:
    """The largest part of the requests that one prefill worker got."""
    return share(asked, lambda each: each.prefill)


def cached_share(asked: Sequence[Asked]) -> float:
    """The part of all prompt tokens that prefill did not compute."""
    return sum(each.num_cached for each in asked) / sum(len(each.prompt) for each in asked)


def p95(values: Iterator[float] | Sequence[float]) -> float:
    """The 95th percentile."""
    found = sorted(values)
    return found[int(0.95 * (len(found) - 1))]


def warm(fleet: Fleet, prompts: Iterator[tuple[list[int], int]]) -> str:
    """One request, and then the gateway hears what it has left in the caches. Returns its prefill worker."""
    serve(fleet, prompts, 1, 1)
    heard = fleet.clock.now() + 2 * HEARTBEAT_S
    fleet.run(lambda: fleet.clock.now() >= heard)
    holder = fleet.asked[0].prefill
    fleet.asked.clear()
    return holder


def hot_prefix(
    num_prefix: int,
    at_a_time: int,
    pairing: Pairing = "prefix_aware",
    num_prefill: int = 2,
    num_requests: int = 160,
    seed: int = 1,
) -> list[Asked]:
    """Requests with one prefix, after a first one."""
    fleet, prompts = Fleet(pairing, num_prefill, seed=seed), one_prefix(Random(seed), num_prefix, 32)
    warm(fleet, prompts)
    serve(fleet, prompts, num_requests, at_a_time)
    return fleet.asked


def restarted(num_prefix: int, at_a_time: int, pairing: Pairing = "prefix_aware") -> float:
    """A worker is killed and comes back after 2 s with an empty cache: its part of the requests of the next 10 s."""
    fleet, prompts = Fleet(pairing), one_prefix(Random(1), num_prefix, 32)
    killed = warm(fleet, prompts)
    fleet.after(1.0, lambda: fleet.kill(killed, back_after_s=2.0))
    serve(fleet, prompts, 100 * at_a_time, at_a_time)
    back_s = fleet.joined_s[killed]
    assert fleet.clock.now() >= back_s + 10
    return share(
        [each for each in fleet.asked if back_s <= each.asked_s < back_s + 10], lambda each: each.prefill, killed
    )


def chats(
    seed: int, at_a_time: int, num_system: int = 0, pairing: Pairing = "prefix_aware", num_prefill: int = 2
) -> list[Asked]:
    """Three chats of ten turns for each client."""
    fleet = Fleet(pairing, num_prefill, seed=seed)
    chat(fleet, Random(seed), 3 * at_a_time, 10, at_a_time, num_system)
    return fleet.asked


def many_prefixes(
    seed: int, groups: int, at_a_time: int = 16, pairing: Pairing = "prefix_aware", num_prefill: int = 2
) -> list[Asked]:
    """20 requests for each of so many prefixes of 1,800 tokens."""
    fleet = Fleet(pairing, num_prefill, seed=seed)
    serve(fleet, one_prefix(Random(seed), 1800, 32, groups), 20 * groups, at_a_time)
    return fleet.asked
