"""SGLang's native API on real workers: a pair and a unified worker tell the same of each choice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.baton_process import BatonProcess

pytestmark = pytest.mark.slow
UNIFIED = "--port 0 --prefill 0 --decode 0 --unified 1 --max-total-tokens 8192 --dtype float32"
PROMPTS = [[700 + place for place in range(40)], [650, 651, 652], list(range(300, 333))]
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
SCORED: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
BODIES: list[dict[str, Any]] = [
    {"input_ids": PROMPTS, "sampling_params": GREEDY},
    {"input_ids": PROMPTS, "sampling_params": GREEDY},  # as before: now workers have their KV
    {"input_ids": PROMPTS[0], "sampling_params": {"n": 3, "sampling_seed": 5, "max_new_tokens": 9}},
    {"input_ids": PROMPTS[2], "sampling_params": GREEDY, **SCORED},
    {"text": ["Once upon a time", "The fox"], "sampling_params": [GREEDY, {"stop": [" "], "temperature": 0}]},
    {"text": "A number:", "sampling_params": {"regex": " [0-9]{3}", "temperature": 0}, **SCORED},
    {"text": "An animal:", "sampling_params": {"json_schema": '{"enum": ["fox", "owl"]}', "sampling_seed": 1}},
]


@pytest.fixture(scope="module")
def unified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatonProcess]:
    log: Path = tmp_path_factory.mktemp("native") / "log"
    with BatonProcess("serve", *UNIFIED.split(), log=log) as baton:
        yield baton


def generate(baton: BatonProcess, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What is told of each choice, without what differs from call to call."""
    answer = baton.http.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    for each in told if isinstance(told, list) else [told]:
        assert each["meta_info"].pop("id") and each["meta_info"].pop("e2e_latency") > 0
    return told if isinstance(told, list) else [told]


def test_a_pair_and_a_unified_worker_tell_the_same(story: BatonProcess, unified: BatonProcess) -> None:
    of_pair, alone = [[generate(baton, body) for body in BODIES] for baton in (story, unified)]
    for pair_told, alone_told in zip(of_pair, alone, strict=True):
        for one, other in zip(pair_told, alone_told, strict=True):
            scores, others = (each["meta_info"].pop("output_token_logprobs", []) for each in (one, other))
            tops, other_tops = (each["meta_info"].pop("output_top_logprobs", []) for each in (one, other))
            assert one == other
            assert [each[1:] for each in scores] == [each[1:] for each in others]
            flat = [each[0] for each in (*scores, *(top for row in tops for top in row))]
            assert flat == pytest.approx([e[0] for e in (*others, *(t for row in other_tops for t in row))], abs=1e-4)
            assert len(scores) in (0, len(one["output_ids"]))

    first, again = ([each["meta_info"] for each in told] for told in of_pair[:2])
    assert [each["cached_tokens"] for each in first] == [0, 0, 0]
    assert [each["cached_tokens"] for each in again] == [32, 0, 32], "whole pages of 16"
    assert [each["prompt_tokens"] for each in again] == [40, 3, 33]
    assert {each["completion_tokens"] for each in again} == {12}
    assert {each["meta_info"]["cached_tokens"] for each in of_pair[2]} == {32}, "of each choice, not of the first only"
    assert of_pair[5][0]["text"].strip().isdigit() and of_pair[6][0]["text"] in ('"fox"', '"owl"')


def test_a_probe(story: BatonProcess) -> None:
    assert story.get("/health_generate") == {"status": "ok"}
