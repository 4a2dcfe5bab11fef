"""How SGLang's native API writes an answer: each event of a stream has all text and tokens of a choice so far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.answering import DONE
from gateway.choice_text import Piece
from gateway.generation import ABORT, Batch, Generation
from gateway.logprobs import finite

WEIGHT_VERSION = "default"  # weights never change while a worker runs; also in /model_info
Fields = dict[str, Any]


@dataclass
class _Output:
    """One choice so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[list[Any]] = field(default_factory=list)
    top_logprobs: list[list[list[Any]]] = field(default_factory=list)


class NativeAnswer:
    """A Body and Chunks; see answering.py.

    `is_list`: the answer is a list of choices. `names`: the client's id of each prompt, or none. `num_top`: for each
    prompt, how many of the likeliest tokens its log-probabilities have; None: it asks for none. `text_of`: the text of
    a token, if log-probabilities name it.
    """

    def __init__(
        self,
        generation: Generation,
        *,
        is_list: bool,
        names: Sequence[str],
        num_top: Sequence[int | None],
        text_of: Callable[[int], str | None],
    ) -> None:
        self._is_list, self._num_top, self._text_of = is_list, num_top, text_of
        num_prompts = len(num_top)
        num_choices = generation.num_choices // num_prompts
        own = generation.response_id
        names = names or ([own] if num_prompts == 1 else [f"{own}_{place}" for place in range(num_prompts)])
        self._names = list(names) if num_choices == 1 else [f"{each}_{c}" for each in names for c in range(num_choices)]
        self._outputs = [_Output() for _ in range(generation.num_choices)]

    def body(self, generation: Generation, found: list[list[Piece]]) -> Any:
        """An object for one choice; a list of them for a list of prompts, or for several choices."""
        bodies: list[Fields] = []
        for index, pieces in enumerate(found):
            for piece in pieces:
                self._take(index, piece)
            bodies.append(self._tell(generation, index, pieces[-1].finish_reason))
        return bodies if self._is_list else bodies[0]

    def chunks(self, generation: Generation, batch: Batch) -> bytes:
        """One event for each piece."""
        events: list[bytes] = []
        for index, piece in batch:
            self._take(index, piece)
            told = self._tell(generation, index, piece.finish_reason)
            if self._is_list:
                told["index"] = index
            events.append(b"data: " + orjson.dumps(told) + b"\n\n")
        return b"".join(events)

    def last(self, generation: Generation) -> bytes:
        """See Chunks."""
        return DONE

    def _take(self, index: int, piece: Piece) -> None:
        output = self._outputs[index]
        output.text += piece.text
        output.token_ids += piece.token_ids
        for token in piece.logprobs:
            output.logprobs.append(self._scored(token.token_id, token.scored.logprob))
            output.top_logprobs.append([self._scored(*each) for each in token.scored.top])

    def _scored(self, token_id: int, logprob: float) -> list[Any]:
        """[log-probability, token id, its text or null]."""
        return [finite(logprob), token_id, self._text_of(token_id)]

    def _tell(self, generation: Generation, index: int, finish_reason: str | None) -> Fields:
        """The choice so far."""
        output, num_top = self._outputs[index], self._num_top[generation.prompt_of(index)]
        num_prompt, num_cached = generation.prompt_tokens_of(index)
        meta: Fields = {
            "id": self._names[index],
            "finish_reason": self._finish(generation, index, finish_reason),
            "prompt_tokens": num_prompt,
            "weight_version": WEIGHT_VERSION,
            "completion_tokens": len(output.token_ids),
            "cached_tokens": num_cached,
        }
        if num_top is not None:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = output.logprobs
            if num_top:
                meta["input_top_logprobs"] = []
                meta["output_top_logprobs"] = output.top_logprobs
        if finish_reason is not None:
            meta["e2e_latency"] = generation.times.seconds
        return {"text": output.text, "output_ids": output.token_ids, "meta_info": meta}

    def _finish(self, generation: Generation, index: int, reason: str | None) -> Fields | None:
        """Why a choice has ended, and by what."""
        if reason is None:
            return None
        if reason == "length":
            return {"type": "length", "length": len(self._outputs[index].token_ids)}
        if reason == ABORT:
            return {"type": ABORT, "message": "Aborted"}
        cut_by = generation.cut_by(index)
        return {"type": "stop", "matched": self._outputs[index].token_ids[-1] if cut_by is None else cut_by}
