"""Pure: when another prefill worker learns a prefix, as the pairing decides it. No clock and no load."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing import hot_prefixes
from gateway.routing.hot_prefixes import LAUNCH_TOKENS, HotPrefixes
from gateway.routing.members import Member, WorkerKey
from gateway.routing.pairing import Need, Pairer
from protocol.messages_gateway import Role
from protocol.prefixes import STRIDE
from protocol.worker_facts import CacheNews
from tests.gateway.modelled_fleet import registered

A, B, C = (WorkerKey(name, 1) for name in "abc")
PREFIX = (b"one", b"two", b"all")  # of a prompt of 200 tokens
HELD_BY_A = {A: 3 * STRIDE, B: 0}


def hashes(name: int, num: int) -> tuple[bytes, ...]:
    return tuple(f"{name}:{number}".encode() for number in range(num))


@dataclass
class Asking:
    """Requests one after the other. Each worker learns at once what it has computed."""

    num_prefill: int = 2
    members: list[Member] = field(default_factory=list)
    pairer: Pairer = field(default_factory=lambda: Pairer("prefix_aware"))
    num_learned: int = 0  # tokens that a worker computed although another one had them
    work: int = 0  # of all requests, at the worker that had most of them

    def __post_init__(self) -> None:
        for role, num in ((Role.PREFILL, self.num_prefill), (Role.DECODE, 1)):
            self.members += [self.joined(f"{role}{number}", role) for number in range(num)]

    @staticmethod
    def joined(worker_id: str, role: Role = Role.PREFILL) -> Member:
        register = registered(worker_id, 1, role)
        return Member(register, register.stats, 0.0)

    def ask(self, shared: tuple[bytes, ...], rest: int, own: tuple[bytes, ...] = ()) -> str:
        """A request with the prefixes `shared`, then `own`, then `rest` tokens. Returns its prefill worker."""
        prefixes = (*shared, *own)
        need = Need(len(prefixes) * STRIDE + rest, 1, 8, prefixes)
        most = max(each.prefixes.longest(prefixes) for each in self.members if each.role is Role.PREFILL)
        pair = self.pairer.pick(self.members, need, {})
        assert pair is not None and pair.prefill is not None
        self.work += LAUNCH_TOKENS + need.prompt_tokens - most
        self.num_learned += most - pair.prefill.prefixes.longest(prefixes)
        pair.prefill.prefixes.learn(CacheNews(added=prefixes))
        return pair.prefill.key.worker_id


# ---- debts ----


def test_a_prefix_owes_what_its_worker_does_beyond_its_part() -> None:
    hot = HotPrefixes()
    for number in range(1, 4):
        hot.note(A, 44, HELD_BY_A, PREFIX)
        assert hot.discounts(HELD_BY_A, PREFIX) == {B: 300 * number}


def test_a_prefix_of_a_worker_that_does_its_part_owes_nothing() -> None:
    hot = HotPrefixes()
    for _ in range(20):
        hot.note(B, 44, {A: 0, B: 0}, ())
        hot.note(A, 44, HELD_BY_A, PREFIX)
    assert hot.discounts(HELD_BY_A, PREFIX) == {}


def test_the_debt_is_paid_by_the_worker_that_learns() -> None:
    hot = HotPrefixes()
    hot.note(A, 44, HELD_BY_A, PREFIX)
    hot.note(B, 300, HELD_BY_A, PREFIX)
    assert hot.discounts(HELD_BY_A, PREFIX) == {}


def test_each_prefix_owes_for_itself() -> None:
    """The turns of a chat end with a longer prefix each time, so none of them owes for more than one request."""
    hot = HotPrefixes()
    for num in (1, 2, 3):
        hot.note(A, 44, {A: num * STRIDE, B: 0}, PREFIX)
    for num in (1, 2, 3):
        assert hot.discounts({A: num * STRIDE, B: 0}, PREFIX) == {B: 300}


def test_only_those_that_lack_it_get_something_off() -> None:
    hot, held = HotPrefixes(), {A: 3 * STRIDE, B: 3 * STRIDE, C: STRIDE}
    hot.note(A, 44, held, PREFIX)
    assert hot.discounts(held, PREFIX) == {C: 300}
    assert hot.discounts({}, PREFIX) == hot.discounts({A: 0, B: 0}, PREFIX) == {}


def test_the_number_of_debts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_prefixes, "MOST_DEBTS", 2)
    hot, held = HotPrefixes(), {A: STRIDE, B: 0}
    for prefix in (b"one", b"two", b"one", b"three"):
        hot.note(A, 44, held, (prefix,))
    owed = [hot.discounts(held, (prefix,)).get(B) for prefix in (b"one", b"two", b"three")]
    assert owed == [600, None, 300], "the one that was used longest ago is forgotten"


def test_work_of_long_ago_does_not_count() -> None:
    """A worker that has joined is not held to have done too little for ever, nor an old one too much."""
    hot = HotPrefixes()
    for _ in range(1000):
        hot.note(A, 44, {A: 0}, ())
    for _ in range(300):
        hot.note(A, 44, {A: 0, B: 0}, ())
        hot.note(B, 44, {A: 0, B: 0}, ())
    hot.note(A, 44, HELD_BY_A, PREFIX)
    assert hot.discounts(HELD_BY_A, PREFIX) == {}


# ---- properties ----


@settings(max_examples=30)
@given(num_workers=st.integers(2, 4), num_shared=st.integers(1, 40), rest=st.integers(1, 63))
def test_all_of_a_few_workers_learn_a_hot_prefix_and_then_take_turns(
    num_workers: int, num_shared: int, rest: int
) -> None:
    asking, prefix = Asking(num_workers), hashes(0, num_shared)
    most = 2 + num_shared * STRIDE // (LAUNCH_TOKENS + rest)  # requests until one more worker learns
    for _ in range(most * num_workers):
        asking.ask(prefix, rest)
    assert asking.num_learned <= (num_workers - 1) * num_shared * STRIDE, "each learns it once"
    taken = Counter(asking.ask(prefix, rest) for _ in range(60))
    assert len(taken) == num_workers and max(taken.values()) - min(taken.values()) <= 3


@settings(max_examples=30)
@given(num_shared=st.integers(1, 40), rest=st.integers(1, 63))
def test_a_restarted_worker_learns_a_hot_prefix(num_shared: int, rest: int) -> None:
    asking, prefix = Asking(), hashes(0, num_shared)
    for _ in range(100):
        asking.ask(prefix, rest)
    asking.members[0] = Asking.joined("again")
    for _ in range(2 + num_shared * STRIDE // (LAUNCH_TOKENS + rest)):
        asking.ask(prefix, rest)
    assert 29 <= Counter(asking.ask(prefix, rest) for _ in range(60))["again"] <= 31


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 63)), max_size=100), st.integers(2, 4))
def test_no_more_is_learned_than_was_worked(asked: list[tuple[int, int]], num_workers: int) -> None:
    """Whatever comes: prefix number i has 4 * i + 1 hashes."""
    asking = Asking(num_workers)
    for number, rest in asked:
        asking.ask(hashes(number, 4 * number + 1), rest)
        assert asking.num_learned <= asking.work


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3), st.integers(1, 63)), max_size=80))
def test_a_chat_stays_where_it_began(turns: list[tuple[int, int, int]]) -> None:
    """Each turn of a chat adds to its prompt. However uneven the chats are, none moves while there is no queue."""
    asking, homes, lengths = Asking(), dict[int, str](), Counter[int]()
    for chat, more, rest in turns:
        lengths[chat] += more
        home = asking.ask(hashes(chat, lengths[chat]), rest)
        assert homes.setdefault(chat, home) == home
    assert asking.num_learned == 0
