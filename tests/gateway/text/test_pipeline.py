from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenizer import ByteDetokenizer, Detokenizer, TokenBytes, WindowDetokenizer
from gateway.text.pipeline import Pipeline
from gateway.text.stop_strings import StopSet
from gateway.words.events import Finish, Reason, Step, TextDelta
from protocol.messages_gateway import FinishReason
from tests.gateway.folders import BOS, END, EOS, byte_tokenizer, piece_tokenizer

SPECIAL = {BOS: "<|bos|>", EOS: "<|eos|>", END: "<|end|>"}
TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset(SPECIAL))
SHOWN_BYTES = TokenBytes(byte_tokenizer(), frozenset())  # special tokens are shown as they are spelt


def step(text: str, token_ids: tuple[int, ...], finish: Finish | None = None) -> Step:
    return Step((TextDelta(text),) if text else (), token_ids, finish)


def stopped_by(matched: str | int) -> Finish:
    return Finish(Reason.STOP, matched)


def new_text(*stops: str, min_tokens: int = 0) -> Pipeline:
    return Pipeline(ByteDetokenizer(TOKEN_BYTES, ()), StopSet(stops), min_tokens)


def test_one_step_for_all_tokens_of_a_delivery() -> None:
    text = new_text()
    assert text.feed((97,), None) == step("a", (97,))
    assert text.feed(tuple(b"bcd"), None) == step("bcd", tuple(b"bcd"))
    assert text.num_tokens == 4


def test_the_ending_token_has_no_text() -> None:
    assert new_text().feed((97, EOS), FinishReason.STOP) == step("a", (97, EOS), stopped_by(EOS))
    assert new_text().feed((98,), FinishReason.STOP) == step("", (98,), stopped_by(98))
    assert new_text().feed((97,), FinishReason.LENGTH) == step("a", (97,), Finish(Reason.LENGTH))


def test_half_a_character_is_shown_at_the_end() -> None:
    text = new_text()
    assert text.feed((97, 0xC3), None) == step("a", (97, 0xC3))
    assert text.feed((0xA9,), None) == step("é", (0xA9,))
    assert text.feed((0xC3,), FinishReason.LENGTH) == step("\ufffd", (0xC3,), Finish(Reason.LENGTH))


def test_a_finish_without_tokens() -> None:
    ended = new_text()
    ended.feed((97,), None)
    assert ended.feed((), FinishReason.STOP) == step("", (), stopped_by(97)), "its worker was lost before it told"

    text = new_text("bc")
    text.feed((97, 98), None)
    assert text.feed((), FinishReason.LENGTH) == step("b", (), Finish(Reason.LENGTH))


def test_stop_string_ends_and_drops_the_rest() -> None:
    text = new_text("bc")
    assert text.feed(tuple(b"abcd"), None) == step("a", tuple(b"abc"), stopped_by("bc"))
    assert text.is_cut and text.num_tokens == 3 and text.finish == stopped_by("bc")


def test_stop_string_at_the_last_token_is_a_stop() -> None:
    assert new_text("b").feed((97, 98), FinishReason.LENGTH) == step("a", (97, 98), stopped_by("b"))


def test_held_text_is_shown_at_the_end() -> None:
    text = new_text("bcd")
    assert text.feed((97, 98), None) == step("a", (97, 98))
    assert text.feed((99,), FinishReason.LENGTH) == step("bc", (99,), Finish(Reason.LENGTH))


def test_min_tokens_come_before_stop_strings() -> None:
    text = new_text("b", min_tokens=3)
    assert text.feed((98,), None) == step("b", (98,))
    assert text.feed(tuple(b"bbb"), None) == step("b", (98, 98), stopped_by("b"))


def test_a_stop_string_within_min_tokens_is_read_and_shown_and_may_end_later() -> None:
    within = new_text("ab", min_tokens=3)
    assert [within.feed((token_id,), None).text for token_id in b"abca"] == ["", "ab", "c", ""]
    assert within.feed(tuple(b"b"), None) == step("", (98,), stopped_by("ab")) and within.num_tokens == 5

    across = new_text("bcd", min_tokens=3)
    assert "".join(across.feed((token_id,), None).text for token_id in b"abcd") == "a"
    assert across.finish == stopped_by("bcd")


@pytest.mark.parametrize("stop", ["<|end|>", "b<|end|>", "<|end|>c", "<|end|><|bos|>", "|end|"])
def test_a_stop_string_is_found_in_the_text_of_special_tokens_that_is_not_shown(stop: str) -> None:
    token_ids = (97, 98, END, *((BOS,) if "bos" in stop else ()), 99, 100)
    text = new_text(stop)
    last = text.feed(token_ids, None)
    assert text.finish == last.finish == stopped_by(stop) and text.is_cut
    assert last.text == ("a" if stop.startswith("b") else "ab")
    assert last.token_ids == token_ids[: -2 + stop.endswith("c")]


def test_a_special_token_that_ends_the_choice_is_no_stop_string() -> None:
    text = new_text("<|eos|>")
    assert text.feed((97, EOS), FinishReason.STOP) == step("a", (97, EOS), stopped_by(EOS))
    assert not text.is_cut, "it ended by itself"


def test_special_tokens_are_stop_strings_of_other_vocabularies_too() -> None:
    tokenizer = piece_tokenizer()
    end, he, llo = (tokenizer.get_vocab()[token] for token in ("</s>", "▁he", "llo"))
    text = Pipeline(WindowDetokenizer(tokenizer, frozenset({end}), ()), StopSet(["</s>"]), 0)
    assert text.feed((he, llo, end, he), None) == step("hello", (he, llo, end), stopped_by("</s>"))
    assert Detokenizer().hidden_text(end) == ""


strings = st.lists(st.text("ab|<>end", min_size=1, max_size=4) | st.sampled_from([*SPECIAL.values()]), max_size=3)


def ended(text: Pipeline, deliveries: list[tuple[int, ...]], finish: FinishReason) -> tuple[str, int, Finish | None]:
    """What a choice has shown, when it has ended."""
    shown = ""
    for place, token_ids in enumerate(deliveries, start=1):
        if text.finish is None:
            shown += text.feed(token_ids, finish if place == len(deliveries) else None).text
    return shown, text.num_tokens, text.finish


@given(
    st.lists(st.sampled_from([*b"ab", *SPECIAL]), min_size=1, max_size=14),
    strings,
    st.integers(0, 8),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.sets(st.integers(1, 13)),
)
def test_a_choice_ends_where_it_would_if_special_tokens_were_shown(
    token_ids: list[int], stops: list[str], min_tokens: int, finish: FinishReason, cuts: set[int]
) -> None:
    places = [0, *(cut for cut in sorted(cuts) if cut < len(token_ids)), len(token_ids)]
    deliveries = [tuple(token_ids[start:end]) for start, end in pairwise(places)]

    def choice(vocabulary: TokenBytes) -> Pipeline:
        return Pipeline(ByteDetokenizer(vocabulary, ()), StopSet(stops), min_tokens)

    shown, num_tokens, found = ended(choice(TOKEN_BYTES), deliveries, finish)
    whole, *where = ended(choice(SHOWN_BYTES), deliveries, finish)
    is_cut = found is not None and isinstance(found.matched, str)
    assert [num_tokens, found] == where and (not is_cut or num_tokens >= min_tokens)
    assert ended(choice(TOKEN_BYTES), [tuple(token_ids)], finish) == (shown, num_tokens, found), "deliveries differ"

    if not is_cut:
        for special in SPECIAL.values():
            whole = whole.replace(special, "")
        assert shown == whole
