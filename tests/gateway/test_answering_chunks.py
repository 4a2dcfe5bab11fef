"""Chunks as bytes: what is rendered beforehand is what would be rendered each time."""

import orjson
import pytest

from gateway.choice_text import Piece
from gateway.generation import usage_of
from gateway.openai_answer import ChunkWriter, ResponseHead

USAGE = usage_of(3, 4, 2)
TEXTS = ["first", 'say "hi"\n', "", "\u2028é\x00", "last"]


def chunks(
    is_chat: bool, with_ids: bool, include_usage: bool, continuous: bool, token_ids: tuple[int, ...]
) -> list[bytes]:
    """Two choices in turn; the last piece of each has its finish."""
    head = ResponseHead("r-1", 7, "m", is_chat, with_ids)
    writer = ChunkWriter(head, include_usage, continuous)
    found = []
    for text in TEXTS:
        finish = "stop" if text == TEXTS[-1] else None
        found += [
            writer.chunk(index, Piece(text, token_ids, finish), USAGE if continuous else None) for index in (0, 11)
        ]
    return found


@pytest.mark.parametrize("include_usage, continuous", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("token_ids", [(5,), (5, 60, 7), ()])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("is_chat", [False, True])
def test_every_chunk_is_what_clients_expect(
    is_chat: bool, with_ids: bool, token_ids: tuple[int, ...], include_usage: bool, continuous: bool
) -> None:
    found = iter(chunks(is_chat, with_ids, include_usage, continuous, token_ids))
    for place, text in enumerate(TEXTS):
        for index in (0, 11):
            choice: dict[str, object] = {"index": index}
            if is_chat:
                first = {"role": "assistant", "content": text, "refusal": None}
                choice["delta"] = first if place == 0 else {"content": text}
            else:
                choice["text"] = text
            choice |= {"logprobs": None, "finish_reason": "stop" if text == TEXTS[-1] else None}
            if with_ids:
                choice["token_ids"] = list(token_ids)
            expected: dict[str, object] = {
                "id": "r-1",
                "object": "chat.completion.chunk" if is_chat else "text_completion",
                "created": 7,
                "model": "m",
                "choices": [choice],
            }
            if include_usage:
                expected["usage"] = USAGE if continuous else None
            assert next(found) == b"data: " + orjson.dumps(expected) + b"\n\n"
