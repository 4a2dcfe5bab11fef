"""Client requests in flight by the ids that clients know them by, so that another request can abort them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.complaints import short
from gateway.generation import Generation
from protocol.errors import BadRequest


@dataclass(frozen=True)
class Ids:
    """The client's names for a request: one for all of it, and one for each prompt by the prompt's place."""

    whole: str | None = None
    prompts: Mapping[int, str] = field(default_factory=dict)
    param: str = "rid"  # the field that has them

    def __iter__(self) -> Iterator[str]:
        """All of them."""
        yield from [self.whole] if self.whole else []
        yield from self.prompts.values()


NO_IDS: Final = Ids()


class InFlight:
    """Everything runs on the gateway's loop."""

    def __init__(self) -> None:
        self._by_id: dict[str, tuple[Generation, int | None]] = {}  # None: all prompts are meant

    def add(self, generation: Generation, ids: Ids) -> None:
        """A generation has begun. Besides by `ids`, it is known by its response id. It leaves when it ends. BadRequest
        if one of these ids is in flight."""
        for each in ids:
            if each in self._by_id:
                raise BadRequest(
                    f"{ids.param}: got {short(each)}, which is in flight, expected another", param=ids.param
                )

        found: dict[str, tuple[Generation, int | None]] = {generation.response_id: (generation, None)}
        found |= {ids.whole: (generation, None)} if ids.whole else {}
        found |= {each: (generation, place) for place, each in ids.prompts.items()}
        self._by_id |= found

        def leave() -> None:
            for each in found:
                self._by_id.pop(each, None)

        generation.on_end = leave

    def abort(self, name: str) -> None:
        """Ends what has this id, if it is in flight."""
        if name in self._by_id:
            generation, place = self._by_id[name]
            generation.abort(place)

    def abort_all(self) -> None:
        """Ends all requests."""
        for generation in list(dict.fromkeys(generation for generation, _ in self._by_id.values())):
            generation.abort()
