"""The folder oracle: transformers computes prompt and answer in one pass, float32, from the model's own folder.

Nothing cascades: each token is judged by the prefix that it really had. It knows nothing of the server. Only `--model`
needs transformers, so this file is imported only then.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from loadtest.verify.judge import Place
from protocol.errors import ConfigError, brief


class FolderScorer:
    """A model in this process."""

    name = "folder"

    def __init__(self, folder: Path) -> None:
        logging.set_verbosity_error()  # it would list the weights of drafts
        logging.disable_progress_bar()
        try:
            self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"--model: cannot load {brief(str(folder))}: {error}", param="model") from error
        self._model.eval()

    async def score(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Place] | None:
        """What the model says of each token behind the prompt."""
        return await asyncio.to_thread(self._score, list(prompt), list(tokens))

    def _score(self, prompt: list[int], tokens: list[int]) -> list[Place]:
        with torch.inference_mode():
            logits = self._model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            logprobs = logits.log_softmax(-1)
        of_tokens = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        return [Place(*scored) for scored in zip(of_tokens, logprobs.max(-1).values.tolist(), strict=True)]
