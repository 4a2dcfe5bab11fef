"""Delivered requests whose KV is being copied to the device.

Copying from host memory takes some milliseconds, in which other requests go on decoding.
"""

from decode.request import DecodeRequest
from decode.request_states import DecodeState
from scheduler.streams import Event


class Staged:
    """Requests in the state DELIVERED, with the first tokens of their choices."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Event | None, DecodeRequest, tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, on_device: Event | None, request: DecodeRequest, first_tokens: tuple[int, ...]) -> None:
        """Adds a request. `on_device` is done when its KV is on the device; None: it already is."""
        self._waiting.append((on_device, request, first_tokens))

    def take(self) -> list[tuple[DecodeRequest, tuple[int, ...]]]:
        """Removes and returns the requests whose KV is on the device. Requests that have ended are dropped."""
        ready = []
        waiting: list[tuple[Event | None, DecodeRequest, tuple[int, ...]]] = []
        for on_device, request, first_tokens in self._waiting:
            if on_device is not None and not on_device.done():
                waiting.append((on_device, request, first_tokens))
            elif request.state is DecodeState.DELIVERED:
                ready.append((request, first_tokens))
        self._waiting = waiting
        return ready
