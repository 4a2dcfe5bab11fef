"""Answers made by hand: tokens with log-probabilities, and the same as they are heard."""

from collections.abc import Sequence

import orjson

from loadtest.verify.answers import Choice, Heard, Token

TAU = 0.1


def choice(tokens: Sequence[Token], leads: Sequence[float] = (), finish: str = "length", drift: float = 0.0) -> Choice:
    """Each token leads the next one (its id and 1) by `leads`, which are large unless they are given."""
    filled = [*leads, *[5.0] * (len(tokens) - len(leads))]
    tops = tuple(
        {token: -0.5 + drift, 1_000 + index: -0.5 + drift - lead}
        for index, (token, lead) in enumerate(zip(tokens, filled, strict=True))
    )
    return Choice(tuple(tokens), finish, " ".join(map(str, tokens)), (-0.5 + drift,) * len(tokens), tops)


def heard(said: Choice, *, stream: bool = True, counted: int | None = None, done: bool = True) -> Heard:
    """The answer as it comes: an event for each token. `counted`: what usage tells."""
    answer = Heard(status=200 if done else 0)
    for index, token in enumerate(said.tokens):
        is_last = index == len(said.tokens) - 1
        told = {"tokens": [named(token)], "token_logprobs": [said.logprobs[index]]}
        told["top_logprobs"] = [{named(likely): value for likely, value in said.tops[index].items()}]
        event = {"index": 0, "text": f"{' ' * (index > 0)}{token}", "logprobs": told}
        event["finish_reason"] = (said.finish or None) if is_last and done else None
        answer.stream_line(b"data: " + orjson.dumps({"choices": [event]}))
    if counted is not None:
        usage = {"prompt_tokens": 3, "completion_tokens": counted, "total_tokens": 3 + counted}
        answer.stream_line(b"data: " + orjson.dumps({"choices": [], "usage": usage}))
    if done:
        answer.stream_line(b"data: [DONE]")
    answer.is_stream = stream
    return answer


def named(token: Token) -> str:
    return f"token_id:{token}" if isinstance(token, int) else token
