import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from tokenizers import Encoding

from gateway.dialects.openai.fields import ChatRequest, CompletionRequest, parse
from gateway.dialects.openai.read import ask_of_chat, ask_of_completion
from gateway.generation.translate import PreparedPrompt, Translator
from gateway.text.answer_format import PLAIN, AnswerFormat
from gateway.text.channels.formats import HERMES, THINK
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import CallFormat, Format
from gateway.text.chat_template import ChatTemplates, read_template_sources
from gateway.text.model_folder import read_model_folder
from gateway.text.plain_marks import PlainMarks
from gateway.text.tokenizer import SLICE_CHARS, TextTokenizer, load_tokenizer
from gateway.words.limits import Limits
from gateway.words.request import Ask
from protocol.errors import BadRequest
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import FinishReason, finish_reason
from runtime.settings import LogprobsMode
from tests.gateway.folders import BOS, END, EOS, byte_tokenizer, marked_tokenizer, write_folder
from tests.gateway.text.channels.templates import QWEN
from tests.gateway.tool_templates import TAGGED_ARGUMENTS, TAGGED_JSON

LIMITS = Limits(context_length=64, vocab_size=300)


def translator(path: Path, mode: LogprobsMode = "raw_logprobs") -> Translator:
    tokenizer = load_tokenizer(path)
    texts = {} if tokenizer is None else tokenizer.special.texts
    return Translator(read_model_folder(path), tokenizer, ChatTemplates(read_template_sources(path), texts), mode)


def completion(**fields: Any) -> Ask:
    return ask_of_completion(CompletionRequest(**{"prompt": [1], **fields}))


def chat(content: str = "Hi", **fields: Any) -> Ask:
    messages: Any = [{"role": "user", "content": content}]
    return ask_of_chat(ChatRequest(messages=messages, **fields))


def prompt_of(path: Path, request: Ask, limits: Limits = LIMITS) -> PreparedPrompt:
    [only] = translator(path).prompts(request, limits)
    return only


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path, byte_tokenizer())


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [("Hi", [[72, 105]]), (["H", "i"], [[72], [105]]), ([72, 105], [[72, 105]]), ([[72], [105]], [[72], [105]])],
)
def test_prompts_of_every_kind(folder: Path, prompt: Any, ids: list[list[int]]) -> None:
    assert translator(folder).token_ids(completion(prompt=prompt), Limits()) == ids


def test_bos_once(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}"
    found = translator(write_folder(tmp_path, byte_tokenizer(add_bos=True), template=source))
    assert found.token_ids(chat("Hi"), Limits()) == [[BOS, 72, 105]]
    assert found.token_ids(completion(prompt="Hi"), Limits()) == [[BOS, 72, 105]]
    assert found.token_ids(completion(prompt=""), Limits()) == [[BOS]]
    assert found.token_ids(completion(prompt="Hi", add_special_tokens=False), Limits()) == [[72, 105]]


def test_a_chat_gets_the_tokenizers_bos_only_if_it_asks(tmp_path: Path) -> None:
    found = translator(write_folder(tmp_path, byte_tokenizer(add_bos=True), template="{{ messages[0].content }}"))
    for wanted, ids in ((None, [72, 105]), (False, [72, 105]), (True, [BOS, 72, 105])):
        assert found.token_ids(chat("Hi", add_special_tokens=wanted), Limits()) == [ids]


def test_chat_ends_where_the_answer_begins(folder: Path) -> None:
    assert translator(folder).token_ids(chat("Hi"), Limits()) == [[*b"<user>Hi", END, *b"<assistant>"]]


def test_the_template_knows_the_reasoning_effort(tmp_path: Path) -> None:
    source = "{{ reasoning_effort | default('none') }}"
    found = translator(write_folder(tmp_path, byte_tokenizer(), template=source))
    assert found.token_ids(chat(), Limits()) == [[*b"none"]]
    assert found.token_ids(chat(reasoning_effort="low"), Limits()) == [[*b"low"]]


def test_without_tokenizer_only_ids(tmp_path: Path) -> None:
    found = translator(write_folder(tmp_path))
    assert found.token_ids(completion(prompt=[5]), Limits()) == [[5]]
    with pytest.raises(BadRequest, match="no tokenizer") as caught:
        found.token_ids(completion(prompt="a"), Limits())
    assert caught.value.param == "prompt"
    with pytest.raises(BadRequest, match="no tokenizer"):
        found.token_ids(chat(), Limits())
    with pytest.raises(BadRequest, match="stop_token_ids"):
        found.prompts(completion(stop="a"), Limits())


def test_plain_defaults(folder: Path) -> None:
    sampling = prompt_of(folder, completion()).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert sampling.max_tokens == 16 and sampling.eos_token_ids == (EOS,) and not sampling.ignore_eos
    assert 0 <= sampling.seed < 2**63 and sampling.seed != prompt_of(folder, completion()).sampling.seed


def test_defaults_of_the_model_and_of_the_client(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "eos_token_id": [END, EOS]}
    path = write_folder(tmp_path, byte_tokenizer(), generation=generation | {"do_sample": True})
    sampling = prompt_of(path, completion()).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 0.9, 20, 0.1)
    assert sampling.eos_token_ids == (END, EOS)
    asked = prompt_of(path, completion(temperature=0, top_k=-1, top_p=1, min_p=0, seed=-5)).sampling
    assert (asked.temperature, asked.top_p, asked.top_k, asked.min_p, asked.seed) == (0.0, 1.0, 0, 0.0, -5)


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        ({"eos_token_id": None}, {}, (EOS,)),  # only the tokenizer says
        ({"eos_token_id": EOS}, {}, (EOS,)),
        ({"eos_token_id": END}, {}, (END, EOS)),
        ({"eos_token_id": [7, END]}, {}, (7, END, EOS)),
        ({"eos_token_id": 7}, {"eos_token_id": [END]}, (END, EOS)),
        ({"eos_token_id": END, "vocab_size": EOS}, {}, tuple(each for each in (END,) if each < EOS)),
    ],
)
def test_eos_of_the_configuration_and_of_the_tokenizer_both_end_a_choice(
    tmp_path: Path, config: dict[str, Any], generation: dict[str, Any], ids: tuple[int, ...]
) -> None:
    path = write_folder(tmp_path, byte_tokenizer(), config=config, generation=generation)
    sampling = prompt_of(path, completion(min_tokens=3)).sampling
    assert sampling.eos_token_ids == ids
    assert sampling.ending_ids == set(ids)
    for token_id in ids:
        assert finish_reason(sampling, 3, token_id) is FinishReason.STOP
        assert finish_reason(sampling, 2, token_id) is None  # min_tokens holds back all of them
    ignoring = prompt_of(path, completion(ignore_eos=True)).sampling
    assert ignoring.ending_ids == frozenset()


def test_eos_of_the_configuration_alone_where_there_is_no_tokenizer(tmp_path: Path) -> None:
    path = write_folder(tmp_path, config={"eos_token_id": [7, END]})
    assert prompt_of(path, completion()).sampling.eos_token_ids == (7, END)


def test_max_tokens(folder: Path) -> None:
    assert prompt_of(folder, completion(max_tokens=5, max_completion_tokens=7)).sampling.max_tokens == 7
    assert prompt_of(folder, chat(), Limits(context_length=64)).sampling.max_tokens == 64 - 20
    with pytest.raises(BadRequest, match="min_tokens: got 6"):
        prompt_of(folder, completion(max_tokens=5, min_tokens=6))


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [
        ({"stop_token_ids": [*range(300)]}, True),
        ({"stop_token_ids": [*range(300)], "ignore_eos": True}, True),
        ({"stop_token_ids": [each for each in range(300) if each != EOS]}, True),
        ({"stop_token_ids": [each for each in range(300) if each != EOS], "ignore_eos": True}, False),
        ({"stop_token_ids": [*range(299), 0, 1]}, False),
        ({"stop_token_ids": [*range(300)], "min_tokens": 0}, False),
        ({"stop_token_ids": [*range(300)], "min_tokens": None}, False),
    ],
)
def test_min_tokens_need_a_token_that_does_not_end_the_choice(
    folder: Path, fields: dict[str, Any], is_refused: bool
) -> None:
    request = completion(**{"min_tokens": 1, **fields})
    if not is_refused:
        assert prompt_of(folder, request).sampling.stop_token_ids
        return
    with pytest.raises(BadRequest, match=r"^stop_token_ids: these .* all 300 ids of the .* which is 1,") as caught:
        prompt_of(folder, request)
    assert caught.value.param == "stop_token_ids"
    assert prompt_of(folder, request, Limits(vocab_size=301)).sampling.min_tokens == 1
    assert prompt_of(folder, request, Limits()).sampling.min_tokens == 1, "the vocabulary is not known yet"


def test_a_small_vocabulary_can_be_all_eos(tmp_path: Path) -> None:
    path = write_folder(tmp_path, config={"eos_token_id": [0, 1, 2], "vocab_size": 3})
    with pytest.raises(BadRequest, match="these and EOS are all 3 ids"):
        prompt_of(path, completion(min_tokens=2), Limits(vocab_size=3))


def test_stop_rules(folder: Path) -> None:
    prompt = prompt_of(folder, completion(stop=["a", "b"], min_tokens=3, skip_special_tokens=False))
    assert prompt.stops.strings == ("a", "b") and prompt.sampling.min_tokens == 3 and not prompt.skip_special
    assert prompt_of(folder, completion(stop="a")).stops.strings == ("a",)
    assert prompt_of(folder, completion()).stops.strings == () and prompt_of(folder, completion()).skip_special


def test_requests_that_are_answered_together_share_what_follows_their_stop_strings(folder: Path) -> None:
    """A list of prompts may be long: an automaton for each would take seconds and much memory."""
    stops: tuple[Any, ...] = ("ab", ["ab"], ["ab", "c"], "ab", ["ab", "c"], None, [])
    requests = [completion(prompt=[[1], [2]], stop=stop) for stop in stops]
    found = [each.stops for each in translator(folder).all_prompts(requests, LIMITS, [""] * len(requests))]
    assert [each.strings for each in found[::2]] == [("ab",), ("ab",), ("ab", "c"), ("ab",), ("ab", "c"), (), ()]
    assert len({id(each) for each in found}) == 3


def test_a_text_that_is_far_too_long_is_not_tokenised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = translator(folder)
    limits = Limits(context_length=64)
    longest = len("<|bos|>")
    assert len(found.token_ids(completion(prompt="<|end|>" * 64), limits)[0]) == 64
    monkeypatch.setattr(TextTokenizer, "encode_plain", None)
    monkeypatch.setattr(TextTokenizer, "encode_prompt", None)
    for prompt in ("x" * (65 * longest), ["x", "x" * (65 * longest)]):
        with pytest.raises(
            BadRequest, match=r"length is 64 tokens, but .* has 455 characters, at least 65 tokens"
        ) as caught:
            found.token_ids(completion(prompt=prompt if isinstance(prompt, str) else prompt[::-1]), limits)
        assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    with pytest.raises(BadRequest, match="at least 65 tokens") as caught:
        found.token_ids(chat("x" * (65 * longest - len("<user><|end|><assistant>"))), limits)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("limits", [Limits(context_length=20_000), Limits(pool_tokens=20_000, page_size=16)])
def test_a_long_text_is_tokenised_as_far_as_it_could_be_served(
    folder: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, encoded, encode = translator(folder), list[int](), TextTokenizer._encode

    def count(self: TextTokenizer, text: str, add_special: bool = False) -> Encoding:
        encoded.append(len(text))
        return encode(self, text, add_special)

    monkeypatch.setattr(TextTokenizer, "_encode", count)
    text = "x y " * SLICE_CHARS  # not too long for its characters: the longest token has seven
    limits = replace(limits, vocab_size=300)
    for ask, where in (
        (completion(prompt=text[:130_000]), "prompt"),
        (completion(prompt=["x", text[:130_000]]), "prompt[1]"),
        (chat(text[:130_000]), "messages"),
    ):
        encoded.clear()
        with pytest.raises(BadRequest, match=f"20000 tokens, but {re.escape(where)} has .* more than 20000") as caught:
            found.token_ids(ask, limits)
        assert caught.value.code == "context_length_exceeded" and caught.value.param == where.partition("[")[0]
        assert sum(encoded) < 1.1 * SLICE_CHARS, "one slice, and not the other"


@pytest.mark.parametrize(
    ("request_", "num_top"),
    [
        (completion(), None),
        (completion(logprobs=0), 0),
        (completion(logprobs=20, top_logprobs=0), 20),
        (chat(logprobs=False), None),
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=5), 5),
    ],
)
@pytest.mark.parametrize("mode", get_args(LogprobsMode))
def test_log_probabilities_that_are_asked_for(
    folder: Path, request_: Ask, num_top: int | None, mode: LogprobsMode
) -> None:
    [prompt] = translator(folder, mode).prompts(request_, LIMITS)
    expected = None if num_top is None else LogprobsAsked(num_top, processed=mode == "processed_logprobs")
    assert prompt.sampling.logprobs == expected


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def tooled(path: Path, tool_format: str | None) -> Translator:
    tokenizer = load_tokenizer(path)
    assert tokenizer is not None
    templates = ChatTemplates(read_template_sources(path), {}, plain=PlainMarks(tokenizer.special_texts))
    return Translator(read_model_folder(path), tokenizer, templates, answers=AnswerFormat(PLAIN.markers, tool_format))


def test_tools_are_refused_as_long_as_no_format_of_calls_is_known(tmp_path: Path) -> None:
    found = tooled(write_folder(tmp_path, byte_tokenizer(), template=TAGGED_JSON), None)
    assert not found.takes_tools
    with pytest.raises(BadRequest, match=r"^tools: .*--chat-template") as caught:
        found.token_ids(chat(tools=[TOOL]), Limits())
    assert caught.value.param == "tools"
    forbidden = found.token_ids(chat(tools=[TOOL], tool_choice="none"), Limits())
    assert forbidden == found.token_ids(chat(), Limits()), "they are not in the prompt"


def test_tools_stand_in_the_prompt_if_the_format_of_calls_is_known(tmp_path: Path) -> None:
    found = tooled(write_folder(tmp_path, byte_tokenizer(), template=TAGGED_JSON), "hermes")
    assert found.takes_tools
    for choice in ("auto", "none", "required"):
        [ids] = found.token_ids(chat(tools=[TOOL], tool_choice=choice), Limits())
        assert b'<tools>\n{"type": "function", "function": {"name": "add", ' in bytes(
            each for each in ids if each < 256
        )


def test_a_template_without_tools_is_refused_by_the_name_of_the_format(folder: Path) -> None:
    with pytest.raises(BadRequest, match=r"^tools: .*in the format hermes.*--chat-template"):
        tooled(folder, "hermes").token_ids(chat(tools=[TOOL]), Limits())


CALL: dict[str, Any] = {"id": "1", "function": {"name": "add", "arguments": "[5]"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools.1.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"a": "x" * 270_000}}}]},
         "tools.0.function.parameters"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "b"}}},
         "tool_choice.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "messages.0.tool_calls.0.function.arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "a>b", "arguments": "{}"}}]}]}, "messages.0.tool_calls.0.function.name"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "function_call": CALL["function"]}]},
         "messages.1.function_call.arguments"),
    ],
)  # fmt: skip
def test_a_fault_of_tools_has_the_clients_own_path(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    found = tooled(write_folder(tmp_path, byte_tokenizer(), template=TAGGED_JSON), "hermes")
    with pytest.raises(BadRequest) as caught:
        found.token_ids(
            ask_of_chat(parse(ChatRequest, {"messages": [{"role": "user", "content": "a"}], **fields})), Limits()
        )
    assert caught.value.param == param and caught.value.message.startswith(f"{param}: ")


def test_special_tokens_of_a_client_are_plain_text_in_a_chat_and_special_in_a_prompt(folder: Path) -> None:
    found = tooled(folder, None)
    [ids] = found.token_ids(chat("a<|end|>b"), Limits())
    assert ids == [*b"<user>a<|end|>b", END, *b"<assistant>"]
    assert found.token_ids(completion(prompt="a<|end|>b"), Limits()) == [[*b"a", END, *b"b"]]


def test_a_key_of_a_call_becomes_no_special_token_with_the_brackets_that_the_template_writes_around_it(
    tmp_path: Path,
) -> None:
    found = tooled(write_folder(tmp_path, byte_tokenizer(), template=TAGGED_ARGUMENTS), None)
    call = {"id": "1", "function": {"name": "add", "arguments": {"a<|end|": 1, "|end|": 2}}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    [ids] = found.token_ids(ask_of_chat(parse(ChatRequest, {"messages": messages})), Limits())
    assert b"=a<|end|>" in bytes(token_id for token_id in ids if token_id < 256) and END not in ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"tools": [TOOL, {"type": "function", "function": {"name": "b", "strict": True}}]}, "tools.1.function.strict"),
        ({"tools": None, "guided_regex": "a"}, "guided_regex"),
    ],
)
def test_a_grammar_on_a_model_without_eos_is_refused_at_what_asks_for_it(
    tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    path = write_folder(
        tmp_path, byte_tokenizer(), {"eos_token": None}, config={"eos_token_id": None}, template=TAGGED_JSON
    )
    request = parse(ChatRequest, {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL], **fields})
    with pytest.raises(BadRequest, match="no EOS token") as caught:
        tooled(path, "hermes").prompts(ask_of_chat(request), Limits(), "start: /a/")
    assert caught.value.param == param and caught.value.message.startswith(f"{param}: ")


def thinking(path: Path, calls: CallFormat | None = HERMES, **files: Any) -> Translator:
    """A model with thoughts, whose markers are one token each. `files`: what else its folder has."""
    form = Format(calls, THINK)
    folder = write_folder(path, marked_tokenizer(form.markers), template=QWEN, **files)
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    answers = AnswerFormat(Markers(form, tokenizer.added_id), "hermes" if calls else None, "qwen3")
    return Translator(read_model_folder(folder), tokenizer, ChatTemplates({"default": QWEN}, {}), answers=answers)


def test_a_budget_of_reasoning_tokens_makes_a_grammar(tmp_path: Path) -> None:
    for calls in (HERMES, None):
        found = thinking(tmp_path, calls)
        assert found.takes_budgets and found.shape_of(chat()) is None
        budgets: list[dict[str, Any]] = [{"thinking_token_budget": 5}, {"thinking_budget": 5}]
        for budget in budgets:
            asked = found.shape_of(chat(**budget))
            assert asked is not None and asked.source["reasoning"]["budget"] == 5 and not asked.source["is_forced"]
            assert found.renders_for_shape(chat(**budget))


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_budget_beside_tools_or_a_grammar_of_the_whole_answer(tmp_path: Path, choice: str) -> None:
    found = thinking(tmp_path)
    asked = found.shape_of(chat(tools=[TOOL], tool_choice=choice, thinking_token_budget=0))
    assert asked is not None and asked.source["reasoning"]["budget"] == 0
    assert asked.source["is_forced"] is (choice == "required") and bool(asked.source["calls"]) is (choice != "none")
    if choice != "required":  # such an answer has no thoughts
        whole = chat(tools=[TOOL], tool_choice=choice, thinking_token_budget=0, guided_regex="a")
        assert found.shape_of(whole) == whole.shape and len(found.prompts(whole, Limits(), "start: /a/")) == 1


@pytest.mark.parametrize("more", [{}, {"guided_regex": "a"}])
@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget"])
def test_a_budget_that_no_answer_can_keep_is_refused(folder: Path, name: str, more: dict[str, Any]) -> None:
    found, asked = translator(folder), chat(**{name: 5, **more})
    assert not found.takes_budgets
    with pytest.raises(BadRequest, match=rf"^{name}: got a budget, but the model's answers") as caught:
        found.prompts(asked, Limits())
    assert caught.value.param == name
    if not more:
        with pytest.raises(BadRequest, match=f"^{name}: "):
            found.shape_of(asked)


def test_a_budget_on_a_model_without_eos_is_refused(tmp_path: Path) -> None:
    found = thinking(tmp_path, tokenizer_config={"eos_token": None}, config={"eos_token_id": None})
    with pytest.raises(BadRequest, match=r"^thinking_budget: .*no EOS token"):
        found.prompts(chat(thinking_budget=5), Limits(), "start: /a/")


def test_marks_are_no_characters_of_a_prompt_that_is_too_long(tmp_path: Path) -> None:
    found = tooled(write_folder(tmp_path, byte_tokenizer(), template="{{ messages[0].content }}"), None)
    text = "<|end|>" * 100
    with pytest.raises(BadRequest, match=f" has {len(text)} characters"):
        found.token_ids(chat(text), Limits(context_length=8))
