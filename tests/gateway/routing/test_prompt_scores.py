"""What an answer tells of its prompt, without a gateway."""

import pytest

from gateway.dialects.openai.score_shapes import PromptWriter
from gateway.generation.call_prompts import EchoedTokens
from gateway.routing.prompt_scores import PromptPart
from gateway.text.choice_text import ByteDetokenizer, Detokenizer, TokenBytes
from gateway.text.echo import echo_of
from protocol.errors import WireError
from protocol.logprobs import PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import PromptLogprobs
from testkit.fake_worker import prompt_scores
from tests.gateway.folders import BOS, byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))
IDS = (10, 20, 30, 40, 50, 60)
ASKED = PromptLogprobsAsked(2)


def scores(start: int, end: int, num_top: int = 2) -> tuple[TokenLogprob, ...]:
    return prompt_scores(IDS[start:end], start, PromptLogprobsAsked(num_top))


def news(start: int, end: int, num_top: int = 2) -> PromptLogprobs:
    return PromptLogprobs("r", 0, start, of_tokens(scores(start, end, num_top)))


def part_of(*messages: PromptLogprobs, asked: PromptLogprobsAsked = ASKED) -> PromptPart:
    part = PromptPart(asked, IDS)
    for message in messages:
        part.accept(message)
    return part


def test_pieces_become_whole() -> None:
    part = part_of(news(1, 3))
    assert part.missing == PromptLogprobsAsked(2, 3)
    part.accept(news(3, 6))
    assert part.missing is None and len(part) == 6
    assert list(part.tokens(2)) == [None, *scores(1, 6)]
    assert [scored and scored.top for scored in part.tokens(1)] == [None, *(each.top[:1] for each in scores(1, 6))]


def test_what_comes_again_counts_once() -> None:
    part = part_of(news(1, 3), news(1, 3), news(2, 5), news(1, 6), news(1, 2))
    assert list(part.tokens(2)) == [None, *scores(1, 6)]


def test_a_part_of_the_prompt() -> None:
    part = part_of(asked=PromptLogprobsAsked(2, 4))
    assert part.missing == PromptLogprobsAsked(2, 4)
    part.accept(news(4, 6))
    assert part.missing is None and list(part.tokens(0))[:4] == [None] * 4 and len(list(part.tokens(0))) == 6


def test_a_prompt_of_one_token_needs_nothing() -> None:
    part = PromptPart(ASKED, (7,))
    assert part.missing is None and list(part.tokens(2)) == [None]


@pytest.mark.parametrize(
    "wrong",
    [
        news(3, 4),
        news(0, 2),
        PromptLogprobs("r", 0, 1, of_tokens(prompt_scores((5,) * 6, 1, ASKED))),
        news(1, 3, num_top=3),
        PromptLogprobs("r", 0, 1, of_tokens((TokenLogprob(float("nan"), 1, ()),))),
    ],
    ids=["a gap", "the first token", "too many", "more than asked for", "no number"],
)
def test_nonsense_is_refused(wrong: PromptLogprobs) -> None:
    part = part_of()
    with pytest.raises(WireError):
        part.accept(wrong)
    assert part.missing == ASKED


def detokenizer() -> ByteDetokenizer:
    return ByteDetokenizer(TOKEN_BYTES, ())


def test_the_echo_of_a_text_is_that_text() -> None:
    ids = (BOS, *"aé".encode())
    assert echo_of("aé", ids, detokenizer(), None).text == "aé"
    echo = echo_of("aé", ids, detokenizer(), 3)
    assert (echo.text, echo.offsets, echo.num_top) == ("aé", (0, 0, 1, 1), 3)


def test_the_echo_of_ids_is_their_text() -> None:
    echo = echo_of(None, tuple(b"ab\xc3"), detokenizer(), 0)
    assert (echo.text, echo.offsets) == ("ab", (0, 1, 2)), "the answer shows the character that is not complete"
    without = echo_of(None, (5, 6), Detokenizer(), 0)
    assert (without.text, without.offsets) == ("", (0, 0)), "without a tokenizer nothing has text"


def test_offsets_never_pass_the_text() -> None:
    assert echo_of("a", tuple(b"abc"), detokenizer(), 0).offsets == (0, 1, 1)


def test_echoed_tokens() -> None:
    tokens = EchoedTokens(part_of(news(1, 6)), echo_of(None, IDS, detokenizer(), 1))
    found = list(tokens)
    assert len(tokens) == 6 and [each.token_id for each in found] == list(IDS)
    assert [each.offset for each in found] == [0, 1, 2, 3, 4, 5]
    assert found[0].scored is None and found[2].scored == scores(2, 3, 1)[0]
    assert found[2] in tokens


def test_the_shape_of_vllm() -> None:
    part = PromptPart(ASKED, (97, 98, 0xC3))
    part.accept(
        PromptLogprobs(
            "r",
            0,
            1,
            of_tokens(
                (
                    TokenLogprob(-0.5, 1, ((98, -0.5), (99, -2.0))),
                    TokenLogprob(float("-inf"), 9, ((98, -0.25), (99, -3.0))),
                )
            ),
        )
    )
    first = {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert list(PromptWriter(2, TOKEN_BYTES.__getitem__).entries(part)) == [
        None,
        {"98": first, "99": {"logprob": -2.0, "rank": 2, "decoded_token": "c"}},
        {
            str(0xC3): {"logprob": -9999.0, "rank": 9, "decoded_token": "\ufffd"},
            "98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"},
            "99": {"logprob": -3.0, "rank": 2, "decoded_token": "c"},
        },
    ]
    assert list(PromptWriter(0, lambda _: None).entries(part))[1] == {"98": first | {"decoded_token": None}}
