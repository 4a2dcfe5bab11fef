"""The bodies and answers of POST /tokenize and /detokenize, as vLLM writes them."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gateway.dialects.openai.conversation_fields import EXAMPLE, ConversationFields, Messages
from gateway.dialects.shared.json_body import validated
from gateway.dialects.shared.refusals import EMPTY, OFF, Table, refuse_misspelt, refuse_values
from gateway.dialects.shared.sampling_fields import Ids, told
from gateway.generation.translate import MAX_TOLD_IDS
from gateway.words.complaints import short
from gateway.words.strict_json import parse_json
from protocol.errors import BadRequest

UNSUPPORTED: Table = {"continue_final_message": OFF, "mm_processor_kwargs": EMPTY}
MODEL = "One of the names in /v1/models, or what was typed for --model. Absent: the model served."


class TokenizeRequest(ConversationFields):
    """`POST /tokenize`: a prompt, or the messages of a chat with the fields that belong to them."""

    model: Annotated[str | None, told(MODEL, enum="names")] = None
    prompt: Annotated[str | None, told("The text of a completion's prompt.", "Once upon a time")] = None
    messages: Annotated[Messages | None, told("The conversation of a chat.", EXAMPLE)] = None
    add_special_tokens: Annotated[
        bool | None,
        told("Whether the tokenizer adds its own, such as BOS. Absent: for a prompt, but not for a chat.", False),
    ] = None
    add_generation_prompt: Annotated[
        bool | None, told("`false`: a chat ends with its last message, and opens no answer.", True)
    ] = None
    return_token_strs: Annotated[bool | None, told("The answer also has the tokens' spellings.", True)] = None


class DetokenizeRequest(BaseModel, strict=True):
    """`POST /detokenize`: tokens whose text is asked for."""

    model: Annotated[str | None, told(MODEL, enum="names")] = None
    tokens: Annotated[Annotated[Ids, Field(max_length=MAX_TOLD_IDS)], told("Token ids.", [1, 2, 3])]


class Tokenized(BaseModel):
    """The tokens of a prompt."""

    count: Annotated[int, told("How many there are.", 3)]
    max_model_len: Annotated[int | None, told("How many prompt and answer may have together.", 2048)]
    tokens: Annotated[list[int], told("Their ids.", [70, 300, 22])]
    token_strs: Annotated[list[str] | None, told("Their spellings, with `return_token_strs`.", ["Once", "\u0120upon"])]


class Detokenized(BaseModel):
    """The text of tokens."""

    prompt: Annotated[str, told("The text, special tokens as they are spelt.", "Once upon a time")]


def parse_tokenize(raw: bytes) -> TokenizeRequest:
    """The request in the bytes of a body. BadRequest names what is wrong."""
    body = parse_json(raw)
    if isinstance(body, dict):
        _refuse(body, TokenizeRequest)
        if not isinstance(prompt := body.get("prompt"), str | None):
            raise BadRequest(f"prompt: got {short(prompt)}, expected a string", param="prompt")
    parsed = validated(TokenizeRequest, body)
    if (parsed.prompt is None) == (parsed.messages is None):
        what = "is missing, expected it or messages" if parsed.prompt is None else "is beside messages, expected one"
        raise BadRequest(f"prompt: {what}", param="prompt")
    return parsed


def parse_detokenize(raw: bytes) -> DetokenizeRequest:
    """The same for tokens."""
    body = parse_json(raw)
    if isinstance(body, dict):
        _refuse(body, DetokenizeRequest)
    return validated(DetokenizeRequest, body)


def _refuse(body: Mapping[str, Any], kind: type[BaseModel]) -> None:
    refuse_values(body, UNSUPPORTED)
    refuse_misspelt(body, (*kind.model_fields, *UNSUPPORTED), UNSUPPORTED)
