"""Conversations from files: ShareGPT's JSON, JSON lines with prompts, plain prompts. ConfigError names the line.

sharegpt   [{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}, ...]
custom     {"prompt": ..., "output_tokens": 64} a line; the number is optional
prompts    a prompt a line, as it is
mooncake   {"timestamp": ms, "input_length": N, "output_length": N, "hash_ids": [...]} a line (trace.py)
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import orjson

from loadtest.work.conversations import Conversation, Turn
from loadtest.work.lengths import Lengths
from protocol.errors import ConfigError, brief, brief_name
from runtime.files import Unreadable, read_text

MAX_FILE_BYTES = 4 << 30
_TOKENS_A_WORD = 1.3  # of English; used where the answer's text is all that is known of its length


@dataclass(frozen=True)
class FileWork:
    """Conversations of a file, in an order that the seed decides, again and again."""

    found: Sequence[Conversation]
    name: str

    def conversations(self, seed: int) -> Iterator[Conversation]:
        """Endless."""
        order = list(self.found)
        random.Random(f"file work {seed}").shuffle(order)
        return cycle(order)

    def words(self) -> str:
        """The work in one line."""
        return f"{self.name}, {len(self.found):,} conversations"


def read_lines(path: str) -> list[str]:
    """The lines of a file. ConfigError if it cannot be read or is empty."""
    try:
        lines = read_text(Path(path).expanduser(), MAX_FILE_BYTES).splitlines()
    except Unreadable as error:
        raise ConfigError(f"--dataset-path: cannot read {brief(path)}: {error}", param="dataset-path") from error
    if not any(line.strip() for line in lines):
        raise ConfigError(f"--dataset-path: {brief(path)} is empty", param="dataset-path")
    return lines


def parsed_lines(path: str) -> Iterator[tuple[str, Any]]:
    """Where each line is, and its JSON. Empty lines are left out."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                yield f"{path}, line {number}", orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise wrong(f"{path}, line {number}", line, "a JSON object") from error


def wrong(where: str, got: object, expected: str) -> ConfigError:
    """The error for a part of a file."""
    return ConfigError(f"{where}: got {brief_name(str(got))}, expected {expected}", param="dataset-path")


def prompts(path: str, answer: Lengths, seed: int) -> FileWork:
    """A prompt a line."""
    rng = random.Random(f"answers {seed}")
    conversations = [Conversation((Turn(line, answer.draw(rng)),)) for line in read_lines(path) if line.strip()]
    return FileWork(conversations, "prompts of a file")


def custom(path: str, answer: Lengths, seed: int) -> FileWork:
    """JSON lines."""
    rng = random.Random(f"answers {seed}")
    conversations = []
    for where, entry in parsed_lines(path):
        text = entry.get("prompt") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not text:
            raise wrong(where, entry, 'an object with "prompt", a string')
        length = entry.get("output_tokens", answer.draw(rng))
        if not isinstance(length, int) or length < 1:
            raise wrong(where, length, '"output_tokens", an integer of at least 1')
        conversations.append(Conversation((Turn(text, length),)))
    return FileWork(conversations, "JSON lines")


def sharegpt(path: str, answer: Lengths | None, most_turns: int, seed: int) -> FileWork:
    """The people's side of recorded chats. `answer`: None takes the length of each recorded answer, estimated."""
    try:
        entries = orjson.loads("\n".join(read_lines(path)))
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--dataset-path: {brief(path)} is not JSON: {error}", param="dataset-path") from error
    if not isinstance(entries, list):
        raise wrong(path, type(entries).__name__, "a list of conversations")

    rng = random.Random(f"answers {seed}")
    conversations = []
    for number, entry in enumerate(entries, 1):
        where = f"{path}, entry {number}"
        said = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(said, list):
            raise wrong(where, entry, 'an object with "conversations", a list')
        if turns := _turns(said, where, answer, rng)[:most_turns]:
            conversations.append(Conversation(tuple(turns)))
    if not conversations:
        raise wrong(path, f"{len(entries)} entries", "one at least in which a human speaks and is answered")
    return FileWork(conversations, "ShareGPT")


def _turns(said: Sequence[Any], where: str, answer: Lengths | None, rng: random.Random) -> list[Turn]:
    """A turn for each pair of a human's words and an answer to them."""
    for part in said:
        if not isinstance(part, dict) or not isinstance(part.get("value"), str):
            raise wrong(where, part, 'parts with "from" and "value", strings')

    turns = []
    for asked, answered in pairwise(said):
        if asked.get("from") in ("human", "user") and answered.get("from") in ("gpt", "assistant") and asked["value"]:
            recorded = max(1, round(len(answered["value"].split()) * _TOKENS_A_WORD))
            turns.append(Turn(asked["value"], answer.draw(rng) if answer else recorded))
    return turns
