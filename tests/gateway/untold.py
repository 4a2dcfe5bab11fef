"""Why a body that a schema of /openapi.json allows may be refused; see gateway/app/openapi_rules.py."""

import re
from typing import Final

UNTOLD: Final = re.compile(
    r"context length|KV memory|expected at most max_tokens|ids of the vocabulary, and min_tokens|prompts, expected"
    r"|is empty \(0 tokens\)|leaves no token to draw|logit_bias: got (a token twice|token id)|turns into no token"
    r"|cannot be followed|got a grammar beside|without json_schema|characters( as a grammar)?, expected at most 262144"
    r"|the grammar allows no token|top_logprobs: got \d+ without logprobs|max_tokens: got 0 without echo"
    r"|expected at most max_new_tokens|one for each prompt|expected the same for all prompts|got an id twice"
    r"|logprob_start_len: got \d+, expected less|expected it in sampling_params|without logprobs, expected it only"
    r"|twice, expected each name once|expected the name of one of tools|but (no message has a call|the call is in a)"
    r"|the chat template renders no|expected the text of a JSON object|its schema and those before"
    r"|is another text than reasoning_content|has more than 1000000 tokens|tokens: got token id"
)
