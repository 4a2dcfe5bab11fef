"""Builds the body of an answer that is not streamed, from the same pieces as a stream."""

from typing import Any

from gateway.generation import Batch, Usage
from gateway.sse import ResponseHead


class WholeAnswer:
    """Gathers the pieces of all choices of one response."""

    def __init__(self, head: ResponseHead, num_choices: int) -> None:
        self._head = head
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._token_ids: list[list[int]] = [[] for _ in range(num_choices)]
        self._finish: list[str | None] = [None] * num_choices

    def add(self, batch: Batch) -> None:
        """Adds what the choices gained."""
        for index, (text, token_id, finish_reason) in batch:
            self._texts[index].append(text)
            if token_id is not None:
                self._token_ids[index].append(token_id)
            self._finish[index] = finish_reason

    def body(self, usage: Usage, timeline: list[dict[str, Any]] | None) -> dict[str, Any]:
        """The JSON body. Call it once every choice has finished."""
        body: dict[str, Any] = {
            "id": self._head.response_id,
            "object": "chat.completion" if self._head.is_chat else "text_completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": [self._choice(index) for index in range(len(self._texts))],
            "usage": usage.to_json(),
        }
        if timeline is not None:
            body["timeline"] = timeline
        return body

    def _choice(self, index: int) -> dict[str, Any]:
        text = "".join(self._texts[index])
        choice: dict[str, Any] = {"index": index}
        if self._head.is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice["logprobs"] = None
        choice["finish_reason"] = self._finish[index]
        if self._head.with_token_ids:
            choice["token_ids"] = self._token_ids[index]
        return choice
