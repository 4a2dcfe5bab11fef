"""What a draft learns from and is measured on: prompts of the bundled model's kind, and what the model itself answers.

A draft is right when it proposes what its target says, so the target's own answers are its text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.paged_kv import PagedKv
from model.runner import ModelRunner
from model.sampler import sample
from model.sampling_input import AskingRows, ParamColumns, SamplingInput
from models.train import corpus
from models.train.recipe import SAMPLING
from models.train.special import TURN_START
from models.train.train import STORY_FOLDER
from testkit.inputs import chunks, decodes

HELD_OUT_SEED = 987_654  # of prompts on which drafts are measured, and from which none learns
_PAGE = 16
_OPENING = 8  # tokens of a plain text that serve as a prompt
_ASSISTANT = f"{TURN_START}assistant\n"
_AT_A_TIME = 64  # texts that the model writes together
Draw = Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]  # logits, text numbers, positions -> tokens


def sampling(temperatures: Sequence[float], seeds: Sequence[int], positions: Sequence[int]) -> SamplingInput:
    """What rows are sampled with: the folder's top-k and top-p, and these."""
    num_rows = len(seeds)
    rows_L = torch.arange(num_rows)
    params = ParamColumns(
        temperature_L=torch.tensor(temperatures),
        top_k_L=torch.full((num_rows,), int(SAMPLING["top_k"])),
        top_p_L=torch.full((num_rows,), SAMPLING["top_p"]),
        min_p_L=torch.zeros(num_rows),
        seed_L=torch.tensor(seeds),
        choice_L=torch.zeros(num_rows, dtype=torch.int64),
    )
    return SamplingInput(params, AskingRows(rows_L, rows_L, None, not any(temperatures)), torch.tensor(positions), None)


def mixed_draw(logits_LV: Tensor, texts: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Every third text greedy, the others with the folder's defaults; a text's number is its seed."""
    temperatures = [SAMPLING["temperature"] if text % 3 else 0.0 for text in texts]
    drawn: Tensor = sample(logits_LV, sampling(temperatures, texts, positions))
    return drawn


@dataclass(frozen=True)
class Text:
    """A prompt and what the target made of it."""

    ids: tuple[int, ...]
    num_prompt: int


def prompts(seed: int, count: int) -> list[tuple[int, ...]]:
    """Conversations up to where the assistant speaks for the last time, and openings of plain texts."""
    tokenizer = Tokenizer.from_file(str(STORY_FOLDER / "tokenizer.json"))
    lists = []
    for document in corpus.sample(seed, count):
        asked, turn, _ = document.rpartition(_ASSISTANT)
        ids = tokenizer.encode(asked + turn).ids if turn else tokenizer.encode(document).ids[:_OPENING]
        lists.append(tuple(ids))
    return lists


def answers(runner: ModelRunner, asked: Sequence[Sequence[int]], draw: Draw, max_tokens: int) -> list[Text]:
    """The prompts with the model's answers of at most `max_tokens` tokens, an end token included."""
    lists = [list(prompt) for prompt in asked]
    max_pages = runner.kv_layout(_PAGE).num_pages(max(map(len, asked)) + max_tokens)
    kv = PagedKv(runner.kv_layout(_PAGE), 1 + _AT_A_TIME * max_pages)
    tables_BP = torch.arange(1, kv.num_pages).view(_AT_A_TIME, max_pages)

    order = sorted(range(len(asked)), key=lambda index: len(asked[index]))
    for start in range(0, len(order), _AT_A_TIME):
        rows = dict(enumerate(order[start : start + _AT_A_TIME]))  # by the row of the page table
        prompts = [asked[text] for text in rows.values()]
        ids_T = torch.tensor([token for prompt in prompts for token in prompt])
        inp = chunks(ids_T, [*map(len, prompts)], tables_BP[: len(rows)], _PAGE)
        for _ in range(max_tokens):
            logits_LV = runner.forward(inp, kv)
            tokens = draw(logits_LV, list(rows.values()), inp.seq_lens_B.tolist()).tolist()
            for text, token in zip(rows.values(), tokens, strict=True):
                lists[text].append(token)
            rows = {row: text for row, text in rows.items() if lists[text][-1] not in runner.config.eos_token_ids}
            if not rows:
                break
            texts = [lists[text] for text in rows.values()]
            ends_B = torch.tensor([[text[-1], len(text) - 1] for text in texts])
            inp = decodes(ends_B[:, 0], ends_B[:, 1], tables_BP[list(rows)], _PAGE)
    return [Text(tuple(ids), len(prompt)) for ids, prompt in zip(lists, asked, strict=True)]


@dataclass(frozen=True)
class Batch:
    """Texts of similar length, padded. Shapes: R texts, S tokens of the longest."""

    ids_RS: Tensor
    is_answer_RS: Tensor  # True at the tokens that the target made


def batches(texts: Sequence[Text], tokens_per_batch: int) -> list[Batch]:
    """The texts, those of similar length together."""
    groups: list[list[Text]] = [[]]
    for text in sorted(texts, key=lambda text: len(text.ids)):
        if (len(groups[-1]) + 1) * len(text.ids) > tokens_per_batch:
            groups.append([])
        groups[-1].append(text)
    return [padded(group) for group in groups if group]


def padded(texts: Sequence[Text]) -> Batch:
    """One batch of these texts; padded with id 0, which is no answer."""
    longest = max(len(text.ids) for text in texts)
    ids = [[*text.ids, *[0] * (longest - len(text.ids))] for text in texts]
    answers = [[text.num_prompt <= position < len(text.ids) for position in range(longest)] for text in texts]
    return Batch(torch.tensor(ids), torch.tensor(answers))
