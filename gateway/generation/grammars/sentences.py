"""Says in the words of a JSON schema why llguidance follows none. Its own sentences name numbers and classes that were
changed before it saw them (schemas.py), options that no request can set, and parts of its own.
"""

import re
from typing import Final

_BOUND: Final = r"(?:exclusiveM|m)(?:in|ax)imum \(.*?\)"
_CLASS: Final = r"\[(\[(?:\\.|[^\]\\])*\]|\\[pP]\{[^}]*\})&&\[\^\\x00-\\x07\\x0b\\x0e-\\x1f\\x7f\]\]"
_IN_WORDS: Final = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r"json-schema:///", ""),
        (r"Regex is empty: .*?(?= while processing #|$)", "no text follows its pattern, format and length"),
        (_CLASS, r"\1"),
        (rf"{_BOUND} is (?:greater than|equal to) {_BOUND}", "no number lies within the bounds"),
        (r"integer interval [\[(].*?[\])] contains no integer values", "no integer lies within the bounds"),
        (r"range [\[(].*?[\])] does not contain a multiple of \S+", "no multiple of multipleOf lies within the bounds"),
        (r"anyOf is empty", "no value is left of an enum, a union or a list of types"),
        (
            r"oneOf constraints are not supported\..*",
            "oneOf: expected parts of which no value can follow two, by their types or by constants of properties that"
            " are required",
        ),
        (r"lookarounds not supported yet; \w+ in regex", r"an assertion such as $ or \\b within the pattern"),
        (r"Unsatisfiable schema: (.*?)((?: while processing #\S*)+)$", r"what a reference names allows no value: \1\2"),
    )
)


def in_words(complaint: str) -> str:
    """The same complaint about the client's own schema."""
    for theirs, ours in _IN_WORDS:
        complaint = theirs.sub(ours, complaint)
    return complaint
