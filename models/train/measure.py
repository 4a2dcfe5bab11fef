"""Measures the bundled model as a user meets it: `python -m models.train.measure [FOLDER]`.

Sums and JSON are counted right or wrong, stories by whether they end. Loads the folder with transformers, in float32.
Requests come from a seed that the training text does not use.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from models.train import snippets
from models.train.arithmetic import MAX_ADDEND, Sum, held_out_sums, is_held_out
from models.train.conversations import Message, ask_for_story
from models.train.train import STORY_FOLDER

_REQUEST_SEED = 987_654


@dataclass(frozen=True)
class Loaded:
    """A model folder, ready to answer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def chat_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to where the assistant speaks."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return self.text_ids(str(text))

    def text_ids(self, text: str) -> list[int]:
        """Token ids of plain text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def complete(self, prompts: Sequence[list[int]], max_tokens: int = 200, seed: int | None = None) -> list[list[int]]:
        """New token ids after each prompt, up to and including the end token; greedy without a seed.

        With a seed: the sampling defaults of the folder's generation_config.json. Prompts of one length run as a batch.
        """
        if seed is not None:
            torch.manual_seed(seed)
        answers: dict[int, list[int]] = {}
        for length in sorted({len(prompt) for prompt in prompts}):
            numbers = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
            rows = self._generate([prompts[i] for i in numbers], max_tokens, sampled=seed is not None)
            answers |= {i: self._cut(row) for i, row in zip(numbers, rows.tolist(), strict=True)}
        return [answers[i] for i in range(len(prompts))]

    def _generate(self, prompts: list[list[int]], max_tokens: int, sampled: bool) -> Tensor:
        ids = torch.tensor(prompts)
        options = {} if sampled else {"temperature": None, "top_p": None, "top_k": None}
        with torch.inference_mode():
            full: Tensor = self.model.generate(  # type: ignore[operator, unused-ignore]
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=sampled, **options
            )
        return full[:, ids.shape[1] :]

    def _cut(self, ids: list[int]) -> list[int]:
        end = next((i + 1 for i, token in enumerate(ids) if self.ends(token)), len(ids))
        return ids[:end]

    def ends(self, token: int) -> bool:
        """True for a token that ends a text."""
        ends: list[int] = self.model.generation_config.eos_token_id  # type: ignore[union-attr, assignment, unused-ignore]
        return token in ends

    def text(self, ids: list[int]) -> str:
        """Token ids as text, without special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def load(folder: Path) -> Loaded:
    """The model in float32 and its tokenizer, as any user of transformers would load them."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Loaded(model.eval(), AutoTokenizer.from_pretrained(folder))


def share_of_right_sums(loaded: Loaded, sums: Sequence[Sum], wording: str = "What is {}?") -> float:
    """Share of sums whose greedy chat answer ends with the right number."""
    prompts = [loaded.chat_ids([Message("user", wording.format(chosen))]) for chosen in sums]
    answers = [loaded.text(ids) for ids in loaded.complete(prompts, max_tokens=24)]
    right = [answer.strip() == f"{chosen} = {chosen.result}." for chosen, answer in zip(sums, answers, strict=True)]
    return sum(right) / len(right)


def share_of_good_json(loaded: Loaded, num_requests: int, seed: int | None = None) -> tuple[float, float]:
    """(share that parses, share that parses and repeats the last word of its request)."""
    rng = Random(_REQUEST_SEED)
    questions = [snippets.ask_and_answer(rng)[0] for _ in range(num_requests)]
    prompts = [loaded.chat_ids([Message("user", question)]) for question in questions]
    answers = [loaded.text(ids) for ids in loaded.complete(prompts, seed=seed)]
    parsed = [_parses(answer) for answer in answers]
    asked = [question.removesuffix(" Use several lines.").rstrip('."').split()[-1] for question in questions]
    about = [ok and word in answer for ok, word, answer in zip(parsed, asked, answers, strict=True)]
    return sum(parsed) / num_requests, sum(about) / num_requests


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def share_of_finished_stories(loaded: Loaded, num_stories: int, seed: int) -> tuple[float, float]:
    """(share of sampled stories that end, within 200 tokens, with a sentence; share that mention their hero)."""
    rng = Random(_REQUEST_SEED)
    questions = [ask_for_story(rng)[0] for _ in range(num_stories)]
    prompts = [loaded.chat_ids([Message("user", question)]) for question in questions]
    answers = loaded.complete(prompts, seed=seed)
    finished = [loaded.ends(ids[-1]) and loaded.text(ids).rstrip().endswith((".", '"', "!")) for ids in answers]
    heroes = [_hero(question) for question in questions]
    about = [hero in loaded.text(ids) for hero, ids in zip(heroes, answers, strict=True)]
    return sum(finished) / num_stories, sum(about) / num_stories


def _hero(question: str) -> str:
    """The hero's kind or name in a request for a story; empty where the choice was left open."""
    _, _, rest = question.rstrip(".!?").partition(" about ")
    return rest.split(" named ")[0].split(" and ")[0].split(" ")[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the bundled model.")
    parser.add_argument("folder", type=Path, nargs="?", default=STORY_FOLDER)
    loaded = load(parser.parse_args().folder)
    numbers = range(MAX_ADDEND + 1)
    single = [Sum(left, "+", right) for left in range(10) for right in range(10)]
    trained = [Sum(left, "+", right) for left in numbers for right in numbers if not is_held_out(left, right)]
    less = [Sum(left, "-", right) for left in numbers for right in range(left + 1)]
    print(f"single-digit additions right     {share_of_right_sums(loaded, single):.1%} of {len(single)}")
    print(f"  in a wording never trained     {share_of_right_sums(loaded, single, 'Please, what is {}?'):.1%}")
    print(f"additions up to 20 + 20, trained {share_of_right_sums(loaded, trained):.1%} of {len(trained)}")
    held_out = held_out_sums()
    print(f"additions up to 20, held out     {share_of_right_sums(loaded, held_out):.1%} of {len(held_out)}")
    print(f"subtractions up to 20            {share_of_right_sums(loaded, less):.1%} of {len(less)}")
    for name, seed in (("greedy", None), ("sampled", 7)):
        parses, about = share_of_good_json(loaded, 200, seed)
        print(f"JSON, {name}: parses {parses:.1%}, repeats the last word asked for {about:.1%} of 200")
    finished, about = share_of_finished_stories(loaded, 100, seed=7)
    print(f"stories, sampled: end within 200 tokens {finished:.1%}, are about the hero {about:.1%} of 100")
    return 0


if __name__ == "__main__":
    sys.exit(main())
