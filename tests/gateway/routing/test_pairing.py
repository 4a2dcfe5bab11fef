from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.members import Member
from gateway.routing.pairing import Load, Loads, Need, Pair, Pairer, cost, decode_load, one_choice_less, prefill_load
from protocol.messages_gateway import Role
from protocol.prefixes import STRIDE
from protocol.worker_facts import CacheNews, KvPages, WorkerStats
from tests.gateway.worker_ends import STATS, register

NEED = Need(prompt_tokens=10, num_choices=1, max_tokens=6)


def member(worker_id: str, role: Role, tokens: int = 160, rows: int = 8) -> Member:
    registered = register(worker_id, 1, role, max_total_tokens=tokens, max_running_requests=rows)
    return Member(registered, STATS, 0.0)


PREFILLS = [member("p0", Role.PREFILL), member("p1", Role.PREFILL)]
DECODES = [member("d0", Role.DECODE), member("d1", Role.DECODE)]
UNIFIED = member("u0", Role.UNIFIED)


def picks(pairer: Pairer, members: list[Member], count: int) -> list[tuple[str, str]]:
    found = []
    for _ in range(count):
        choice = pairer.pick(members, NEED, {})
        assert choice is not None
        found.append((choice.prefill.key.worker_id if choice.prefill else "", choice.decode.key.worker_id))
    return found


@pytest.mark.parametrize("num_decodes", range(1, 5))
@pytest.mark.parametrize("num_prefills", range(1, 5))
def test_round_robin_reaches_every_pair_equally(num_prefills: int, num_decodes: int) -> None:
    prefills = [member(f"p{index}", Role.PREFILL) for index in range(num_prefills)]
    decodes = [member(f"d{index}", Role.DECODE) for index in range(num_decodes)]
    found = Counter(picks(Pairer("round_robin"), [*prefills, *decodes], 2 * num_prefills * num_decodes))
    assert found == {(p.key.worker_id, d.key.worker_id): 2 for p in prefills for d in decodes}


def test_round_robin_takes_turns_with_unified() -> None:
    found = Counter(decode for _, decode in picks(Pairer("round_robin"), [*PREFILLS, *DECODES, UNIFIED], 9))
    assert found == {"d0": 3, "d1": 3, "u0": 3}


def test_nobody_without_both_roles() -> None:
    for members in ([], PREFILLS, DECODES):
        assert Pairer("least_loaded").pick(members, NEED, {}) is None
    alone = Pairer("least_loaded").pick([UNIFIED, *DECODES], NEED, {})
    assert alone is not None and alone.decode is UNIFIED and alone.prefill is None


def test_least_loaded_avoids_the_busy() -> None:
    pairer, book = Pairer("least_loaded"), Loads()
    book.add(PREFILLS[0].key, prefill_load(NEED, PREFILLS[0]))
    book.add(DECODES[1].key, decode_load(NEED, DECODES[1]))
    for _ in range(4):
        choice = pairer.pick([*PREFILLS, *DECODES], NEED, book)
        assert choice is not None and choice.prefill is PREFILLS[1] and choice.decode is DECODES[0]


def test_pair_and_unified_compete() -> None:
    book = Loads()
    everybody = [holder(f"{role}0", role) for role in Role]
    _, decode, unified = everybody
    book.add(unified.key, decode_load(NEED, unified))
    assert pick(everybody, book, NEED).decode is decode
    for _ in range(2):
        book.add(decode.key, decode_load(NEED, decode))
    assert pick(everybody, book, NEED).decode is unified


def test_only_those_that_can_hold_it() -> None:
    small, large = member("d0", Role.DECODE, tokens=16), member("d1", Role.DECODE, tokens=64)
    need = Need(prompt_tokens=20, num_choices=1, max_tokens=10)
    for _ in range(3):
        choice = Pairer("round_robin").pick([PREFILLS[0], small, large], need, {})
        assert choice is not None and choice.decode is large
    assert Pairer("round_robin").pick([PREFILLS[0], small], need, {}) is None
    assert Pairer("round_robin").pick([PREFILLS[0], large], replace(need, max_tokens=100), {}) is None


def test_pages_of_choices_share_full_prompt_pages() -> None:
    need = Need(prompt_tokens=20, num_choices=3, max_tokens=13)  # 20 + 12 tokens of KV for each choice
    assert need.total_pages(16) == 1 + 3 * 1
    assert Need(16, 2, 1).total_pages(16) == 1
    assert Need(17, 2, 1).total_pages(16) == 3


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4), st.integers(1, 50)), max_size=20))
def test_a_book_returns_to_nothing(needs: list[tuple[int, int, int]]) -> None:
    book = Loads()
    for need in needs:
        book.add(UNIFIED.key, decode_load(Need(*need), UNIFIED))
    for need in reversed(needs):
        book.add(UNIFIED.key, decode_load(Need(*need), UNIFIED), -1)
    assert not book


def test_equal_load_is_spread() -> None:
    pairer, book = Pairer("least_loaded"), Loads()
    taken: Counter[str] = Counter()
    for _ in range(40):
        choice = pairer.pick([*PREFILLS, *DECODES, UNIFIED], NEED, book)
        assert choice is not None
        taken[choice.decode.key.worker_id] += 1
        book.add(choice.decode.key, decode_load(NEED, choice.decode))
    assert set(taken) == {"d0", "d1", "u0"} and max(taken.values()) - min(taken.values()) <= 2


def test_those_that_are_avoided_take_it_only_where_there_is_nobody_else() -> None:
    pairer = Pairer("round_robin")
    everybody = [*PREFILLS, *DECODES]
    p0, p1, d0, d1 = (each.key for each in everybody)
    for _ in range(3):
        choice = pairer.pick(everybody, NEED, {}, {p0, d1})
        assert choice is not None and choice.prefill is PREFILLS[1] and choice.decode is DECODES[0]
    for _ in range(2):
        choice = pairer.pick(everybody, NEED, {}, {p0, p1, d1})
        assert choice is not None and choice.prefill in PREFILLS and choice.decode is DECODES[0]
    choice = pairer.pick([*everybody, UNIFIED], NEED, {}, {p0, p1, d0})
    assert choice is not None and choice.decode is UNIFIED, "a whole pair to trust goes before half of one"
    alone = pairer.pick([UNIFIED], NEED, {}, {UNIFIED.key})
    assert alone is not None and alone.decode is UNIFIED


# ---- what workers have cached ----

HASHES = tuple(bytes([number]) * 8 for number in range(16))
LONG = Need(prompt_tokens=16 * STRIDE + 10, num_choices=1, max_tokens=100, prefixes=HASHES)


def holder(worker_id: str, role: Role, num_held: int = 0, **fields: Any) -> Member:
    """A worker that has cached the first `num_held` of HASHES."""
    sizes = {"max_total_tokens": 100_000, "max_running_requests": 64, "margin": 50}
    found = Member(register(worker_id, 1, role, **(sizes | fields)), STATS, 0.0)
    found.prefixes.learn(CacheNews(added=HASHES[:num_held]))
    return found


def two_of_each(num_held: int) -> list[Member]:
    """Two pairs. The first worker of each role has cached something."""
    roles = (Role.PREFILL, Role.DECODE)
    return [holder(f"{role}{each}", role, 0 if each else num_held) for role in roles for each in range(2)]


def pick(members: list[Member], book: Loads, need: Need = LONG, pairer: Pairer | None = None) -> Pair:
    found = (pairer or Pairer("prefix_aware")).pick(members, need, book)
    assert found is not None
    return found


@pytest.mark.parametrize("turn", [0, 1])
def test_a_prompt_goes_where_most_of_it_is_cached(turn: int) -> None:
    pairer = Pairer("prefix_aware")
    pairer._turn = turn
    p0, p1 = holder("p0", Role.PREFILL, 3), holder("p1", Role.PREFILL, 16)
    d0, d1 = holder("d0", Role.DECODE, 8), holder("d1", Role.DECODE, 1)
    assert pick([p0, p1, d0, d1], Loads(), pairer=pairer) == Pair(d0, p1), "each role by what it has itself"
    u0, u1 = holder("u0", Role.UNIFIED, 2), holder("u1", Role.UNIFIED, 5)
    assert pick([u0, u1], Loads(), pairer=pairer) == Pair(u1, None)


def test_prefill_computes_where_the_queue_and_the_rest_are_the_least_work() -> None:
    """1,024 of 1,034 tokens are cached at p1. It is taken until its queue is that much longer, places included."""
    p0, p1, d0 = holder("p0", Role.PREFILL), holder("p1", Role.PREFILL, 16), holder("d0", Role.DECODE)
    for queued, other, taken in ((959, 0, p1), (961, 0, p0), (9000, 8000, p1), (9100, 8000, p0)):
        book = Loads({p1.key: Load(1, queued)} | ({p0.key: Load(1, other)} if other else {}))
        assert pick([p0, p1, d0], book).prefill is taken, queued
    for rows, taken in ((15, p1), (16, p0)):
        book = Loads({p1.key: Load(rows, rows)})
        assert pick([p0, p1, d0], book).prefill is taken, "prompts that are cached take places in launches, too"


def test_a_hit_counts_for_nothing_where_the_request_would_wait() -> None:
    d0, d1, p0 = holder("d0", Role.DECODE, 16), holder("d1", Role.DECODE), holder("p0", Role.PREFILL)
    book = Loads({d0.key: Load(64, 5000), d1.key: Load(40, 5000)})
    assert pick([p0, d0, d1], book).decode is d1, "no row is free"
    book = Loads({d0.key: Load(1, 99_500), d1.key: Load(1, 60_000)})
    assert pick([p0, d0, d1], book).decode is d1, "no memory is free"
    book = Loads({d0.key: Load(40, 5000), d1.key: Load(30, 5000)})
    assert pick([p0, d0, d1], book).decode is d0


def test_a_longer_hit_never_makes_a_worker_dearer_and_load_never_cheaper() -> None:
    for role in Role:
        costs = [cost(holder("w", role, held), LONG, Load(3, 3000)) for held in range(17)]
        assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1] > 0
        costs = [cost(holder("w", role, 9), LONG, Load(rows, 500 * rows)) for rows in range(300)]
        assert costs == sorted(costs) and costs[-1] > 1


def test_without_hits_the_least_loaded_is_taken() -> None:
    """What other prompts have cached does not matter."""
    other = Need(500, 1, 100, (b"unknown!",))
    members = two_of_each(16)
    assert picks_of(members, other) == {"decode0": 4, "decode1": 4}
    assert picks_of(members, replace(LONG, prefixes=())) == {"decode0": 4, "decode1": 4}


def picks_of(members: list[Member], need: Need) -> dict[str, int]:
    pairer = Pairer("prefix_aware")
    return dict(Counter(pick(members, Loads(), need, pairer).decode.key.worker_id for _ in range(8)))


def test_a_prompt_that_is_cached_as_a_whole_still_counts() -> None:
    need = replace(LONG, prompt_tokens=16 * STRIDE)
    assert prefill_load(need, holder("p0", Role.PREFILL, 16)) == Load(1, 1)


def test_decode_counts_what_its_worker_keeps_room_for() -> None:
    """A chat without max_tokens may fill the context, but does not when it begins."""
    worker = holder("d0", Role.DECODE, margin=512)
    assert decode_load(Need(100, 1, 90_000), worker) == Load(1, 612)
    assert decode_load(Need(100, 3, 90_000), worker) == Load(3, 100 + 3 * 512)
    assert decode_load(Need(100, 3, 20), worker) == Load(3, 160)
    assert one_choice_less(Load(3, 160), Need(100, 3, 20)) == Load(2, 140)


def test_contexts_that_have_grown_count_as_their_worker_says() -> None:
    full = WorkerStats(KvPages(6250, free=100, cached=150, owned=5500, reserved=300, quarantined=200), 10, 0)
    d0, d1, p0 = holder("d0", Role.DECODE), replace(holder("d1", Role.DECODE), stats=full), holder("p0", Role.PREFILL)
    book = Loads({d0.key: Load(12, 12_000), d1.key: Load(10, 10_000)})
    assert pick([p0, d0, d1], book).decode is d0
    cached = replace(d1, stats=WorkerStats(KvPages(6250, cached=6250, free=0), 10, 0))
    assert pick([p0, d0, cached], book).decode is cached, "cached pages count as free"
