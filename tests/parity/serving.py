"""What tests of parity have in common: the models, and deployments in one process that serve all prompts at a time."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from model.runner import ModelRunner
from protocol.messages_gateway import SamplingParams
from testkit.checkpoints import Architecture
from testkit.reference import reference
from tests.cluster import Cluster


@cache
def runner_of(arch: Architecture) -> ModelRunner:
    """The reference's model, as we serve it."""
    return ModelRunner.load(reference(arch).folder, device="cpu", dtype="float32")


@cache
def model_of(folder: Path) -> PreTrainedModel:
    """A model as transformers has it."""
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return loaded.eval()


def scored_cluster(topology: str, **options: Any) -> Cluster:
    """A deployment for requests that ask for log-probabilities."""
    return Cluster(runner_of("llama"), topology, **{"page_size": 16, "num_pages": 100, "chunk_size": 32, **options})


def serve(
    cluster: Cluster,
    prompts: Sequence[Sequence[int]],
    params: Callable[[int], SamplingParams],
    more: Callable[[int], dict[str, Any]] = lambda index: {},
    prefix: str = "r",
    *,
    closes: bool = True,
) -> None:
    """Serves all prompts at the same time, prompt 5 as `r5` with params(5) and more(5), and none fails."""
    for index, prompt in enumerate(prompts):
        cluster.assign(f"{prefix}{index}", list(prompt), params(index), **more(index))
    cluster.run()
    cluster.check()
    if closes:
        cluster.close()
    assert not cluster.failures
