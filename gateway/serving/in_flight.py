"""Client requests in flight by the ids that clients know them by, so that another request can abort them."""

from collections.abc import Mapping

from gateway.generation.generation import Generation
from gateway.words.complaints import short
from gateway.words.places import ABORT_IDS, Fault


class InFlight:
    """Everything runs on the gateway's loop."""

    def __init__(self) -> None:
        self._by_id: dict[str, tuple[Generation, range]] = {}

    def __len__(self) -> int:
        """Ids in flight."""
        return len(self._by_id)

    def add(self, generation: Generation, ids: Mapping[str, range]) -> None:
        """A generation begins. `ids`: the choices that each id means. They are forgotten when it ends. Fault if
        one of them is in flight."""
        for name in ids:
            if name in self._by_id:
                raise Fault(ABORT_IDS, ABORT_IDS, f": got {short(name)}, which is in flight, expected another")
        self._by_id |= {name: (generation, choices) for name, choices in ids.items()}

        def leave() -> None:
            for name in ids:
                if (owner := self._by_id.get(name)) is not None and owner[0] is generation:  # not another's by now
                    del self._by_id[name]

        generation.on_end = leave

    def abort(self, name: str) -> None:
        """Ends what has this id, if it is in flight."""
        if name in self._by_id:
            generation, choices = self._by_id[name]
            generation.abort(choices)

    def abort_all(self) -> None:
        """Ends all requests."""
        for generation, choices in list(self._by_id.values()):
            generation.abort(choices)
