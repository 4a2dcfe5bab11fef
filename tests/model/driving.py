"""Drives a runner by hand: lanes with pages of their own, mixed batches of chunks and decodes, greedy continuation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model.inputs import ModelInput
from model.paged_kv import PagedKv
from model.runner import Runner
from model.sampling_input import AskingRows, Banned, ParamColumns, SamplingInput


@dataclass
class Lane:
    """One request: its tokens, how many of them have KV, and its pages (shuffled over the pool, never page 0)."""

    tokens: list[int]
    pages: list[int]
    done: int = 0
    logits: list[Tensor] = field(default_factory=list)


class Lanes:
    """A pool of pages and lanes on it."""

    def __init__(self, runner: Runner, page_size: int, num_pages: int = 0, *, poison: bool = False) -> None:
        self.runner = runner
        self.page_size = page_size
        num_pages = num_pages or 2 + 4096 // page_size
        self.kv = PagedKv(runner.kv_layout(page_size), num_pages, runner.device)
        if poison:
            for layer in range(self.kv.layout.num_layers):
                self.kv.layer(layer).fill_(float("nan"))
        generator = torch.Generator().manual_seed(num_pages)
        self.free: list[int] = (torch.randperm(num_pages - 1, generator=generator) + 1).tolist()

    def lane(self, prompt: Sequence[int], room: int) -> Lane:
        """A lane with pages for the prompt and `room` more tokens."""
        count = -(-(len(prompt) + room) // self.page_size)
        pages, self.free = self.free[:count], self.free[count:]
        assert len(pages) == count, "the test needs a larger pool"
        return Lane(list(prompt), pages)

    def model_input(self, extends: Sequence[tuple[Lane, int]], decodes: Sequence[Lane]) -> ModelInput:
        """`extends` says how many more tokens of each lane to compute; `decodes` compute the one they have left."""
        device = self.runner.device
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_indices: list[int] = []
        lanes = [(lane, count) for lane, count in extends] + [(lane, 1) for lane in decodes]
        for lane, count in lanes:
            span = range(lane.done, lane.done + count)
            ids += [lane.tokens[position] for position in span]
            positions += span
            slots += [lane.pages[p // self.page_size] * self.page_size + p % self.page_size for p in span]
            if span.stop == len(lane.tokens):
                logit_indices.append(len(ids) - 1)
        width = max(len(lane.pages) for lane, _ in lanes)
        table = [lane.pages + [0] * (width - len(lane.pages)) for lane, _ in lanes]
        seq_lens = [lane.done + count for lane, count in lanes]

        def int64(values: Sequence[int] | Sequence[list[int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return ModelInput(
            input_ids_T=int64(ids),
            positions_T=int64(positions),
            slots_T=int64(slots),
            page_table_BP=int64(table),
            seq_lens_B=int64(seq_lens),
            extend_lens=tuple(count for _, count in extends),
            extend_seq_lens=tuple(lane.done + count for lane, count in extends),
            num_decodes=len(decodes),
            max_decode_seq_len=max(seq_lens[len(extends) :], default=0),
            logit_indices_L=int64(logit_indices),
        )

    def step(self, extends: Sequence[tuple[Lane, int]], decodes: Sequence[Lane] = ()) -> None:
        """One forward; lanes whose tokens are all computed get the greedy next one."""
        logits_LV = self.runner.forward(self.model_input(extends, decodes), self.kv)
        row = 0
        for lane, count in [*extends, *((lane, 1) for lane in decodes)]:
            lane.done += count
            if lane.done == len(lane.tokens):
                lane.logits.append(logits_LV[row].clone())
                lane.tokens.append(int(logits_LV[row].argmax()))
                row += 1
        assert row == logits_LV.shape[0]

    def generate(self, prompt: Sequence[int], num_tokens: int, chunk: int | None = None) -> list[int]:
        """The greedy continuation of one prompt, computed in chunks of `chunk` tokens (whole if None)."""
        lane = self.lane(prompt, num_tokens)
        while lane.done < len(prompt):
            self.step([(lane, min(chunk or len(prompt), len(prompt) - lane.done))])
        while len(lane.tokens) < len(prompt) + num_tokens:
            self.step([], [lane])
        return lane.tokens[len(prompt) :]


def idle(table_width: int = 1, device: torch.device | str = "cpu") -> ModelInput:
    """A forward without a token: a rank takes part in a step in which it has nothing to compute."""
    none, table = (torch.empty(shape, dtype=torch.int64, device=device) for shape in ((0,), (0, table_width)))
    return ModelInput(none, none, none, table, none, (), (), 0, 0, none)


def random_prompt(length: int, vocab_size: int, seed: int) -> list[int]:
    """`length` token ids."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(vocab_size, (length,), generator=generator).tolist()
    return tokens


Row = dict[str, Any]


def sampling(*rows: Row) -> SamplingInput:
    def column(name: str, default: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([row.get(name, default) for row in rows], dtype=dtype)

    top_k, top_p, min_p = (
        column("top_k", 0, torch.int64),
        column("top_p", 1.0, torch.float32),
        column("min_p", 0.0, torch.float32),
    )
    temperature = column("temperature", 1.0, torch.float32)
    position = column("position", 0, torch.int64)

    def asking(is_asking: Tensor) -> Tensor | None:
        return is_asking.nonzero()[:, 0] if is_asking.any() else None

    return SamplingInput(
        ParamColumns(
            temperature_L=temperature,
            top_k_L=top_k,
            top_p_L=top_p,
            min_p_L=min_p,
            seed_L=column("seed", 0, torch.int64),
            choice_L=column("choice", 0, torch.int64),
        ),
        AskingRows(
            top_k_N=asking(top_k > 0),
            top_p_N=asking(top_p < 1),
            min_p_N=asking(min_p > 0),
            all_greedy=bool((temperature == 0).all()),
        ),
        position_L=position,
        banned=_banned({index: row["banned"] for index, row in enumerate(rows) if row.get("banned")}, position),
    )


def _banned(ids: dict[int, tuple[int, ...]], position_L: Tensor) -> Banned | None:
    """The rows that `ids` names are bound for one more token."""
    if not ids:
        return None
    longest = max(map(len, ids.values()))
    filled = torch.tensor([[*each, *[-1] * (longest - len(each))] for each in ids.values()])
    rows_N = torch.tensor(list(ids))
    return Banned(rows_N, filled, position_L[rows_N] + 1)


def random_logits(count: int, vocab: int, seed: int) -> Tensor:
    return torch.randn((count, vocab), generator=torch.Generator().manual_seed(seed)) * 3
