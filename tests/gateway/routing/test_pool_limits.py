from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.members import Member
from gateway.routing.pairing import Need
from gateway.routing.pool_limits import limits_of
from gateway.words.limits import Limits
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout, LayerGroup
from protocol.messages_gateway import Register, Role, WorkerAddress
from protocol.worker_facts import KvPages, WorkerStats

WORKERS = st.lists(st.tuples(st.sampled_from([1, 3, 4, 16]), st.integers(1, 60)), min_size=1, max_size=3)


@given(st.integers(1, 100), st.integers(1, 5), WORKERS, WORKERS, st.integers(0, 2))
def test_what_there_is_room_for_fits_a_worker_whatever_its_page_size(
    num_prompt: int, num_choices: int, decodes: list[tuple[int, int]], prefills: list[tuple[int, int]], lookahead: int
) -> None:
    members = [member(Role.DECODE, *each, lookahead) for each in decodes]
    members += [member(Role.PREFILL, *each, lookahead) for each in prefills]
    room = limits_of(tuple(members), Limits()).room(num_prompt, num_choices)
    assert room is not None
    if room >= 1:
        need = Need(num_prompt, num_choices, room)
        assert {each.role for each in members if need.fits(each)} == {Role.DECODE, Role.PREFILL}


def member(role: Role, page_size: int, num_pages: int, lookahead: int = 0) -> Member:
    layout = KvLayout((LayerGroup(1, 1, 4, lookahead),), page_size, "float32")
    pool = num_pages * page_size
    pages = WorkerStats(KvPages(num_pages, num_pages), 0, 0)
    address = WorkerAddress(f"{role}-{page_size}-{num_pages}", 1)
    return Member(
        Register(address, role, 1, "host", layout, Fingerprint("m"), 300, 512, 8, pool, pages, "zmq"), pages, 0.0
    )


def test_places_are_those_of_the_workers_that_decode() -> None:
    members = (member(Role.DECODE, 4, 60), member(Role.UNIFIED, 4, 60), member(Role.PREFILL, 4, 60))
    assert limits_of(members, Limits()).places == ((8, 2048), (8, 2048))
    assert limits_of(members[2:], Limits()).prompts_at_once(1) is None
