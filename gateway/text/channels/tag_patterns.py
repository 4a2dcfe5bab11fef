"""Formats of calls that have a tag for each parameter, and the patterns that find these tags. Pure.

Qwen3-Coder:  <function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>   MiniMax and Seed: with other tags
GLM:          NAME\\n<arg_key>KEY</arg_key>\\n<arg_value>VALUE</arg_value>           the closing marker ends the call
"""

import re
from dataclasses import asdict, dataclass
from functools import cached_property

from gateway.text.channels.held import Ends, beginnings
from gateway.text.channels.readers import CallReader, Tools
from gateway.text.channels.tagged_calls import TaggedCall, TagPatterns

MAX_GAP = 64  # characters of white space between the closing tag of a value and the next tag
GAP = rf"\s{{0,{MAX_GAP}}}"


@dataclass(frozen=True)
class TaggedCalls:
    """Calls with tags around the call and around each value. `pad`: what stands around a value, once, and is not of it.

    A value ends with its closing tag before the next tag, or, without one, with that of the call before another call.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    id_shape: str = "call_{digest}"
    name_opening: str = "<function="
    name_closing: str = ">"
    call_closing: str = "</function>"
    key_opening: str = "<parameter="
    key_closing: str = ">"
    value_closing: str = "</parameter>"
    pad: str = "\n"

    def reader(self, tools: Tools) -> CallReader:
        """A reader for one call."""
        return TaggedCall(self.patterns, tools)

    @cached_property
    def patterns(self) -> TagPatterns:
        """What finds these tags."""
        tags = {name: re.escape(tag) for name, tag in asdict(self).items()}
        names, keys = beginnings([self.name_opening]), beginnings([self.key_opening, self.call_closing])
        pad = f"(?:{tags['pad']})?"
        value, call = f"{pad}{tags['value_closing']}{GAP}", f"{pad}{tags['call_closing']}{GAP}"
        closings = [tag for closing in (self.value_closing, self.call_closing) for tag in (closing, self.pad + closing)]

        return TagPatterns(
            header=re.compile(r"\s*{name_opening}([^<>\n]+?){name_closing}".format(**tags)),
            header_begins=re.compile(rf"\s*(?:{names}|{tags['name_opening']}[^<>\n]*)?\Z"),
            bare_header=re.compile(r"(?!)"),
            tag=re.compile(r"\s*(?:{key_opening}([^\n]+?){key_closing}|{call_closing})".format(**tags)),
            tag_begins=re.compile(rf"\s*(?:{keys}|{tags['key_opening']}[^\n]*)?\Z"),
            value_end=re.compile(
                f"{value}(?={tags['key_opening']}|{tags['call_closing']})|(?P<call>{call})(?={tags['name_opening']})"
            ),
            closed=re.compile(f"{value}|{call}"),
            held=Ends(
                f"{value}(?:{keys})?|{call}(?:{names})?|{beginnings(closings)}",
                MAX_GAP + 2 * max(map(len, (*closings, self.key_opening, self.name_opening))),
            ),
            pad=self.pad,
        )


@dataclass(frozen=True)
class PairedCalls:
    """Calls with the tool's bare name, then a tag for each key and one for its value. No tag ends the call."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    id_shape: str = "call_{digest}"
    key_opening: str = "<arg_key>"
    key_closing: str = "</arg_key>"
    value_opening: str = "<arg_value>"
    value_closing: str = "</arg_value>"

    def reader(self, tools: Tools) -> CallReader:
        """A reader for one call."""
        return TaggedCall(self.patterns, tools)

    @cached_property
    def patterns(self) -> TagPatterns:
        """What finds these tags."""
        tags = {name: re.escape(tag) for name, tag in asdict(self).items()}
        keys, value = beginnings([self.key_opening]), f"{tags['value_closing']}{GAP}"

        return TagPatterns(
            header=re.compile(r"\s*([^<>\s]+)\s*(?={key_opening})".format(**tags)),
            header_begins=re.compile(rf"\s*(?:[^<>\s]+\s*(?:{keys})?)?\Z"),
            bare_header=re.compile(r"\s*([^<>\s]+)\s*"),
            tag=re.compile(r"\s*{key_opening}([^\n]+?){key_closing}\s*{value_opening}".format(**tags)),
            tag_begins=re.compile(rf"\s*(?:{keys}|{tags['key_opening']}(?s:.)*)?\Z"),
            value_end=re.compile(f"{value}(?={tags['key_opening']})"),
            closed=re.compile(value),
            held=Ends(
                f"{value}(?:{keys})?|{beginnings([self.value_closing])}",
                MAX_GAP + len(self.value_closing) + len(self.key_opening),
            ),
            pad="",
        )
