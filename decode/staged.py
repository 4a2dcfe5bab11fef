"""Requests whose KV is whole, until it is where they are decoded.

KV that has landed in host memory is on its way to the device for some milliseconds. The requests that decode go on
meanwhile. What it does not know: streams, pages.
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
        """`on_device` is done when the KV is there; None: it is."""
        self._waiting.append((on_device, request, first_tokens))

    def take(self) -> list[tuple[DecodeRequest, tuple[int, ...]]]:
        """Those whose KV is there, unless they have ended meanwhile."""
        ready = []
        waiting: list[tuple[Event | None, DecodeRequest, tuple[int, ...]]] = []
        for on_device, request, first_tokens in self._waiting:
            if on_device is not None and not on_device.done():
                waiting.append((on_device, request, first_tokens))
            elif request.state is DecodeState.DELIVERED:
                ready.append((request, first_tokens))
        self._waiting = waiting
        return ready
