"""How a model's answers are read: the format of its calls and thoughts, as its chat template or the user says. Pure.

`AnswerFormat` is what a gateway finds out at its start. `ChannelRules` is what the answers to one prompt share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from gateway.text.channels.channels import MAX_CALLS, Channels
from gateway.text.channels.detection import ArgumentsForm, Render, detect
from gateway.text.channels.formats import CALL_FORMATS, REASONING_FORMATS
from gateway.text.channels.markers import Markers
from gateway.text.channels.readers import Format, Tools
from protocol.errors import ConfigError, brief

OFF: Final = "none"  # the name of no format
T = TypeVar("T")


class AnswerFormat(NamedTuple):
    """The format of a model's answers. `calls`, `reasoning`: the names of their formats; None: answers have none.
    `arguments`: the form in which the chat template takes those of a call."""

    markers: Markers
    calls: str | None = None
    reasoning: str | None = None
    arguments: ArgumentsForm = "object"


PLAIN: Final = AnswerFormat(Markers(Format(), lambda _: None))


def answer_format(
    render: Render, token_id: Callable[[str], int | None], calls: str | None, reasoning: str | None
) -> AnswerFormat:
    """The format that the template renders, or that the user names. ConfigError for an unknown name. `token_id`: as
    Markers take it. `calls`, `reasoning`: the names that the user gives; None: as the template says."""
    form, arguments = detect(render)
    if calls is not None:
        form = Format(_named(CALL_FORMATS, calls, "tool-call-parser"), form.reasoning)
    if reasoning is not None:
        form = Format(form.calls, _named(REASONING_FORMATS, reasoning, "reasoning-parser"))

    names = _name(CALL_FORMATS, form.calls), _name(REASONING_FORMATS, form.reasoning)
    return AnswerFormat(Markers(form, token_id), *names, arguments)


def _named(formats: Mapping[str, T], name: str, option: str) -> T | None:
    if name == OFF:
        return None
    if name not in formats:
        known = ", ".join((*formats, OFF))
        raise ConfigError(f"--{option}: got {brief(name)}, expected one of {known}", param=option)
    return formats[name]


def _name(formats: Mapping[str, T], form: T | None) -> str | None:
    """The first of the names of a format."""
    return next((name for name, known in formats.items() if known == form), None)


@dataclass(frozen=True)
class ChannelRules:
    """The rules by which the channels of each answer to one prompt are made."""

    markers: Markers
    tools: Tools
    is_reasoning_open: bool
    most_calls: int = MAX_CALLS

    def channels(self, response_id: str, choice: int) -> Channels:
        """The channels of one choice."""
        return Channels(
            self.markers,
            tools=self.tools,
            is_reasoning_open=self.is_reasoning_open,
            response_id=response_id,
            choice=choice,
            most_calls=self.most_calls,
        )
