"""Patterns in schemas: a text is allowed only if ECMA's dialect matches it, whichever control characters it names."""

import json
import random

import jsonschema_rs
import pytest

from gateway.generation.grammars.patterns import NOTHING, UNSPELT, spelt_pattern
from tests.byte_grammars import allows, matcher_of, of_schema

CHARS = [*map(chr, range(0x82)), "é", "\u2028", "的", "😀", ""]
SHORT = "\n\r\t\b\f"  # control characters that answers have
BEGINS = (r"\x00", r"\x01", r"\t", r"\n", r"\x08", r"\x0b", r"\x0e", r"\x1e", r"\x1f", r"\x7f", " ", "!", "a", "#")
ENDS = (r"\x07", r"\x08", r"\n", r"\r", r"\x1f", "!", r"\x22", "#", "Z", r"\[", r"\x7e", r"\x7f", r"\x80", r"\uffff")
SINGLE = ('"', "[", r"\\", "/", "^", "-", r"\]", r"\v", r"\u0001", r"\u{1F600}", r"\d", r"\D", r"\w", r"\W", r"\s", "é")
PARTS = (
    *(
        r"\x01",
        r"\x7f",
        r"\v",
        r"\u0001",
        r"\u007F",
        r"\u{1}",
        r"\u{1f}",
        r"\x08",
        r"\n",
        r"\x41",
        r"\u0041",
        r"\u{41}",
    ),
    *(r"\P{P}", r"\p{Cc}", r"\p{L}", r"\P{L}", r"\D", r"\W", r"\s", r"\S", r"\\x01", r"\[\x01", "[]", "[^]"),
    *('[^"]', r"[^\\]", r'[^"\\]', r"[^\x00-\x1f]", r"[^\x00-\x1f\x7f]", r"[\x20-\x7e]", r"[^\]]", r"[\]\\]", "[^^]"),
    *("[[]", "[^[]", r"[^[\]]", "[a[b]", "[a[b[]", "[A-[]", "[[-a]", r"[[\]]", r"[^[\x01]", r"[\\[a]", r"[^\[[]"),
)


def class_of(rng: random.Random) -> str:
    """A class of characters and ranges, many of control characters."""
    parts = [
        f"{rng.choice(BEGINS)}-{rng.choice(ENDS)}" if rng.random() < 0.5 else rng.choice((*SINGLE, *BEGINS))
        for _ in range(rng.randint(1, 3))
    ]
    return f"[{'^' if rng.random() < 0.5 else ''}{''.join(parts)}]"


def wrong(pattern: str) -> list[str]:
    """Texts around `pattern` that are allowed and do not match, or match and are not allowed though they have a
    spelling. [] for a pattern that is none in ECMA's dialect, or that no text can match."""
    schema = {"type": "string", "pattern": f"^a(?:{pattern})b$"}
    try:
        validator = jsonschema_rs.validator_for(schema)
    except (ValueError, jsonschema_rs.ValidationError):
        return []
    matching = [char for char in CHARS if validator.is_valid(f"a{char}b")]
    spelt = [char for char in matching if (char >= " " and char != "\x7f") or char in SHORT]
    text = of_schema(schema)
    if not isinstance(text, str):
        return spelt
    matcher = matcher_of(text)
    allowed = [char for char in CHARS if any(allows(matcher, each) for each in spellings(f"a{char}b"))]
    return sorted({*allowed} ^ {*spelt})


def spellings(text: str) -> set[str]:
    return {json.dumps(text), json.dumps(text, ensure_ascii=False)}


@pytest.mark.parametrize("part", PARTS)
def test_what_a_part_of_a_pattern_allows_is_what_it_matches(part: str) -> None:
    assert wrong(part) == [] and wrong(f"{part}|c") == [] and wrong(f"{part}?") == []


WHITE = "\t\n\f\r \u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"  # of ECMA-262; Rust has another list
OTHER = "a0-é的\x85\u200b\u180e"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (".", (set(WHITE) | set(OTHER)) - set("\n\r\u2028\u2029")),
        (r"\s", set(WHITE)),
        (r"\S", set(OTHER)),
        (r"[\s]", set(WHITE)),
        (r"[^\s]", set(OTHER)),
        (r"[\S]", set(OTHER)),
        (r"[^\S]", set(WHITE)),
        (r"[a\s-]", {*WHITE, "a", "-"}),
        (r"[\S\n]", {*OTHER, "\n"}),
        (r"[^\S\n]", set(WHITE) - {"\n"}),
        (r"[\s\S]", set(WHITE + OTHER)),
        (r"[^]", set(WHITE + OTHER)),
    ],
)
def test_dots_and_white_space_are_those_of_ecma(pattern: str, expected: set[str]) -> None:
    matcher = matcher_of(str(of_schema({"type": "string", "pattern": f"^{pattern}$"})))
    assert {char for char in WHITE + OTHER if allows(matcher, json.dumps(char, ensure_ascii=False))} == expected


@pytest.mark.parametrize("seed", range(8))
def test_what_a_class_allows_is_what_it_matches(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        found = class_of(rng)
        assert wrong(found) == [], found


@pytest.mark.parametrize("part", ["[[:alpha:]]", "[a[:]", "[a&&b]", "[+--]", "[~~]", r"[^\w&&\d]"])
def test_a_class_that_is_read_in_another_way_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="in a class, expected"):
        spelt_pattern(f"^x{part}$")
    told = of_schema({"patternProperties": {part: {}}})
    assert not isinstance(told, str) and "in a class, expected" in told.message


@pytest.mark.parametrize("pattern", ["", "^[a-z0-9_]{2,5}$", r"\\[a]", r"\d+(\.\d+)?", r"\[x\]", r"\x", r"\u{", "[a"])
def test_a_pattern_without_control_characters_stays_as_it_is(pattern: str) -> None:
    assert spelt_pattern(pattern) == pattern


@pytest.mark.parametrize("part", ["(?x) a", "(?i)a", "(?P<n>a)", "(?s-", r"\A", r"\z", r"\a", r"\Q", "a(?#b)"])
def test_what_only_another_dialect_has_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match=r"which is no (group|escape) of ECMA's"):
        spelt_pattern(part)


@pytest.mark.parametrize(
    "part", ["(?:a)", "(?i:a)", "(?ms-i:a)", "(?<n>a)", "(?=a)", "(?<!a)", r"\(?x", "[(?x)]", r"\d\/\-"]
)
def test_what_ecmas_dialect_has_is_not(part: str) -> None:
    assert spelt_pattern(part) == part


@pytest.mark.parametrize(
    "part",
    [
        "a++",
        "a*+",
        "a?+",
        "a**",
        "a+*",
        "a{2}{3}",
        "a{2,}+",
        "a+?+",
        "[ab]++",
        r"\d++",
        "(?:a)++",
        "^*",
        "${2}",
        r"\b+",
    ],
)
def test_a_repetition_of_a_repetition_or_an_assertion_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match=r"where nothing is to repeat, expected brackets"):
        spelt_pattern(f"^x{part}$")
    told = of_schema({"patternProperties": {part: {}}})
    assert not isinstance(told, str) and "where nothing is to repeat, expected brackets" in told.message


@pytest.mark.parametrize(
    "part", ["(a+)+", "a+?", "a??", "a{2,3}?", r"a\++", "[+*]+", "a+[+]", r"\?+", "(?:a+)+", "a+|+"]
)
def test_a_single_repetition_is_not(part: str) -> None:
    assert spelt_pattern(part) == part


@pytest.mark.parametrize("pattern", ["\\", "^a\\", "a\\\\\\"])
def test_a_backslash_at_the_end_is_refused(pattern: str) -> None:
    schemas: list[dict[str, object]] = [{"pattern": pattern}, {"patternProperties": {pattern: {}}}]
    for schema in schemas:
        found = of_schema(schema)
        assert not isinstance(found, str) and "a backslash at the end" in found.message


def test_an_escaped_angle_is_one() -> None:
    assert spelt_pattern(r"^\<a\>$") == "^<a>$"


def test_names_are_matched_as_texts_are() -> None:
    schema = {"type": "object", "patternProperties": {'^[^"]$': {"type": "integer"}}, "additionalProperties": False}
    text = of_schema(schema)
    assert isinstance(text, str)
    matcher = matcher_of(text)
    assert [allows(matcher, each) for each in ('{"a": 1}', '{"\\\\": 1}', '{"\\"": 1}')] == [True, True, False]


def test_control_characters_are_taken_out_of_classes_and_stand_for_nothing_elsewhere() -> None:
    assert spelt_pattern(r"^[^x]\x01\\x01$") == rf"^[[^x]&&[^{UNSPELT}]]{NOTHING}\\x01$"
