from gateway.routing.attempt_loads import AttemptLoads
from gateway.routing.members import Member
from gateway.routing.pairing import Load, Need, Pair, decode_load, prefill_load
from gateway.routing.requests import Attempt
from protocol.messages_gateway import Role
from tests.gateway.modelled_fleet import registered, stats

PREFILL, DECODE, UNIFIED = (
    Member(registered(str(role), 1, role), stats(0), 0.0) for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED)
)
NEED = Need(prompt_tokens=10, num_choices=3, max_tokens=6)


def test_a_pair_is_loaded_until_the_first_token_and_the_end() -> None:
    loads, attempt = AttemptLoads(), Attempt(0, range(3), NEED, DECODE.key, PREFILL.key)
    loads.begin(attempt, Pair(DECODE, PREFILL))
    whole = decode_load(NEED, DECODE)
    assert loads == {PREFILL.key: prefill_load(NEED, PREFILL), DECODE.key: whole}
    for _ in range(2):
        loads.first_token(attempt)
        assert loads == {DECODE.key: whole}, "prefill is done after the first token"
    loads.one_choice_less(attempt)
    assert loads == {DECODE.key: attempt.decode_load} and attempt.decode_load < whole
    loads.end(attempt)
    assert loads == {}


def test_an_attempt_that_ends_before_its_first_token_leaves_nothing() -> None:
    loads, attempt = AttemptLoads(), Attempt(0, range(3), NEED, DECODE.key, PREFILL.key)
    loads.begin(attempt, Pair(DECODE, PREFILL))
    loads.end(attempt)
    assert loads == {}


def test_a_unified_worker_is_loaded_as_one_that_decodes() -> None:
    loads, attempt = AttemptLoads(), Attempt(0, range(3), NEED, UNIFIED.key, None)
    loads.add(UNIFIED.key, Load(1, 50))
    loads.begin(attempt, Pair(UNIFIED, None))
    loads.first_token(attempt)
    assert attempt.decode_load.rows == 3 and loads[UNIFIED.key].rows == 4
    loads.end(attempt)
    assert loads == {UNIFIED.key: Load(1, 50)}
