"""Answers made by hand: tokens with log-probabilities, and the same as they are heard."""

from collections.abc import Sequence

import orjson

from loadtest.verify.answers import Choice, Heard, Token

TAU = 0.1


def choice(tokens: Sequence[Token], leads: Sequence[float] = (), finish: str = "length", drift: float = 0.0) -> Choice:
    """Each token leads the next one (its id and 1) by `leads`, which are large unless they are given."""
    filled = [*leads, *[5.0] * (len(tokens) - len(leads))]
    tops = tuple(
        {token: -0.5 + drift, 1_000 + place: -0.5 + drift - lead}
        for place, (token, lead) in enumerate(zip(tokens, filled, strict=True))
    )
    return Choice(tuple(tokens), finish, " ".join(map(str, tokens)), (-0.5 + drift,) * len(tokens), tops)


def heard(said: Choice, *, stream: bool = True, counted: int | None = None, done: bool = True) -> Heard:
    """The answer as it comes: an event for each token. `counted`: what usage tells."""
    found = Heard(status=200 if done else 0)
    for place, token in enumerate(said.tokens):
        is_last = place == len(said.tokens) - 1
        told = {"tokens": [named(token)], "token_logprobs": [said.logprobs[place]]}
        told["top_logprobs"] = [{named(each): value for each, value in said.tops[place].items()}]
        event = {"index": 0, "text": f"{' ' * (place > 0)}{token}", "logprobs": told}
        event["finish_reason"] = (said.finish or None) if is_last and done else None
        found.stream_line(b"data: " + orjson.dumps({"choices": [event]}))
    if counted is not None:
        usage = {"prompt_tokens": 3, "completion_tokens": counted, "total_tokens": 3 + counted}
        found.stream_line(b"data: " + orjson.dumps({"choices": [], "usage": usage}))
    if done:
        found.stream_line(b"data: [DONE]")
    found.is_stream = stream
    return found


def named(token: Token) -> str:
    return f"token_id:{token}" if isinstance(token, int) else token
