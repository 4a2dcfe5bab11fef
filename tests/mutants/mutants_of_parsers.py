"""Sabotages of what bounds a client's bytes before native code reads them: memory, time on the loop, errors."""

from tests.mutants.mutant import Mutant

STALLS = "one request of 16 KiB holds up every stream for a tenth of a second"
MEMORY = "one request of 8 MiB takes gigabytes of the gateway's memory"
TOKENIZER = ("tests/gateway/test_tokenizer_bounds.py",)
LENGTHS = ("tests/gateway/test_text_lengths.py",)
COMPLAINTS = ("tests/gateway/test_complaints.py",)

PARSERS = (
    Mutant(
        "a text that cannot be cut is tokenised whole, however long it is",
        "TextTokenizer.encode_plain",
        "len(ids) > most or self._is_beyond(part, most)",
        "len(ids) > most",
        MEMORY,
        tests=TOKENIZER,
    ),
    Mutant(
        "a text whose special tokens are not known is tokenised whole, however long it is",
        "TextTokenizer.encode_prompt",
        "most is not None and self._is_beyond(text, most)",
        "False",
        MEMORY,
        tests=TOKENIZER,
    ),
    Mutant(
        "a normalizer that stretches a text does not make its slices shorter",
        "TextTokenizer.__init__",
        "SLICE_CHARS // self.growth",
        "SLICE_CHARS",
        MEMORY,
        tests=TOKENIZER,
    ),
    Mutant(
        "a sequence of normalizers stretches a text only if each does",
        "growth_of",
        "all(map(_is_steady, parts))",
        "any(map(_is_steady, parts))",
        STALLS,
        tests=LENGTHS,
    ),
    Mutant(
        "escaped characters do not count as beyond ASCII",
        "work_of",
        "raw.isascii() and b'\\\\u' not in raw",
        "raw.isascii()",
        STALLS,
        tests=("tests/gateway/test_service_work.py",),
    ),
    Mutant(
        "an error shows all of a name that its client has chosen",
        "gateway/complaints.py bad_request",
        "_cut(str(part))",
        "str(part)",
        "8 MiB of a client's own text are written for it, and to whatever logs its errors",
        tests=COMPLAINTS,
    ),
    Mutant(
        "a list for prompts is read before it is measured",
        "native_call",
        "check_lengths(body, http_limits.max_prompts)",
        "",
        STALLS,
        tests=("tests/gateway/test_native_schemas.py",),
    ),
)
