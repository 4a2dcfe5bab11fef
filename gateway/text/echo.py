"""The text before an answer, as `echo` asks for it: that of the prompt, with the places of its tokens in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.text.detokenizer import Detokenizer


@dataclass(frozen=True)
class Echo:
    """The text before the answer. `offsets`: its characters before each token of the prompt, if these are told with
    their log-probabilities and those of `num_top` likeliest tokens; None: they are not told."""

    text: str
    offsets: tuple[int, ...] | None = None
    num_top: int = 0


def echo_of(text: str | None, token_ids: Sequence[int], detokenizer: Detokenizer, num_top: int | None) -> Echo:
    """The echo of a prompt that came as `text`, or as ids alone. `num_top`: see Echo; None: no tokens are told."""
    parts, offsets, num_chars = list[str](), list[int](), 0
    if text is None or num_top is not None:
        for token_id in token_ids:
            offsets.append(num_chars)
            parts.append(detokenizer.feed(token_id))
            num_chars += len(parts[-1])
    if text is None:
        text = "".join(parts)  # a character that is not complete is shown with the answer
    if num_top is None:
        return Echo(text)
    return Echo(text, tuple(min(offset, len(text)) for offset in offsets), num_top)
