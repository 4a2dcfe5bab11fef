"""Renders a conversation to one prompt text with the model's own Jinja template, in a sandbox.

The environment offers what Hugging Face's template language does: trimmed blocks, `raise_exception`, `tojson` without
HTML escapes, `strftime_now`, loop controls, `generation` blocks. template_messages.py makes the messages for it.
Whether a template renders tools and calls, it shows itself: a word of theirs is in what it renders, or is not.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.text.plain_marks import PlainMarks
from gateway.text.template_messages import ArgumentsForm, is_none, messages_of, tools_of
from gateway.words.places import FIRST_PROMPT, TEMPLATE, TURNS, VARIABLES, Fault
from gateway.words.request import Call, Conversation, Result, Text, Tool, Turn
from protocol.errors import CheckpointError, ConfigError, brief
from runtime.files import read_fields

NO_MARKS: Final = PlainMarks(())
MAX_WHY = 300  # characters
MAX_TEMPLATE_BYTES = 1 << 20
MAX_RENDERED = 32 * 1024 * 1024  # characters
RESERVED = frozenset("messages add_generation_prompt continue_final_message tools documents".split())
TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
FOR_TOOLS: Final = "tool_use"  # the name of a template that is the default one for conversations with tools
PROBED: Final = "baton_probe"  # a tool
PROBE_ID: Final = "probe1234"  # nine letters and digits, which Mistral's templates demand


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text. Here its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  # as in the base class

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplates:
    """The templates of one model, by name. `special_tokens`: texts that templates may use (`bos_token`, ...).
    `arguments`: the form in which they take the arguments of a call. `plain`: what marks special tokens of clients.
    `refused`: why no chat is rendered, whatever templates there are."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        arguments: ArgumentsForm = "object",
        plain: PlainMarks = NO_MARKS,
        refused: str | None = None,
    ) -> None:
        environment = _environment()
        self._special_tokens, self._arguments, self._plain = dict(special_tokens), arguments, plain
        self._refused = refused
        self._shown: dict[tuple[str | None, bool, bool], bool] = {}
        self._templates: dict[str, jinja2.Template | str] = {}  # a text says why the template cannot be used
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateError as error:
                self._templates[name] = f"chat template {name!r} of this model cannot be used: {error}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of those that can be used."""
        return tuple(sorted(name for name, template in self._templates.items() if not isinstance(template, str)))

    def render_conversation(self, conversation: Conversation) -> str:
        """The prompt text, with marks (plain_marks.py) in what a client has written. A Fault names arguments that are
        no object, or carries the template's complaint."""
        put = self._plain.put
        messages = [
            put(message) | {"role": message["role"]}  # the role is one of ours, and some templates make a token of it
            for index, turn in enumerate(conversation.turns)
            for message in messages_of(turn, (*TURNS, index), self._arguments)
        ]
        tools = put(tools_of(conversation.tools))
        variables = put(dict(conversation.variables))
        return self.render(messages, conversation.template, variables, tools, opens_answer=conversation.opens_answer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        name: str | None,
        extra: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        opens_answer: bool = True,
    ) -> str:
        """The prompt text of messages and tools as a template takes them, up to where the assistant's answer begins.

        `name` picks a named template, None the default one; `extra` are further variables for the template. A Fault
        carries the template's complaint.
        """
        template = self._pick(name, with_tools=bool(tools))
        for key in extra:
            if key in RESERVED:
                names = ", ".join(sorted(RESERVED))
                raise Fault(VARIABLES, VARIABLES, f": got {key!r}, expected other names than {names}")

        variables = {**self._special_tokens, "tools": list(tools) or None, "documents": None, **extra}
        try:
            return _joined(template.generate(variables, messages=list(messages), add_generation_prompt=opens_answer))
        except TEMPLATE_FAULTS as error:
            reason = str(error)[:MAX_WHY]  # it may quote a message
            raise Fault(FIRST_PROMPT, FIRST_PROMPT, f": the model's chat template refused them: {reason}") from error

    def shows_tools(self, name: str | None) -> bool:
        """Whether the template renders the tools of a conversation."""
        return self._shows(name, with_tools=True, with_call=False)

    def shows_calls(self, name: str | None, *, with_tools: bool) -> bool:
        """Whether the template renders earlier calls, in a conversation with tools or without."""
        return self._shows(name, with_tools=with_tools, with_call=True)

    def _shows(self, name: str | None, *, with_tools: bool, with_call: bool) -> bool:
        """Whether what it renders of PROBED has this word. Threads that find it out at once find the same."""
        key = (name, with_tools, with_call)
        if key not in self._shown:
            self._pick(name, with_tools=with_tools)  # an unknown name is a fault
            probe = _probe(name, with_tools=with_tools, with_call=with_call)
            try:
                self._shown[key] = PROBED in self.render_conversation(probe)
            except Fault:
                self._shown[key] = False
        return self._shown[key]

    def _pick(self, name: str | None, *, with_tools: bool) -> jinja2.Template:
        if self._refused is not None:
            raise Fault(FIRST_PROMPT, FIRST_PROMPT, f": {self._refused}; use /v1/completions with a prompt")
        if not self._templates:
            raise Fault(
                FIRST_PROMPT, FIRST_PROMPT, ": this model has no chat template; use /v1/completions with a prompt"
            )

        default = FOR_TOOLS if with_tools and FOR_TOOLS in self._templates else "default"
        wanted = default if name is None else name
        template = self._templates.get(wanted)
        if template is None:
            names = ", ".join(sorted(self._templates))
            what = f": got {brief(wanted)}, expected the name of one of this model's templates: {names}"
            raise Fault(TEMPLATE, TEMPLATE, what)
        if isinstance(template, str):
            raise Fault(TEMPLATE, template)
        return template


def _probe(name: str | None, *, with_tools: bool, with_call: bool) -> Conversation:
    """A conversation with the tool PROBED, or with a call of it and none elsewhere."""
    turns = [Turn("user", (Text("a"),))]
    if with_call:
        turns += [Turn("assistant", (Call(PROBE_ID, PROBED, '{"a": 1}'),)), Turn("tool", (Result(PROBE_ID, "b"),))]
    tool = Tool("other" if with_call else PROBED, "a", {"type": "object", "properties": {"a": {"type": "integer"}}})
    return Conversation(turns, name, tools=(tool,) if with_tools else ())


def _joined(pieces: Iterable[str]) -> str:
    """Joins the pieces of a rendered template. Fault beyond MAX_RENDERED characters."""
    shown, num_chars = [], 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_RENDERED:
            raise Fault(
                FIRST_PROMPT,
                FIRST_PROMPT,
                f": the model's chat template makes more than {MAX_RENDERED} characters of them",
            )
        shown.append(piece)
    return "".join(shown)


def read_template_sources(folder: Path) -> dict[str, str]:
    """Template texts by name. A template in its own file wins over tokenizer_config.json."""
    sources: dict[str, str] = {}

    configured = read_fields(folder / "tokenizer_config.json", optional=True).values.get("chat_template")
    if isinstance(configured, str):
        sources["default"] = configured
    elif isinstance(configured, list):
        for entry in configured:
            if not (isinstance(entry, dict) and isinstance(entry.get("name"), str)):
                raise CheckpointError("tokenizer_config.json: chat_template: expected a list of {name, template}")
            sources[entry["name"]] = str(entry.get("template", ""))
    elif configured is not None:
        raise CheckpointError("tokenizer_config.json: chat_template: expected text or a list of {name, template}")

    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = _read(path)

    if (folder / "chat_template.jinja").exists():
        sources["default"] = _read(folder / "chat_template.jinja")

    return sources


def read_template(path: Path) -> str:
    """The template in a file that the user named. ConfigError if it cannot be read or is no template."""
    where = f"--chat-template: {brief(str(path))}"

    try:
        size = path.stat().st_size
        if not path.is_file() or size > MAX_TEMPLATE_BYTES:
            raise ConfigError(f"{where}: expected a file of at most {MAX_TEMPLATE_BYTES} bytes", param="chat-template")
        source = path.read_text(encoding="utf-8")
        _environment().from_string(source)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 at byte {error.start}", param="chat-template") from error
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}", param="chat-template") from error
    except jinja2.TemplateError as error:
        raise ConfigError(f"{where}: not a Jinja template: {str(error)[:MAX_WHY]}", param="chat-template") from error
    return source


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.tests["none"] = is_none
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return _joined(encoder.iterencode(value)) if indent else encoder.encode(value)  # an indent may make much of little
