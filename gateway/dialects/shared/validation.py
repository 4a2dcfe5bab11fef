"""What is wrong with a value of a body, in one sentence: the field, the value, and what was expected."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.words.complaints import MAX_SHOWN, short
from protocol.errors import BadRequest

CONTENT = "a string or a list of text parts"
ITEMS = {"messages": "message", "text": "text", "sampling_params": "object"}  # what a list has
UNIONS = {
    "content": CONTENT,
    "stop": "a string or a list of strings",
    "arguments": "the text of a JSON object",
    "tool_choice": "'none', 'auto', 'required' or an object with the function's name",
}
PLACED = ("messages", "tools", "tool_choice", "sampling_params")  # `param` says which value within these is wrong
PROMPTS = "a string, a list of strings, a list of token ids, or a list of such lists, none of them empty"


# What is wrong with a value, by the kind of pydantic's error. `got` is the value, `size` its length, `item` what a list
# has, `msg` pydantic's own text; the other fields in braces are pydantic's limits.
COMPLAINTS = {
    "missing": "is missing",
    "no_content": f"is missing, expected {CONTENT}",
    "two_reasonings": "is another text than reasoning_content, expected one of them",
    "other_role": "got {got}, expected it only in a message of assistant",
    "string_too_short": "is empty, expected at least one character",
    "too_short": "is empty, expected at least one {item}",
    "string_too_long": "has {size} characters, expected at most {max_length}",
    "too_long": "has {size} items, expected at most {max_length}",
    "greater_than_equal": "got {got}, expected at least {ge}",
    "greater_than": "got {got}, expected more than {gt}",
    "less_than_equal": "got {got}, expected at most {le}",
    "less_than": "got {got}, expected less than {lt}",
    "finite_number": "got {got}, expected a finite number",
    "int_type": "got {got}, expected an integer",
    "float_type": "got {got}, expected a number",
    "bool_type": "got {got}, expected true or false",
    "string_type": "got {got}, expected a string",
    "list_type": "got {got}, expected an array",
    "dict_type": "got {got}, expected an object",
    "model_type": "got {got}, expected an object",
    "literal_error": "got {got}, expected {expected}",
}
ANY_OTHER = "got {got}: {msg}"


def bad_request(error: ValidationError) -> BadRequest:
    """The error that is likely closest to what the client meant: in a union, of the member that matched furthest."""
    first = max(error.errors(include_url=False), key=_progress)
    top = str(first["loc"][0])
    path = ".".join(_cut(str(part)) for part in first["loc"] if not _is_variant(part))

    if top == "prompt":
        what = "is missing" if first["type"] == "missing" else f"got {short(first['input'])}"
        return BadRequest(f"prompt: {what}, expected {PROMPTS}", param=top)
    param = path if top in PLACED else top
    return BadRequest(f"{path}: {_complaint(first, path)}", param=param)


def _cut(name: str) -> str:
    """A part of a path. The client may have chosen it, as a key of `logit_bias`."""
    return name if len(name) <= MAX_SHOWN else name[: MAX_SHOWN - 3] + "..."


def _progress(error: ErrorDetails) -> tuple[int, bool]:
    """(how deep the checks of a value got, whether its type was right)."""
    return sum(isinstance(part, int) for part in error["loc"]), not error["type"].endswith("_type")


def _complaint(error: ErrorDetails, path: str) -> str:
    """What is wrong with one value and what was expected."""
    kind, value, field = error["type"], error["input"], path.rpartition(".")[2]
    if field in UNIONS and kind.endswith(("_type", "literal_error")):
        return f"got {short(value)}, expected {UNIONS[field]}"

    size = len(value) if isinstance(value, str | list) else 0
    complaint, item = COMPLAINTS.get(kind, ANY_OTHER), ITEMS.get(path, "item")
    return complaint.format(got=short(value), size=size, item=item, msg=error["msg"], **error.get("ctx", {}))


def _is_variant(part: int | str) -> bool:
    """Whether a part of an error's path names a member of a union: "list[constrained-str]", "str", "TextPart"."""
    return isinstance(part, str) and (not part.islower() or not part.isidentifier() or part in ("str", "int"))
