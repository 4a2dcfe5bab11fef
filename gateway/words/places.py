"""Places of a request, and faults that name them: each dialect writes a place as its clients do.

place                         in a completion     in POST /generate
("prompts", 3)                prompt[3]           text[3]
("sampling", "logit_bias")    logit_bias          sampling_params.logit_bias
("max_tokens",)               max_tokens          sampling_params.max_new_tokens
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from protocol.errors import BadRequest

Place = tuple[str | int, ...]  # the way from an Ask to one of its values

PROMPTS: Final[Place] = ("prompts",)
FIRST_PROMPT: Final[Place] = (*PROMPTS, 0)  # a conversation is the only prompt of its Ask
TEMPLATE: Final[Place] = (*FIRST_PROMPT, "template")
VARIABLES: Final[Place] = (*FIRST_PROMPT, "variables")
TURNS: Final[Place] = (*FIRST_PROMPT, "turns")
TOOLS: Final[Place] = (*FIRST_PROMPT, "tools")
CHOICE: Final[Place] = (*FIRST_PROMPT, "choice")
REASONING_TOKENS: Final[Place] = (*FIRST_PROMPT, "reasoning_tokens")
NUM_CHOICES: Final[Place] = ("num_choices",)
SAMPLING: Final[Place] = ("sampling",)
MAX_TOKENS: Final[Place] = ("max_tokens",)
MIN_TOKENS: Final[Place] = ("min_tokens",)
STOPS: Final[Place] = ("stops",)
STOP_TOKEN_IDS: Final[Place] = ("stop_token_ids",)
SHAPE: Final[Place] = ("shape",)
SOURCE: Final[Place] = (*SHAPE, "source")
PROMPT_SCORES: Final[Place] = ("prompt_scores",)
TOKENS: Final[Place] = ("tokens",)  # ids whose text is asked for
ABORT_IDS: Final[Place] = ("abort_ids",)


class Origin(NamedTuple):
    """How a client writes a place."""

    path: str  # where an error begins with it
    param: str  # the field that an error names beside its sentence
    short: str  # within a sentence


Origins = Mapping[Place, Origin]


def field(path: str, param: str = "", short: str = "") -> Origin:
    """The origin of a place that has one name everywhere, unless others are given."""
    return Origin(path, param or path, short or path)


class Fault(BadRequest):
    """A value of a request is wrong. `at`: which one. `sentence`: texts, and the places that they speak of.

    It tells places in this file's words until `name` gives it those of the client.
    """

    def __init__(self, at: Place, *sentence: str | Place) -> None:
        self.at, self._sentence, self._is_named = at, sentence, False
        super().__init__(_told(sentence, {}), param=_origin(at, {}).param)

    def name(self, origins: Origins) -> None:
        """Tells it in the client's words. Only the first call counts."""
        if not self._is_named:
            self._is_named = True
            self.message, self.param = _told(self._sentence, origins), _origin(self.at, origins).param
            self.args = (self.message,)


@contextmanager
def named(origins: Origins) -> Iterator[None]:
    """Faults of the block are told in the client's words."""
    try:
        yield
    except Fault as fault:
        fault.name(origins)
        raise


def _told(sentence: tuple[str | Place, ...], origins: Origins) -> str:
    parts = []
    for number, part in enumerate(sentence):
        if isinstance(part, str):
            parts.append(part)
        else:
            origin = _origin(part, origins)
            parts.append(origin.short if number else origin.path)
    return "".join(parts)


def _origin(place: Place, origins: Origins) -> Origin:
    """The longest beginning of a place that has a name, and the rest behind it."""
    for size in range(len(place), 0, -1):
        found = origins.get(place[:size])
        if found is not None:
            rest = _written(place[size:])
            return Origin(found.path + rest, found.param, found.short + rest)
    path = _written(place).removeprefix(".")
    return Origin(path, str(place[0]), path)


def _written(place: Place) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
