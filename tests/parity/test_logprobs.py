"""Log-probabilities of real models in float32 are those of transformers, through whole deployments in one process."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from model.runner import ModelRunner
from protocol.logprobs import LogprobsAsked
from protocol.messages_gateway import SamplingParams
from tests.cluster import Cluster
from tests.reference import reference

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(max_tokens=8, temperature=0.8, logprobs=LogprobsAsked(5))


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("topology", ["1U", "1P1D"])
@torch.no_grad()
def test_logprobs_are_those_of_transformers(topology: str, overlap: bool) -> None:
    expected = reference("llama")
    runner = ModelRunner.load(expected.folder, device="cpu", dtype="float32")
    cluster = Cluster(runner, topology, page_size=16, num_pages=100, chunk_size=32, overlap=overlap)
    for index, prompt in enumerate(expected.prompts):
        asked = LogprobsAsked(5, processed=index % 2 == 1)
        cluster.assign(f"r{index}", list(prompt), replace(PARAMS, seed=index, logprobs=asked))
    cluster.run()
    cluster.close()

    model = AutoModelForCausalLM.from_pretrained(expected.folder, dtype=torch.float32).eval()
    for index, prompt in enumerate(expected.prompts):
        answer = cluster.answers[f"r{index}", 0]
        logits_TV = model(torch.tensor([[*prompt, *answer.ids[:-1]]])).logits[0, len(prompt) - 1 :]
        right_TV = (logits_TV / (PARAMS.temperature if index % 2 else 1)).log_softmax(-1)
        assert sorted(answer.logprobs) == list(range(8))
        for place, token in enumerate(answer.ids):
            found, right_V = answer.logprobs[place], right_TV[place]
            assert found.logprob == pytest.approx(float(right_V[token]), abs=1e-4)
            ids = [other for other, _ in found.top]
            assert [value for _, value in found.top] == pytest.approx(right_V[ids].tolist(), abs=1e-4)
            assert [value for _, value in found.top] == pytest.approx(right_V.topk(5).values.tolist(), abs=1e-4)
