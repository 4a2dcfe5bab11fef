"""Sabotages of texts: where stop strings end an answer, and what a chat template is given."""

from tests.mutants.mutant import Mutant

CHOICES = ("tests/gateway/test_choice_text.py",)
MESSAGES = ("tests/gateway/test_template_messages.py",)
STOPS = ("tests/gateway/test_stop_strings.py",)

TEXTS = (
    Mutant(
        "stop strings are not read within min_tokens",
        "ChoiceText._without_stops",
        "return self._stops.feed(text, may_stop=__may, is_hidden=is_hidden)",
        "return self._stops.feed(text, is_hidden=is_hidden) if __may else text",
        "a stop string that begins there and ends later is missed",
        tests=CHOICES,
    ),
    Mutant(
        "stop strings end a choice within min_tokens",
        "ChoiceText._without_stops",
        "self.num_tokens >= self._min_tokens",
        "True",
        "the answer has fewer tokens than were asked for",
        tests=CHOICES,
    ),
    Mutant(
        "stop strings do not see special tokens",
        "ChoiceText.feed",
        "self._detokenizer.hidden_text(__id)",
        "''",
        "an answer goes on behind the token that its client stops at",
        tests=CHOICES,
    ),
    Mutant(
        "the text of special tokens is shown with what a stop string holds back",
        "StopStrings._release",
        "self._shown_as[:num_chars]",
        "self._held[:num_chars]",
        "clients read tokens that are not to be shown",
        tests=STOPS,
    ),
    Mutant(
        "a stop string that may not stop yet is held back as a whole",
        "StopSet._link",
        "self.open_lengths[fallback]",
        "self.depths[node]",
        "the text of a stream comes later than it could",
        tests=STOPS,
    ),
    Mutant(
        "content that is absent is the word None",
        "gateway/template_messages.py for_template",
        "Absent()",
        "None",
        "a model reads a word that nobody has said",
        tests=MESSAGES,
    ),
    Mutant(
        "fields that are null reach the template",
        "gateway/template_messages.py for_template",
        "_given(message.model_extra or {})",
        "(message.model_extra or {})",
        "a model reads None for a name",
        tests=MESSAGES,
    ),
    Mutant(
        "content that is absent is text to a template that asks",
        "gateway/template_messages.py is_none",
        "isinstance(value, Absent)",
        "False",
        "templates that tell calls of a message without content leave them out",
        tests=MESSAGES,
    ),
    Mutant(
        "arguments reach the template as text",
        "gateway/template_messages.py _arguments",
        "Arguments(found, given)",
        "given",
        "a model reads calls in quotes, as it was never trained to",
        tests=MESSAGES,
    ),
    Mutant(
        "an empty list of calls reaches the template",
        "gateway/template_messages.py for_template",
        "del found['tool_calls']",
        "",
        "a template that looks at the first call fails",
        tests=MESSAGES,
    ),
)
