from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.membership import Loads, Member, Need, Pairer, decode_load, prefill_load
from protocol.messages_gateway import Role
from tests.gateway.test_membership import STATS, register

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


def test_round_robin_reaches_every_pair_equally() -> None:
    found = Counter(picks(Pairer("round_robin"), [*PREFILLS, *DECODES], 8))
    assert found == {(p, d): 2 for p in ("p0", "p1") for d in ("d0", "d1")}


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
    book.add(PREFILLS[0].key, prefill_load(NEED))
    book.add(DECODES[1].key, decode_load(NEED))
    for _ in range(4):
        choice = pairer.pick([*PREFILLS, *DECODES], NEED, book)
        assert choice is not None and choice.prefill is PREFILLS[1] and choice.decode is DECODES[0]


def test_pair_and_unified_compete() -> None:
    book = Loads()
    book.add(UNIFIED.key, decode_load(NEED))
    everybody = [PREFILLS[0], DECODES[0], UNIFIED]
    choice = Pairer("least_loaded").pick(everybody, NEED, book)
    assert choice is not None and choice.decode is DECODES[0]
    for _ in range(2):
        book.add(DECODES[0].key, decode_load(NEED))
    choice = Pairer("least_loaded").pick(everybody, NEED, book)
    assert choice is not None and choice.decode is UNIFIED


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
        book.add(UNIFIED.key, decode_load(Need(*need)))
    for need in reversed(needs):
        book.add(UNIFIED.key, decode_load(Need(*need)), -1)
    assert not book


def test_equal_load_is_spread() -> None:
    pairer, book = Pairer("least_loaded"), Loads()
    taken: Counter[str] = Counter()
    for _ in range(40):
        choice = pairer.pick([*PREFILLS, *DECODES, UNIFIED], NEED, book)
        assert choice is not None
        taken[choice.decode.key.worker_id] += 1
        book.add(choice.decode.key, decode_load(NEED))
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
