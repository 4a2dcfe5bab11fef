from gateway.dialects.openai.score_shapes import PromptWriter
from gateway.routing.prompt_scores import PromptPart
from gateway.text.detokenizer import TokenBytes
from protocol.logprobs import PromptLogprobsAsked, TokenLogprob, of_tokens
from protocol.messages_gateway import PromptLogprobs
from tests.gateway.folders import byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))


ASKED = PromptLogprobsAsked(2)


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
