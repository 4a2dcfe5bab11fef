"""The logit rules of a request, checked against the model's vocabulary."""

from dataclasses import replace
from typing import NoReturn

from gateway.complaints import short
from gateway.schemas import GenerationRequest
from gateway.tokenizer import TextTokenizer
from protocol.errors import BadRequest
from protocol.logit_rules import NO_RULES, Bias, LogitRules, rules_fault
from protocol.messages_gateway import SamplingParams

_UNKNOWN_VOCAB = 2**31  # no vocabulary is larger


def rules_of(
    request: GenerationRequest, params: SamplingParams, tokenizer: TextTokenizer | None, vocab_size: int | None
) -> LogitRules | None:
    """What a request changes, beside the rules in `params`, which are the model's own; None if nothing.

    `params` also says which tokens may not be drawn at first. BadRequest for the first fault.
    """
    numbers = {
        name: value
        for name in ("frequency_penalty", "presence_penalty", "repetition_penalty")
        if (value := getattr(request, name)) is not None
    }
    if request.allowed_token_ids == []:
        _refuse("allowed_token_ids", "is empty, expected at least one token id")
    rules = replace(
        params.rules or NO_RULES,
        **numbers,
        logit_bias=_biases(request),
        allowed_token_ids=tuple(dict.fromkeys(request.allowed_token_ids or ())),
        bad_words=_words(request, tokenizer),
    )
    if rules == NO_RULES:
        return None

    endings = params.ending_ids if params.min_tokens else ()
    fault = rules_fault(rules, endings, _UNKNOWN_VOCAB if vocab_size is None else vocab_size)
    if fault is not None:
        _refuse(*fault)
    return rules


def _biases(request: GenerationRequest) -> tuple[Bias, ...]:
    found: list[Bias] = []
    for token, bias in (request.logit_bias or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) < 11):
            _refuse("logit_bias", f"got the key {short(token)}, expected a token id written as text")
        found.append((int(token), float(bias)))
    return tuple(found)


def _words(request: GenerationRequest, tokenizer: TextTokenizer | None) -> tuple[tuple[int, ...], ...]:
    """Each word as the tokenizer writes it, alone and after a space."""
    if not request.bad_words:
        return ()
    if tokenizer is None:
        _refuse("bad_words", "this model has no tokenizer: got text, expected none")
    found: dict[tuple[int, ...], None] = {}
    for word in request.bad_words:
        for text in (word, " " + word.lstrip()):
            ids = tokenizer.encode_plain(text)
            if not ids:
                _refuse("bad_words", f"got {short(word)}, which the tokenizer turns into no token")
            found[tuple(ids)] = None
    return tuple(found)


def _refuse(field: str, what: str) -> NoReturn:
    raise BadRequest(f"{field}: {what}", param=field)
