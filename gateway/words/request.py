"""What a client asks for, in no API's words. A dialect reads it from a body; nothing below a dialect sees the body.

Ask --prompts--> PromptText | PromptIds | Conversation --turns--> Turn --parts--> Text | Reasoning | Call | Result
                                              --tools--> Tool
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.words.places import Origins


@dataclass(frozen=True)
class PromptText:
    """A text to continue. `add_special`: the tokenizer adds its own tokens, such as BOS."""

    text: str
    add_special: bool = True


@dataclass(frozen=True)
class PromptIds:
    """Token ids to continue."""

    ids: Sequence[int]


@dataclass(frozen=True)
class Text:
    """What a turn says."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Thoughts before the answer of an assistant."""

    text: str


@dataclass(frozen=True)
class Call:
    """A call of a tool. `id`: "" if the client has given none. `arguments`: the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Result:
    """What a call has given. `call_id`: "" if the client does not say which call."""

    call_id: str
    text: str
    is_error: bool = False


Part = Text | Reasoning | Call | Result


@dataclass(frozen=True)
class Turn:
    """One message of a conversation. Without a Text it has no content. `more`: what else the client has given, for the
    chat template."""

    role: str
    parts: tuple[Part, ...]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool:
    """A function that an answer may call. `schema`: of its arguments; None: it has none. `strict`: calls follow it."""

    name: str
    description: str | None = None
    schema: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True)
class Named:
    """The choice of one tool, which the answer must call."""

    name: str


Choice = Literal["auto", "none", "required"] | Named


@dataclass(frozen=True)
class Conversation:
    """A conversation to go on with. `template`: a name of one of the model's templates; None: the default one."""

    turns: Sequence[Turn]
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_special: bool = False
    tools: Sequence[Tool] = ()
    choice: Choice = "auto"
    parallel: bool = True  # one answer may call several tools
    opens_answer: bool = True  # the prompt goes up to where the assistant's answer begins
    reasoning_tokens: int | None = None  # of thoughts of an answer, at most; None: no bound


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. None: as the model's own defaults say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1: off
    min_p: float | None = None
    seed: int | None = None  # None: a random one
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] = field(default_factory=dict)  # by token id, written as text
    allowed_token_ids: Sequence[int] | None = None  # None: all
    bad_words: Sequence[str] = ()


@dataclass(frozen=True)
class Grammar:
    """What an answer follows. `kind`: json, regex, choice, ebnf, tags or calls."""

    kind: str
    source: Any
    compact: bool = False  # JSON without white space between its parts

    @property
    def key(self) -> str:
        """The same for the same grammar."""
        return f"{self.kind} {self.compact} {json.dumps(self.source)}"


@dataclass(frozen=True)
class PromptScores:
    """Log-probabilities of a prompt's own tokens, and of `num_top` likeliest ones at each place. The token at `start`
    has none, because it is told as the first one; each behind it has some. The answer tells `per_token` of each token
    from `start` on, in all its choices together."""

    num_top: int
    start: int
    per_token: int

    def num_told(self, num_tokens: int) -> int:
        """How many the answer tells of a prompt of so many tokens."""
        return self.per_token * max(0, num_tokens - self.start)


Prompts = Sequence[PromptText | PromptIds] | tuple[Conversation]


@dataclass(frozen=True)
class Ask:
    """Prompts that share all rules. `origins`: how the client writes places of this Ask, for faults alone."""

    prompts: Prompts
    origins: Origins = field(default_factory=dict)
    model: str | None = None
    num_choices: int = 1  # of each prompt
    sampling: Sampling = Sampling()
    max_tokens: int | None = None  # of a choice. 0: the prompt alone is told
    default_tokens: int | None = None  # without `max_tokens`; None: all that the context has room for
    min_tokens: int = 0
    stops: tuple[str, ...] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    shape: Grammar | None = None  # None: any text
    scores: int | None = None  # likeliest tokens at each place of the answer; None: no log-probabilities
    prompt_scores: PromptScores | None = None
    echo: bool = False
    keep_special: bool = False  # special tokens are shown
    cache_salt: str = ""
    priority: int = 0
    timeline: bool | None = None  # None: a header decides
