import pytest

from gateway.routing.prompt_scores import PromptPart
from protocol.errors import WireError
from protocol.logprobs import PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import PromptLogprobs
from testkit.fake_worker import prompt_scores

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
