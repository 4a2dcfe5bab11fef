"""The names by which clients may ask for the one model that is served."""

from dataclasses import dataclass

from protocol.errors import UnknownModel

MAX_SHOWN = 200  # characters of a wrong name that an error shows


@dataclass(frozen=True)
class ModelNames:
    """`served`: the names that `/v1/models` lists. `folder`: the text of --model, accepted because clients of other
    servers send it, but not listed."""

    served: tuple[str, ...]
    folder: str | None = None

    @property
    def first(self) -> str:
        """The name in every answer and in the metrics, also when the request used another."""
        return self.served[0]

    def check(self, model: str | None) -> None:
        """UnknownModel unless `model` is one of the names, or None."""
        if model is None or model in self.served or (self.folder and model.rstrip("/") == self.folder.rstrip("/")):
            return
        names = " or ".join(repr(name) for name in self.served)
        verb = "is" if len(self.served) == 1 else "are"
        raise UnknownModel(
            f"model: got {model[:MAX_SHOWN]!r}, expected {names}, which {verb} served here", param="model"
        )
