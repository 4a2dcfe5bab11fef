"""Sabotages of texts: where stop strings end an answer, and what a chat template is given."""

from tests.mutants.mutant import Mutant

CHOICES = ("tests/gateway/test_choice_text.py",)
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
)
