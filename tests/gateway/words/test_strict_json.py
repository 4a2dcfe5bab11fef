from gateway.words.strict_json import MAX_DEPTH, parse_json


def test_json() -> None:
    assert parse_json('{"a": [1, 2.5, "\\ud83d\\ude00é\\u0000", null, true]}'.encode()) == {
        "a": [1, 2.5, "\U0001f600é\0", None, True]
    }
    assert parse_json(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)) is not None
