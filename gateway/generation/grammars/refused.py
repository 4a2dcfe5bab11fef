"""Why no answer can follow a grammar: an error whose sentence any API can tell."""

from gateway.words.places import SOURCE, Fault


class GrammarRefused(Fault):
    """The grammar of a request is not followed. `what`: the reason."""

    def __init__(self, what: str) -> None:
        super().__init__(SOURCE, SOURCE, f": {what}")
        self.what = what
