"""The logit rules of a request, checked against the model's vocabulary."""

from dataclasses import replace

from gateway.generation.checks import refuse
from gateway.text.tokenizer import TextTokenizer
from gateway.words.complaints import short
from gateway.words.places import MIN_TOKENS, SAMPLING, STOP_TOKEN_IDS, Place
from gateway.words.request import Sampling
from protocol.logit_rules import NO_RULES, Bias, LogitRules, rules_fault
from protocol.messages_gateway import SamplingParams

_UNKNOWN_VOCAB = 2**31  # no vocabulary is larger
_BESIDE = {"stop_token_ids": STOP_TOKEN_IDS, "min_tokens": MIN_TOKENS}  # what faults of rules name beside rules


def rules_of(
    asked: Sampling, params: SamplingParams, tokenizer: TextTokenizer | None, vocab_size: int | None
) -> LogitRules | None:
    """What a request changes, beside the rules in `params`, which are the model's own; None if nothing.

    `params` also says which tokens may not be drawn at first. Raises the first Fault.
    """
    numbers = {
        name: value
        for name in ("frequency_penalty", "presence_penalty", "repetition_penalty")
        if (value := getattr(asked, name)) is not None
    }
    if asked.allowed_token_ids is not None and not asked.allowed_token_ids:
        refuse(_place("allowed_token_ids"), "is empty, expected at least one token id")
    rules = replace(
        params.rules or NO_RULES,
        **numbers,
        logit_bias=_biases(asked),
        allowed_token_ids=tuple(dict.fromkeys(asked.allowed_token_ids or ())),
        bad_words=_words(asked, tokenizer),
    )
    if rules == NO_RULES:
        return None

    endings = params.ending_ids if params.min_tokens else ()
    fault = rules_fault(rules, endings, _UNKNOWN_VOCAB if vocab_size is None else vocab_size)
    if fault is not None:
        name, *what = fault
        refuse(_place(name), *(_place(part) if number % 2 else part for number, part in enumerate(what)))
    return rules


def _biases(asked: Sampling) -> tuple[Bias, ...]:
    biases: list[Bias] = []
    for token, bias in asked.logit_bias.items():
        if not (token.isascii() and token.isdigit() and len(token) < 11):
            refuse(_place("logit_bias"), f"got the key {short(token)}, expected a token id written as text")
        biases.append((int(token), float(bias)))
    return tuple(biases)


def _words(asked: Sampling, tokenizer: TextTokenizer | None) -> tuple[tuple[int, ...], ...]:
    """Each word as the tokenizer writes it, alone and after a space."""
    if not asked.bad_words:
        return ()
    where = _place("bad_words")
    if tokenizer is None:
        refuse(where, "this model has no tokenizer: got text, expected none")
    words: dict[tuple[int, ...], None] = {}
    for word in asked.bad_words:
        for text in (word, " " + word.lstrip()):
            ids = tokenizer.encode_plain(text)
            if not ids:
                refuse(where, f"got {short(word)}, which the tokenizer turns into no token")
            words[tuple(ids)] = None
    return tuple(words)


def _place(name: str) -> Place:
    """Where an Ask has what a rule of this name comes from."""
    return _BESIDE.get(name, (*SAMPLING, name))
