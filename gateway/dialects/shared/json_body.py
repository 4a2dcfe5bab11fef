"""From a JSON body to a checked model, and the refusal of a list that is too long to be looked at."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.dialects.shared.validation import bad_request
from gateway.words.limits import Limits, too_long
from gateway.words.places import PROMPTS, field, named
from protocol.errors import BadRequest

M = TypeVar("M", bound=BaseModel)


def validated(kind: type[M], body: Any) -> M:
    """A JSON body as a model. BadRequest names the field, its value and what was expected."""
    if not isinstance(body, dict):
        raise BadRequest(f"the body is {_type_name(body)}, expected a JSON object")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise bad_request(error) from error


def _type_name(value: Any) -> str:
    return {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}.get(type(value), "a number")


def check_list(prompt: object, limits: Limits, name: str = "prompt") -> None:
    """Refuses a list of token ids that is too long for any prompt, before each id is checked: ContextLengthExceeded.
    Does the same for a list of such lists. `name`: the client's field that has it."""
    longest = limits.context_length
    if not isinstance(prompt, list) or longest is None:
        return
    are_prompts = bool(prompt) and isinstance(prompt[0], list)
    with named({PROMPTS: field(name)}):
        for index, ids in enumerate(prompt) if are_prompts else [(None, prompt)]:
            if isinstance(ids, list) and len(ids) > longest and isinstance(ids[0], int):
                where = PROMPTS if index is None else (*PROMPTS, index)
                raise too_long(PROMPTS, (where, f" has {len(ids)} tokens"), limits)
