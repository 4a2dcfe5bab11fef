"""Log-probabilities as a completion and a chat tell them."""

from gateway.dialects.openai.score_shapes import ChatLogprobWriter, CompletionLogprobWriter
from gateway.text.detokenizer import TokenBytes
from gateway.words.scored import ScoredToken
from protocol.logprobs import TokenLogprob
from tests.gateway.folders import byte_tokenizer

TOKEN_BYTES = TokenBytes(byte_tokenizer(), frozenset({256, 257, 258}))


def test_shapes_of_openai() -> None:
    tokens = [
        ScoredToken(97, 0, TokenLogprob(-0.5, 1, ((97, -0.5), (0xC3, float("-inf"))))),
        ScoredToken(98, 1, TokenLogprob(-3.0, 7, ((97, -0.25),))),
    ]
    writer = CompletionLogprobWriter(TOKEN_BYTES.__getitem__)
    assert writer.write(tokens) == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"a": -0.5, "bytes:\\xc3": -9999.0}, {"a": -0.25, "b": -3.0}],
        "text_offset": [0, 1],
    }
    chat = ChatLogprobWriter(TOKEN_BYTES.__getitem__).write(tokens)
    part = {"token": "bytes:\\xc3", "logprob": -9999.0, "bytes": [0xC3]}
    assert chat["content"][0]["top_logprobs"] == [{"token": "a", "logprob": -0.5, "bytes": [97]}, part]
    assert chat["content"][1]["token"] == "b" and len(chat["content"]) == 2 and chat["refusal"] is None
    assert CompletionLogprobWriter(TOKEN_BYTES.__getitem__, as_ids=True).write(tokens)["tokens"] == [
        "token_id:97",
        "token_id:98",
    ]
