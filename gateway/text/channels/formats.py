"""The formats that are known, by the names that vLLM and SGLang have for their parsers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.text.channels.json_calls import JsonCalls
from gateway.text.channels.readers import CallFormat, ReasoningTags
from gateway.text.channels.tag_patterns import PairedCalls, TaggedCalls

HERMES: Final = JsonCalls()
QWEN3_CODER: Final = TaggedCalls()
MINIMAX_M2: Final = TaggedCalls(
    opening="<minimax:tool_call>",
    closing="</minimax:tool_call>",
    name_opening='<invoke name="',
    name_closing='">',
    call_closing="</invoke>",
    key_opening='<parameter name="',
    key_closing='">',
    pad="",
)
SEED: Final = TaggedCalls(opening="<seed:tool_call>", closing="</seed:tool_call>", pad="")
GLM: Final = PairedCalls()
MINIMAX_M1: Final = JsonCalls(opening="<tool_calls>", closing="</tool_calls>")

THINK: Final = ReasoningTags()
THINK_FIRST: Final = ReasoningTags(is_assumed=True)
SEED_THINK: Final = ReasoningTags(opening="<seed:think>", closing="</seed:think>")

# what --tool-call-parser takes: vLLM's names and SGLang's
CALL_FORMATS: Final[Mapping[str, CallFormat]] = MappingProxyType(
    {
        "hermes": HERMES,
        "qwen": HERMES,
        "qwen25": HERMES,
        "qwen3_coder": QWEN3_CODER,
        "qwen3_xml": QWEN3_CODER,
        "mimo": QWEN3_CODER,
        "minimax_m2": MINIMAX_M2,
        "minimax-m2": MINIMAX_M2,
        "minimax": MINIMAX_M1,
        "seed_oss": SEED,
        "glm": GLM,
        "glm45": GLM,
        "glm47": GLM,
    }
)

# what --reasoning-parser takes
REASONING_FORMATS: Final[Mapping[str, ReasoningTags]] = MappingProxyType(
    {
        "qwen3": THINK,
        "mimo": THINK,
        "glm45": THINK,
        "glm47": THINK,
        "seed_oss": SEED_THINK,
        "deepseek_r1": THINK_FIRST,
        "deepseek-r1": THINK_FIRST,
        "qwen3-thinking": THINK_FIRST,
        "minimax": THINK_FIRST,
        "minimax_m2": THINK_FIRST,
    }
)
