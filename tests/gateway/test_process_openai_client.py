"""The public `openai` client, sync and async, streaming and not."""

import asyncio

import pytest

pytest.importorskip("openai", reason="the package `openai` is not installed")

import openai

from testkit.fake_worker import Behaviour
from tests.gateway.conftest import Setting
from tests.gateway.folders import EOS

TEXT = "Once upon a time"


@pytest.fixture
async def served(setting: Setting) -> Setting:
    await setting.add_pair(Behaviour(lambda assign, choice: [*TEXT.encode(), EOS][: assign.sampling.max_tokens]))
    return setting


def ask_sync(url: str) -> list[str]:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        whole = client.completions.create(model=model, prompt="x", max_tokens=99)
        parts = client.completions.create(model=model, prompt="x", max_tokens=99, stream=True)
        streamed = "".join(part.choices[0].text for part in parts)
        chat = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}])
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=model, prompt="x", temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")
        return [whole.choices[0].text, streamed, chat.choices[0].message.content or ""]


async def test_sync(served: Setting) -> None:
    assert await asyncio.to_thread(ask_sync, served.gateway.url) == [TEXT] * 3


async def test_async(served: Setting) -> None:
    async with openai.AsyncOpenAI(base_url=served.gateway.url + "/v1", api_key="none", max_retries=0) as client:
        whole = await client.completions.create(model="story", prompt=[1, 2], max_tokens=4, n=2)
        assert [choice.text for choice in whole.choices] == ["Once", "Once"]
        assert whole.usage is not None and whole.usage.total_tokens == 10
        content = ""
        stream = await client.chat.completions.create(
            model="story",
            messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for part in stream:
            if part.choices:
                content += part.choices[0].delta.content or ""
            else:
                assert part.usage is not None and part.usage.completion_tokens == len(TEXT) + 1
        assert content == TEXT
