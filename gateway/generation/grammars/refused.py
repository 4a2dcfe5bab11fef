"""Why no answer can follow a grammar: an error whose sentence any API can tell."""

from gateway.words.places import SOURCE, TOOLS, Fault, Place
from gateway.words.request import Grammar


class GrammarRefused(Fault):
    """The grammar of a request is not followed. `what`: the reason. `at`: the value that is to blame."""

    def __init__(self, what: str, at: Place = SOURCE) -> None:
        super().__init__(at, at, f": {what}")
        self.what = what

    def anew(self) -> "GrammarRefused":
        """The same for another request, which names places in its client's own words."""
        return GrammarRefused(self.what, self.at)


def place_of(asked: Grammar) -> Place:
    """The value of a request that has asked for a grammar: of calls, its tools, or the schema of its only one."""
    if asked.kind != "calls":
        return SOURCE
    tools = asked.source["tools"]
    return (*TOOLS, tools[0]["index"], "schema") if len(tools) == 1 else TOOLS
