"""How a completion writes a choice: its text is a field of it, and so is what is told of its prompt."""

from dataclasses import dataclass
from typing import Any, Final

from gateway.serving.gathered import Gathered
from gateway.serving.parts import text_json
from gateway.words.events import Step

Fields = dict[str, Any]
OBJECT: Final = "text_completion"


@dataclass(frozen=True)
class CompletionForm:
    """A Form of write.py. An answer has text alone: what continues a prompt has no channels."""

    body_object: str = OBJECT
    event_object: str = OBJECT
    around_text: tuple[bytes, bytes] = (b'"text":', b"")

    def whole(self, gathered: Gathered) -> Fields:
        """See Form."""
        return {"text": text_json(gathered.text.pieces, gathered.text.num_chars)}

    def added(self, step: Step, *, is_first: bool) -> Fields:
        """See Form."""
        text = step.text
        return {"text": text_json((text,), len(text))}

    def of_choice(self, prompt: Fields) -> Fields:
        """See Form."""
        return prompt

    def of_body(self, prompt: Fields) -> Fields:
        """See Form."""
        return {}
