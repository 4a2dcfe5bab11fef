import pytest

from gateway.text.channels.formats import CALL_FORMATS, GLM, HERMES, MINIMAX_M2, QWEN3_CODER, REASONING_FORMATS, SEED

VLLM = {
    "glm45": GLM,
    "glm47": GLM,
    "seed_oss": SEED,
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "qwen3_xml": QWEN3_CODER,
    "minimax_m2": MINIMAX_M2,
}
SGLANG = {
    "glm": GLM,
    "glm45": GLM,
    "glm47": GLM,
    "hermes": HERMES,
    "qwen": HERMES,
    "qwen25": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "minimax-m2": MINIMAX_M2,
}


def test_parsers_have_the_names_of_peers() -> None:
    assert CALL_FORMATS.items() >= VLLM.items() and CALL_FORMATS.items() >= SGLANG.items()
    assert REASONING_FORMATS.keys() >= {"qwen3", "deepseek_r1", "minimax_m2"}  # of vLLM
    assert REASONING_FORMATS.keys() >= {"qwen3", "qwen3-thinking", "deepseek-r1", "minimax"}  # of SGLang


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_those_that_always_think_begin_with_thoughts(name: str) -> None:
    assert REASONING_FORMATS[name].is_assumed == (name not in {"qwen3", "glm45", "glm47", "mimo", "seed_oss"})
