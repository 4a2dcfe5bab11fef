"""Fields of completions and chat: wrong types, wrong ranges, too many, too long, known but not supported."""

import json

from tests.gateway.bad_input.case import CHAT, COMPLETIONS, USER, Case, refused, served, with_field

BIG = "1" + "0" * 30
SCORES = ("-1", "21", "1.5", "true", '"5"', "[]")
FLAGS = ("1", "0", '"true"', "{}")
MESSAGES = '"messages": [{"role": "user", "content": "a"}]'
ROWS: list[tuple[str, str, str]] = [  # field, values as JSON, what was expected
    ("max_tokens", f'0 -1 1.5 1.0 true false "5" [] {{}} 1e3 2147483648 {BIG}', "expected"),
    ("max_completion_tokens", f'0 -7 2.5 true "x" [1] {BIG}', "expected"),
    ("min_tokens", f'-1 0.5 true "1" [] {BIG}', "expected"),
    ("temperature", '-0.1 2.0001 1e999 -1e999 true "hot" [] {} 1e308', "expected"),
    ("top_p", '0 -1 1.0001 1e999 true "1" []', "expected"),
    ("top_k", f'-2 1.5 true "all" [] {BIG}', "expected"),
    ("min_p", '-0.1 1.1 1e999 true "x" {}', "expected"),
    ("seed", f'1.5 true "7" [] 9223372036854775808 -9223372036854775809 {BIG} 1e5', "expected"),
    ("n", f'0 -1 1.5 2.0 true "2" [] 2147483648 {BIG}', "expected"),
    ("n", "129 1000000", "expected at most 128"),
    ("n", "65 128", "expected at most 64, the requests a worker runs at once"),
    ("stop", '"" 5 true {} [""] ["a",""] [5] [null] [["a"]]', "expected"),
    ("stop_token_ids", f'5 "a" [-1] [1.5] [true] ["a"] [[]] [{BIG}] {{}}', "expected"),
    ("stop_token_ids", "[1024] [5,99999]", "below the vocabulary size 1024"),
    ("frequency_penalty", '-2.1 2.1 1e999 true "x" []', "expected"),
    ("presence_penalty", '-2.1 2.1 1e999 false "x" []', "expected"),
    ("repetition_penalty", '0 -1 2.1 1e999 true "x" []', "expected"),
    ("logit_bias", '5 true "x" [] {"1":"x"} {"1":null} {"1":101} {"x":1} {"-1":1} {"1.5":1} {"":1}', "expected"),
    ("logit_bias", '{"1024":1}', "expected ids in [0, 1024)"),
    ("allowed_token_ids", f'5 "a" [] [-1] [1.5] [true] ["a"] [[]] [{BIG}] {{}}', "expected"),
    ("allowed_token_ids", "[1024] [5,99999]", "expected ids in [0, 1024)"),
    ("bad_words", '5 "a" true {} [""] [5] [null] [["a"]]', "expected"),
    ("ignore_eos", '1 0 "true" [] 1.0', "true or false"),
    ("stream", '1 0 "false" [] {}', "true or false"),
    ("stream_options", '5 true "x" []', "expected an object"),
    ("skip_special_tokens", '1 "no" []', "true or false"),
    ("return_token_ids", '1 "yes" {}', "true or false"),
    ("timeline", '1 "yes" []', "true or false"),
    ("user", "5 true [] {}", "a string"),
    ("model", "5 true [] {}", "a string"),
]
UNSUPPORTED: list[tuple[str, str]] = [
    ("prompt_logprobs", "1"),
    ("echo", "true"),
    ("suffix", '"end"'),
    ("length_penalty", "2"),
    ("tools", '[{"type": "function"}]'),
    ("tool_choice", '"required"'),
    ("functions", '[{"name": "f"}]'),
    ("function_call", '{"name": "f"}'),
    ("response_format", '{"type": "json_object"}'),
    ("response_format", "5"),
    ("structured_outputs", '{"regex": "a"}'),
    ("guided_json", '{"type": "object"}'),
    ("guided_regex", '"a*"'),
    ("guided_choice", '["a"]'),
    ("guided_grammar", '"root ::= a"'),
    ("json_schema", '"{}"'),
    ("regex", '"a"'),
    ("ebnf", '"a"'),
    ("use_beam_search", "true"),
    ("logits_processors", '["x"]'),
    ("typical_p", "0.5"),
    ("min_new_tokens", "4"),
    ("include_stop_str_in_output", "true"),
    ("no_stop_trim", "true"),
    ("truncate_prompt_tokens", "5"),
    ("prompt_embeds", '"AAAA"'),
    ("add_generation_prompt", "false"),
    ("continue_final_message", "true"),
    ("documents", '[{"text": "a"}]'),
    ("audio", '{"voice": "a"}'),
    ("modalities", '["audio"]'),
    ("web_search_options", '{"a": 1}'),
    ("prediction", '{"type": "content"}'),
    ("lora_path", '"x"'),
    ("bootstrap_host", '"10.0.0.1"'),
    ("bootstrap_port", "8998"),
    ("bootstrap_room", "1"),
    ("kv_transfer_params", '{"do_remote_decode": true}'),
    ("disaggregated_params", '{"request_type": "context_only"}'),
    ("request_id", '"___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_0"'),
    ("return_logprob", "true"),
    ("return_hidden_states", "true"),
    ("structural_tag", '"{}"'),
    ("custom_logit_processor", '"{}"'),
    ("thinking_token_budget", "5"),
    ("stop_regex", '"a+"'),
    ("input_ids", "[1]"),
    ("input_embeds", "[[0.5]]"),
    ("best_of", "3"),
    ("best_of", "true"),
]
PROMPTS: list[tuple[str, tuple[str, ...]]] = [
    ("null", ("a list of token ids",)),
    ("5", ("got 5",)),
    ("true", ("got true",)),
    ("{}", ("got {}",)),
    ("[]", ("got []",)),
    ('""', ("is empty (0 tokens)",)),
    ('["a", ""]', ("prompt[1]: is empty",)),
    ("[[1], []]", ("prompt[1]: is empty",)),
    ("[[]]", ("is empty",)),
    ('[1, "a"]', ("got",)),
    ('["a", 1]', ("got",)),
    ("[[1], 2]", ("got",)),
    ("[[[1]]]", ("got",)),
    ("[true]", ("got true",)),
    ("[1.0]", ("got 1.0",)),
    ("[1.5]", ("got 1.5",)),
    ("[null]", ("got null",)),
    ("[-1]", ("got -1",)),
    ("[[-1]]", ("got -1",)),
    ("[1024]", ("token id 1024", "vocabulary size 1024")),
    ("[2147483647]", ("token id 2147483647",)),
    ("[2147483648]", ("got 2147483648",)),
    (f"[{BIG}]", ("got 1000000000",)),
    ("[1e3]", ("got 1000.0",)),
    ('{"text": "a"}', ('got {"text": "a"}',)),
    ('["a", null]', ("got null",)),
    ("[" + "1," * 2048 + "1]", ("2049 tokens", "2048 tokens")),
    ('"' + "x" * 60_000 + '"', ("60000 characters", "2048 tokens")),
    ('"' + "x " * 3000 + '"', ("maximum context length is 2048 tokens",)),
    ("[" + "[1]," * 1024 + "[1]]", ("1025 prompts, expected at most 1024",)),
    ("[" + '"a",' * 1024 + '"a"]', ("1025 prompts, expected at most 1024",)),
    ("[" + '"",' * 90_000 + '""]', ("90001 prompts",)),
    ("[" + "1.5," * 1_000_000 + "1]", ("got 1.5",)),
    ("[" + "1," * 2_000_000 + "1]", ("2000001 tokens",)),
]
OTHERS: list[Case] = [
    refused(COMPLETIONS, "{}", "prompt", "prompt: is missing"),
    refused(COMPLETIONS, '{"messages": []}', "prompt", "prompt: is missing"),
    refused(COMPLETIONS, '{"Prompt": "a"}', "Prompt", "Prompt: unknown field, expected prompt"),
    refused(
        COMPLETIONS, '{"prompt": "a", "max_tokns": 5}', "max_tokns", "max_tokns: unknown field, expected max_tokens"
    ),
    refused(COMPLETIONS, '{"prompt": "a", "model": "gpt-9"}', "model", "'gpt-9'", "'story'", status=404),
    refused(COMPLETIONS, '{"prompt": "a", "model": ""}', "model", "''", status=404),
    refused(COMPLETIONS, '{"prompt": "a", "model": "' + "m" * 10_000 + '"}', "model", "mmm", status=404),
    refused(COMPLETIONS, '{"prompt": "a", "model": "story\\u0000"}', "model", "story", status=404),
    refused(COMPLETIONS, '{"prompt": "a", "max_tokens": 2048}', "max_tokens", "context length is 2048"),
    refused(COMPLETIONS, '{"prompt": [1], "max_tokens": 2147483647}', "max_tokens", "context length is 2048"),
    refused(COMPLETIONS, '{"prompt": [1], "max_tokens": 4, "min_tokens": 5}', "min_tokens", "at most max_tokens"),
    refused(COMPLETIONS, '{"prompt": [' + '"a",' * 63 + '"a"], "n": 64}', "n", "at most 2048 in all"),
    refused(
        COMPLETIONS, '{"prompt": "a", "stop": [' + '"a",' * 64 + '"a"]}', "stop", "65 strings, expected at most 64"
    ),
    refused(COMPLETIONS, '{"prompt": "a", "stop": "' + "s" * 1025 + '"}', "stop", "1025 characters"),
    refused(COMPLETIONS, '{"prompt": "a", "stop": ["' + "s" * 1025 + '"]}', "stop", "1025 characters"),
    refused(COMPLETIONS, '{"prompt": "a", "stop_token_ids": [' + "1," * 1024 + "1]}", "stop_token_ids", "1025 items"),
    refused(
        COMPLETIONS,
        json.dumps({"prompt": [1], "min_tokens": 1, "max_tokens": 2, "stop_token_ids": [*range(1024)]}),
        "stop_token_ids",
        "all 1024 ids of the vocabulary",
    ),
    refused(COMPLETIONS, '{"prompt": "a", "stop": [' + '"",' * 90_000 + '""]}', "stop", "is empty"),
    refused(
        COMPLETIONS, '{"prompt": [' + "[1]," * 100_000 + "[1]]}", None, "opening brackets, expected at most 100000"
    ),
    refused(COMPLETIONS, '{"prompt": [' + '"",' * 1_000_000 + '""]}', None, "1000002 strings, expected at most 100000"),
    refused(COMPLETIONS, '{"prompt": "a", "stream_options": {"include_usage": 1}}', "stream_options", "include_usage"),
    refused(
        COMPLETIONS, '{"prompt": "a", "stream_options": {"include_usage": true}}', "stream_options", "without stream"
    ),
    refused(COMPLETIONS, '{"prompt": "a", "add_special_tokens": 1}', "add_special_tokens", "true or false"),
    refused(COMPLETIONS, '{"prompt": "a", "stream": true, "n": 0}', "n", "at least 1"),
    *(refused(COMPLETIONS, f'{{"prompt": "a", "logprobs": {value}}}', "logprobs", "expected") for value in SCORES),
    *(refused(CHAT, f'{{{MESSAGES}, "logprobs": {value}}}', "logprobs", "true or false") for value in FLAGS),
    *(
        refused(CHAT, f'{{{MESSAGES}, "logprobs": true, "top_logprobs": {value}}}', "top_logprobs", "expected")
        for value in SCORES
    ),
    refused(CHAT, f'{{{MESSAGES}, "top_logprobs": 3}}', "top_logprobs", "without logprobs"),
    refused(COMPLETIONS, '{"prompt": "a", "top_logprobs": 3}', "top_logprobs", "expected"),
    served(COMPLETIONS, prompt="a\0b\0"),
    served(COMPLETIONS, prompt="\ud7ff\ue000\uffff\U00010000\U0001f600\U000e0001\U0010ffff"),
    served(COMPLETIONS, prompt="e\u0301\u202e\u200d\u0600\ufeff"),
    served(COMPLETIONS, prompt="<|im_end|><|endoftext|>"),
    served(COMPLETIONS, prompt=["a", "b"], n=2, stop=["\0", "\U0010ffff"]),
    served(COMPLETIONS, prompt=[0], temperature=2, top_p=1e-300, min_p=1, top_k=2147483647, seed=-(2**63)),
    served(COMPLETIONS, prompt="a", unheard_of={"a": [1, {"b": None}]}, n=None, stop=None, stream=False),
    served(COMPLETIONS, prompt="a", frequency_penalty=0, logit_bias={}, tools=[], best_of=1, logprobs=None),
]


def all_cases() -> list[Case]:
    """Every row, most of them for both routes."""
    rows = [with_field(COMPLETIONS, field, value, words) for field, values, words in ROWS for value in values.split()]
    chat = [with_field(CHAT, field, values.split()[0], words) for field, values, words in ROWS]
    unsupported = [with_field(COMPLETIONS, field, value, "not supported") for field, value in UNSUPPORTED]
    unsupported += [with_field(CHAT, field, value, "not supported") for field, value in UNSUPPORTED[::4]]
    prompts = [refused(COMPLETIONS, f'{{"prompt": {value}}}', "prompt", *words) for value, words in PROMPTS]
    return rows + chat + unsupported + prompts + OTHERS + [refused(CHAT, f"{{{USER}, {USER}}}", "messages", "twice")]
