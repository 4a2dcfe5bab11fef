from gateway.generation.call_prompts import EchoedTokens
from gateway.routing.prompt_scores import PromptPart
from gateway.text.detokenizer import ByteDetokenizer, TokenBytes
from gateway.text.echo import echo_of
from protocol.logprobs import PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import PromptLogprobs
from testkit.fake_worker import prompt_scores
from tests.gateway.folders import byte_tokenizer

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


def detokenizer() -> ByteDetokenizer:
    return ByteDetokenizer(TOKEN_BYTES, ())


def test_echoed_tokens() -> None:
    tokens = EchoedTokens(part_of(news(1, 6)), echo_of(None, IDS, detokenizer(), 1))
    found = list(tokens)
    assert len(tokens) == 6 and [each.token_id for each in found] == list(IDS)
    assert [each.offset for each in found] == [0, 1, 2, 3, 4, 5]
    assert found[0].scored is None and found[2].scored == scores(2, 3, 1)[0]
    assert found[2] in tokens
