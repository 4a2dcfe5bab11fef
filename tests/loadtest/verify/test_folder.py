"""The folder oracle beside tokens of the model itself."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from loadtest.verify.folder import FolderScorer
from protocol.errors import ConfigError
from testkit.checkpoints import make_checkpoint

PROMPT = [7, 11, 13, 17]


async def test_greedy_tokens_are_the_likeliest_and_others_are_not(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen3")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = model.generate(torch.tensor([PROMPT]), max_new_tokens=6, do_sample=False)[0, len(PROMPT) :].tolist()
    scorer = FolderScorer(folder)
    right = await scorer.score(PROMPT, tokens)
    assert right is not None and len(right) == 6 and all(token.logprob == token.largest < 0 for token in right)
    wrong = await scorer.score(PROMPT, [*tokens[:3], (tokens[3] + 1) % 307, *tokens[4:]])
    assert wrong is not None and wrong[:3] == right[:3] and wrong[3].logprob < wrong[3].largest == right[3].largest


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model: cannot load"):
        FolderScorer(tmp_path)
