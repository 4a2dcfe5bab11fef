"""Whatever JSON a client sends, the answer is a prompt to serve or a BadRequest, never another exception."""

from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.chat_template import ChatTemplates
from gateway.limits import Limits
from gateway.model_folder import ModelFolder
from gateway.pairing import Need
from gateway.schemas import AnyRequest, ChatRequest, CompletionRequest, parse
from gateway.tokenizer import SpecialTokens, TextTokenizer
from gateway.translate import Prompt, Translator
from gateway.unsupported import NEUTRAL, refuse_unsupported
from protocol.errors import BadRequest
from protocol.messages_gateway import SamplingParams
from runtime.model_config import ModelBasics
from tests.gateway.folders import EOS, TEMPLATE, byte_tokenizer

LIMITS = Limits(context_length=64, vocab_size=300, pool_tokens=48, prefill_pool_tokens=64, page_size=4, max_choices=8)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.integers(-2, 9) | st.floats(0, 2) | text
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
messages = st.lists(
    st.fixed_dictionaries({}, optional={"role": roles | text | anything, "content": text | anything, "name": anything}),
    max_size=3,
)
names = [*CompletionRequest.model_fields, *ChatRequest.model_fields, *NEUTRAL, "best_of", "unheard_of"]
fields = st.dictionaries(st.sampled_from(sorted({*names} - {"messages", "prompt", "model"})), anything, max_size=4)


def need_of(prompt: Prompt) -> Need:
    return Need(len(prompt.token_ids), prompt.num_choices, prompt.sampling.max_tokens)


@cache
def translator() -> Translator:
    tokenizer = TextTokenizer(byte_tokenizer(), SpecialTokens({"eos_token": "<|eos|>"}, None, None))
    folder = ModelFolder(Path("story"), ModelBasics(64, 300, (EOS,)), SamplingParams(max_tokens=1))
    return Translator(folder, tokenizer, ChatTemplates({"default": TEMPLATE}, {}))


def prompts_of(kind: type[CompletionRequest] | type[ChatRequest], body: Any) -> list[Prompt]:
    """What the route does before it assigns."""
    try:
        refuse_unsupported(body)
        request: AnyRequest = parse(kind, body)
        return translator().all_prompts([request], LIMITS, [""])
    except BadRequest:
        return []


@given(anything | text | st.lists(st.integers(0, 299), max_size=70), fields)
def test_completions(asked: Any, rest: dict[str, Any]) -> None:
    for prompt in prompts_of(CompletionRequest, {"prompt": asked, **rest}):
        assert prompt.token_ids and len(prompt.token_ids) + prompt.sampling.max_tokens <= 64
        assert need_of(prompt).total_pages(4) <= 12 and 1 <= prompt.num_choices <= 8


@given(messages | anything, fields)
def test_chat(conversation: Any, rest: dict[str, Any]) -> None:
    for prompt in prompts_of(ChatRequest, {"messages": conversation, **rest}):
        assert prompt.token_ids and len(prompt.token_ids) + prompt.sampling.max_tokens <= 64
        assert need_of(prompt).total_pages(4) <= 12
