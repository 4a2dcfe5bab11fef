"""One client of a fault test: it streams an answer in a thread and reports what it got."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from runtime.clock import MonotonicClock
from tests.e2e.baton_process import PATIENCE_S, read_event


@dataclass
class Client:
    """A streamed completion of token ids. `ended_at` is in seconds of the monotonic clock; 0 while it goes on."""

    url: str
    prompt: list[int]
    max_tokens: int
    n: int = 1
    patience_s: float = PATIENCE_S  # without a word, after which it leaves
    tokens: dict[int, list[int]] = field(default_factory=dict)  # by choice
    finishes: dict[int, str] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None  # the error object that ended it
    cut: str = ""  # how the connection ended before the answer did
    done: bool = False  # [DONE] came
    ended_at: float = 0.0
    faults: list[str] = field(default_factory=list)  # what no client should ever see

    def start(self) -> "Client":
        """Sends the request."""
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def has_begun(self) -> bool:
        """Whether the first token came."""
        return self._first.wait(PATIENCE_S)

    def has_ended(self, seconds: float = PATIENCE_S) -> bool:
        """Whether the answer, or what came of it, is complete."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def verdict(self, expected: Callable[[list[int], int], list[int]]) -> str:
        """ "exact", "error" (a clear one) or "cut"; an assertion error for anything else."""
        right = expected(self.prompt, self.max_tokens)
        story = f"{self.tokens} {self.finishes} {self.error} {self.cut} done={self.done}, expected {right}"
        assert not self.faults, f"{self.faults}: {story}"
        assert all(got == right[: len(got)] for got in self.tokens.values()), f"wrong tokens: {story}"
        if self.done:
            whole = [self.tokens.get(choice) == right for choice in range(self.n)]
            assert all(whole) and set(self.finishes.values()) == {"length"}, f"[DONE] of an unfinished answer: {story}"
            return "exact"
        if self.error is not None:
            assert all(isinstance(self.error.get(key), str) for key in ("message", "type", "code")), story
            return "error"
        assert self.cut, f"it ended without a word: {story}"
        return "cut"

    def _run(self) -> None:
        body = {"prompt": self.prompt, "max_tokens": self.max_tokens, "n": self.n, "stream": True, "temperature": 0}
        body |= {"return_token_ids": True, "ignore_eos": True}
        try:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=self.patience_s) as response:
                if response.status_code != 200:
                    self.error = httpx.Response(200, content=response.read()).json()["error"]
                    assert response.status_code == 503, self.error
                    return
                for line in filter(None, response.iter_lines()):
                    self._take(read_event(line))
        except httpx.HTTPError as error:
            self.cut = repr(error)
        finally:
            self.ended_at = MonotonicClock().now()

    def _take(self, event: Mapping[str, Any]) -> None:
        if self.done or self.error is not None:
            self.faults.append(f"after the end: {event}")
        if "done" in event:
            self.done = True
        elif "error" in event:
            self.error = event["error"]
        else:
            for choice in event["choices"]:
                self.tokens.setdefault(choice["index"], []).extend(choice["token_ids"])
                if choice["finish_reason"]:
                    self.finishes[choice["index"]] = choice["finish_reason"]
            self._first.set()
