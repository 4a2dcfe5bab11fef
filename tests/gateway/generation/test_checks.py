from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.shared.json_body import check_list
from gateway.generation.checks import UNKNOWN_REST, max_tokens, prompt_too_long
from gateway.generation.translate import Translator
from gateway.routing.members import Member
from gateway.routing.pairing import Need
from gateway.routing.pool_limits import limits_of
from gateway.text.chat_template import ChatTemplates
from gateway.text.model_folder import read_model_folder
from gateway.words.limits import ContextLengthExceeded, Limits
from gateway.words.places import PROMPTS
from gateway.words.request import Ask, PromptIds
from protocol.errors import BadRequest
from protocol.fingerprint import Fingerprint
from protocol.kv_layout import KvLayout, LayerGroup
from protocol.messages_gateway import Register, Role, WorkerAddress
from protocol.worker_facts import KvPages, WorkerStats
from tests.gateway.folders import write_folder

LIMITS = Limits(context_length=100, vocab_size=50, pool_tokens=160, prefill_pool_tokens=160, page_size=16)


def test_what_is_asked_is_given() -> None:
    assert max_tokens(60, 40, 16, 1, PROMPTS, LIMITS) == 40


@given(st.integers(1, 300), st.integers(1, 3), st.sampled_from([None, 20, 100]), st.sampled_from([None, 40, 120]))
def test_who_sent_no_max_tokens_hears_nothing_of_it(
    num_prompt: int, num_choices: int, context: int | None, pool: int | None
) -> None:
    limits = Limits(context_length=context, pool_tokens=pool, page_size=4)
    told: ContextLengthExceeded | None = None
    try:
        max_tokens(num_prompt, None, 16, num_choices, PROMPTS, limits)
    except ContextLengthExceeded as error:
        told = error
    if told is not None:
        assert told.param == "prompts" and "max_tokens" not in told.message
        assert context is None or told.message.startswith(f"This model's maximum context length is {context} tokens")


def test_defaults_shrink_to_what_is_left() -> None:
    assert max_tokens(60, None, 16, 1, PROMPTS, LIMITS) == 16
    assert max_tokens(90, None, 16, 1, PROMPTS, LIMITS) == 10
    assert max_tokens(60, None, None, 1, PROMPTS, LIMITS) == 40
    assert max_tokens(60, None, None, 1, PROMPTS, Limits()) == UNKNOWN_REST
    assert max_tokens(60, None, None, 4, PROMPTS, LIMITS) == 16 - 12 + 1  # one page each


def test_more_than_the_pool() -> None:
    with pytest.raises(
        BadRequest, match=r"can hold 160 tokens, but prompts has 60 tokens and max_tokens is 40 for each of 4"
    ):
        max_tokens(60, 40, 16, 4, PROMPTS, LIMITS)
    with pytest.raises(BadRequest, match="KV memory"):
        max_tokens(60, None, 16, 1, PROMPTS, Limits(context_length=100, pool_tokens=32, page_size=16))
    with pytest.raises(BadRequest, match="KV memory"):
        max_tokens(60, None, 16, 1, PROMPTS, Limits(pool_tokens=320, prefill_pool_tokens=32, page_size=16))


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


def test_a_list_that_is_too_long_whatever_is_in_it() -> None:
    prompts: list[object] = [[1] * 100, ["a"] * 101, [[1]] * 101, "a" * 101, {}, None, [], 5]
    for prompt in prompts:
        check_list(prompt, LIMITS)
    check_list([1] * 101, Limits())
    with pytest.raises(BadRequest, match="context length is 100 tokens, but prompt has 101 tokens") as caught:
        check_list([1] * 101, LIMITS)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize(
    ("limits", "longest"),
    [
        (Limits(), None),
        (Limits(context_length=100), 100),
        (Limits(context_length=100, pool_tokens=99, page_size=16), 99),
        (Limits(context_length=100, pool_tokens=200, prefill_pool_tokens=50, page_size=16), 50),
    ],
)
def test_a_prompt_beyond_the_longest_could_never_be_served(limits: Limits, longest: int | None) -> None:
    assert limits.longest_prompt == longest
    if longest is not None:
        with pytest.raises(ContextLengthExceeded):
            max_tokens(longest + 1, 1, 16, 1, PROMPTS, limits)
        told = prompt_too_long((*PROMPTS, 3), 7, limits)
        assert told.param == "prompts" and f"prompts[3] has 7 characters, more than {longest} tokens" in told.message


def many(num_prompts: int, n: int = 1) -> Ask:
    return Ask([PromptIds([1])] * num_prompts, num_choices=n, max_tokens=1)


@pytest.mark.parametrize(("num_prompts", "n"), [(8 + 3 + 8 + 3, 1), (4 + 3 + 4 + 3, 2), (3 + 3, 9)])
def test_more_prompts_than_all_workers_can_ever_hold_are_refused(num_prompts: int, n: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    translator = Translator(read_model_folder(folder), None, ChatTemplates({}, {}))
    limits = Limits(places=((8, 3), (8, 3)))
    assert len(translator.all_prompts([many(num_prompts, n)], limits, [""])) == num_prompts
    each = f" of {n} choices each" if n > 1 else ""
    words = f"prompts: got {num_prompts + 1} prompts{each}, expected at most {num_prompts}, which the workers run"
    with pytest.raises(BadRequest, match=words) as caught:
        translator.all_prompts([many(num_prompts - 1, n), many(2, n)], limits, ["", ""])
    assert caught.value.param == "prompts"


def test_places_are_those_of_the_workers_that_decode() -> None:
    members = (member(Role.DECODE, 4, 60), member(Role.UNIFIED, 4, 60), member(Role.PREFILL, 4, 60))
    assert limits_of(members, Limits()).places == ((8, 2048), (8, 2048))
    assert limits_of(members[2:], Limits()).prompts_at_once(1) is None
