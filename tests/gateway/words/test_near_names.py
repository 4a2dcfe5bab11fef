import pytest

from gateway.words.near_names import near_name, near_path

NAMES = ["max_tokens", "min_tokens", "top_p", "stop", "temperature", "n", "model"]
PATHS = ["/health", "/v1/models", "/v1/completions", "/v1/chat/completions", "/metrics", "/docs"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_tokns", "max_tokens"),
        ("max_token", "max_tokens"),
        ("max_tokems", "max_tokens"),
        ("max_tokesn", "max_tokens"),
        ("ax_tokens", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("MAX_TOKENS", "max_tokens"),
        ("Stop", "stop"),
        ("top_a", None),
        ("models", None),
        ("max_tokn", None),  # two letters are missing
        ("m", None),
        ("", None),
        ("max_tokens" + "_" * 100, None),
        ("metadata", None),
    ],
)
def test_a_name_that_is_almost_known(name: str, meant: str | None) -> None:
    assert near_name(name, NAMES) == meant


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/models", "/v1/models"),
        ("//v1//completions", "/v1/completions"),
        ("/V1/Completions", "/v1/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/chat/completion", "/v1/chat/completions"),
        ("/v1/completion", "/v1/completions"),
        ("/v1/health", "/health"),
        ("/v1/completions/x", "/v1/completions"),
        ("/heath", "/health"),
        ("/v1/embeddings", None),
        ("/generate", None),
        ("/v1", None),
        ("/", None),
        ("/v1/completions/" + "x" * 200, None),
    ],
)
def test_a_path_that_is_almost_served(path: str, meant: str | None) -> None:
    assert near_path(path, PATHS) == meant
