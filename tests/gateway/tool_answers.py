"""A gateway of a model whose answers have thoughts and calls: a fake worker writes them in the format of a template."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.text.channels.formats import HERMES, THINK
from gateway.text.channels.readers import Format
from protocol.messages_gateway import Assign, Role
from testkit.fake_worker import Behaviour
from testkit.fake_worker import Script as Tokens
from tests.gateway.conftest import Setting, running
from tests.gateway.folders import EOS, byte_tokenizer, marked_tokenizer, write_folder
from tests.gateway.text.channels import templates

MARKERS = Format(HERMES, THINK).markers
LENGTHS: dict[str, Any] = {"context_length": 4096, "max_total_tokens": 16384}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "look_up")
]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
LOOK_UP = '<tool_call>\n{"name": "look_up", "arguments": {"word": "caf\u00e9 }}"}}\n</tool_call>'
ANSWER = f"<think>\nI add.\n</think>\n\nWell.\n{ADD}\n{LOOK_UP}"
ARGUMENTS = ['{"a": 1, "b": [2]}', '{"word": "caf\u00e9 }}"}']


@dataclass(frozen=True)
class Script:
    """The tokens of what the model says, then EOS. Markers are one token each, if the tokenizer has them."""

    texts: Sequence[str]  # of each choice
    with_ids: bool = True
    ids: dict[str, int] = field(default_factory=lambda: {text: 262 + place for place, text in enumerate(MARKERS)})

    def __call__(self, assign: Assign, choice: int) -> Iterable[int]:
        text, told = self.texts[choice % len(self.texts)], list[int]()
        while text:
            marker = next((marker for marker in self.ids if self.with_ids and text.startswith(marker)), None)
            told += text[0].encode() if marker is None else [self.ids[marker]]
            text = text[1 if marker is None else len(marker) :]
        return [*told, EOS][: assign.sampling.max_tokens]


@asynccontextmanager
async def serving(
    tmp_path: Path,
    *texts: str,
    with_ids: bool = True,
    template: str = templates.QWEN,
    burst: int = 1,
    script: Tokens | None = None,
    **options: Any,
) -> AsyncIterator[Setting]:
    """A gateway of a model that says these texts, or what `script` says."""
    tokenizer = marked_tokenizer(MARKERS) if with_ids else byte_tokenizer()
    folder = write_folder(tmp_path, tokenizer, config={"max_position_embeddings": 4096}, template=template)
    async with running(folder, **options) as setting:
        behaviour = Behaviour(script or Script(texts or (ANSWER,), with_ids), burst=burst)
        await setting.add(Role.UNIFIED, "u1", behaviour=behaviour, **LENGTHS)
        yield setting
