"""Streams of workers that draw several tokens in one launch."""

from collections import Counter
from typing import Any

from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting, chunks_of


async def test_a_run_of_tokens_is_one_chunk_and_usage_counts_its_tokens(setting: Setting) -> None:
    await setting.add_pair(Behaviour(burst=4))
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields: dict[str, Any] = {"stream": True, "stream_options": options, "return_token_ids": True}
    response = await setting.complete("xy", max_tokens=9, n=2, **fields)
    *chunks, last = chunks_of(response.text)
    shown = Counter[int]()
    for chunk in chunks:
        [choice] = chunk["choices"]
        shown[choice["index"]] += len(choice["token_ids"])
        assert len(choice["text"]) == len(choice["token_ids"]), "the text of these tokens"
        assert chunk["usage"]["completion_tokens"] == shown.total()
    assert shown == {0: 9, 1: 9} and len(chunks) < 10
    assert {chunk["usage"]["prompt_tokens"] for chunk in [*chunks, last]} == {2}
    assert last["usage"]["completion_tokens"] == 18
