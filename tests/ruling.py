"""Logit rules in plain Python, token by token, and random ones."""

import random
from collections.abc import Sequence
from dataclasses import replace

from protocol.logit_rules import LogitRules, rules_fault
from protocol.messages_gateway import SamplingParams

NEG_INF = float("-inf")


def ruled(logits: Sequence[float], prompt: Sequence[int], outputs: Sequence[int], rules: LogitRules) -> list[float]:
    """The logits of the token behind `outputs`."""
    changed = list(logits)
    for token in range(len(changed)):
        if rules.allowed_token_ids and token not in rules.allowed_token_ids:
            changed[token] = NEG_INF
    for word in rules.bad_words:
        before = word[:-1]
        if not before or tuple(outputs[-len(before) :]) == before:
            changed[word[-1]] = NEG_INF
    for token, bias in rules.logit_bias:
        changed[token] += bias

    for token in {*prompt, *outputs}:
        up = changed[token] > 0
        changed[token] = changed[token] / rules.repetition_penalty if up else changed[token] * rules.repetition_penalty
    for token in set(outputs):
        changed[token] -= rules.frequency_penalty * outputs.count(token) + rules.presence_penalty
    return changed


def random_rules(rng: random.Random, vocab_size: int) -> LogitRules:
    """Rules whose numbers float32 holds exactly. Few tokens are allowed in many of them, so that bad words and
    penalties decide at each step."""
    few = rng.sample(range(vocab_size), rng.randint(2, 6))
    words = [tuple(rng.choices(few, k=rng.choice((1, 2, 2, 3)))) for _ in range(rng.randint(1, 4))]
    return LogitRules(
        frequency_penalty=rng.choice((0.0, 0.0, 0.5, 2.0, -1.0)),
        presence_penalty=rng.choice((0.0, 0.0, 0.25, 2.0, -2.0)),
        repetition_penalty=rng.choice((1.0, 1.0, 2.0, 0.5)),
        logit_bias=tuple((token, rng.choice((-100.0, 1.5, 99.0))) for token in few[:3]) if rng.random() < 0.4 else (),
        allowed_token_ids=tuple(few) if rng.random() < 0.6 else (),
        bad_words=tuple(words) if rng.random() < 0.5 else (),
    )


def with_rules(rng: random.Random, params: SamplingParams, vocab_size: int) -> SamplingParams:
    """The same with random rules that leave a token to draw."""
    while True:
        rules = random_rules(rng, vocab_size)
        if rules_fault(rules, params.ending_ids if params.min_tokens else (), vocab_size) is None:
            return replace(params, rules=rules)
