"""Which rows a launch scores, and what its words say."""

import pytest
import torch
from torch import Tensor

from model import logprobs
from model.inputs import ModelInput
from model.logprobs import PromptRows, score
from model.paged_kv import PagedKv
from protocol.message import MAX_BLOB_BYTES
from scheduler.execution.prompt_scores import pieces_of_prompts, prompt_rows, scored_forward, scores_of
from scheduler.plan import Chunk, Scores
from tests.doubles.hash_model import FakeRunner

CPU = torch.device("cpu")
IDS = tuple(range(40, 60))


def chunk(start: int, end: int, scores: Scores | None = None) -> Chunk:
    return Chunk(1, start, IDS[start:end], scores=scores)


def test_the_row_of_a_token_is_that_of_the_one_before() -> None:
    first, last = Scores(3, IDS[3:6], 2), Scores(9, IDS[9:11], 5)
    chunks = (chunk(0, 4), chunk(2, 5, first), chunk(0, 3), chunk(8, 12, last))
    rows = prompt_rows(chunks, CPU)
    assert rows is not None and rows.num_top == 5 and scores_of(chunks) == (first, last)
    assert rows.rows_S.tolist() == [4, 5, 6, 10, 11], "behind the tokens of the chunks before"
    assert rows.next_S.tolist() == [*IDS[3:6], *IDS[9:11]]
    assert prompt_rows((chunk(0, 4),), CPU) is None and scores_of((chunk(0, 4),)) == ()


@pytest.mark.parametrize("most", [1, 211 * 3, 2**24])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also beside rows that are drawn from, and with a draft, which reads features."""
    monkeypatch.setattr(logprobs, "MAX_LOGITS", most)
    for seed in (None, 1):
        runner = FakeRunner(vocab_size=211, draft_seed=seed)
        kv = PagedKv(runner.kv_layout(4), 8, CPU)
        inp = ModelInput(
            input_ids_T=torch.tensor(IDS[:9]),
            positions_T=torch.arange(9),
            slots_T=torch.arange(4, 13),
            page_table_BP=torch.tensor([[1, 2, 3]]),
            seq_lens_B=torch.tensor([9]),
            extend_lens=(9,),
            extend_seq_lens=(9,),
            num_decodes=0,
            max_decode_seq_len=0,
            logit_indices_L=torch.tensor([8, 8]),
        )
        rows = PromptRows(torch.arange(2, 8), torch.tensor(IDS[3:9]), 3)
        logits_LV, features_TF, words = scored_forward(runner, inp, kv, None, rows)
        assert (features_TF is None) == (seed is None)
        assert torch.equal(logits_LV, logits_behind(runner, inp, kv, [8, 8]))
        right = score(logits_behind(runner, inp, kv, range(2, 8)), rows.next_S, 3)
        assert words.tolist() == right.flatten().tolist()


def logits_behind(runner: FakeRunner, inp: ModelInput, kv: PagedKv, rows: range | list[int]) -> Tensor:
    return runner.forward(ModelInput(**{**vars(inp), "logit_indices_L": torch.tensor([*rows])}), kv)


def test_each_chunk_gets_as_many_as_it_asks_for() -> None:
    logits, tokens = torch.randn(5, 30), torch.tensor([1, 2, 3, 4, 5])
    words = score(logits, tokens, 4).flatten().tolist()
    [first], [second] = pieces_of_prompts((Scores(1, (1, 2), 1), Scores(7, (3, 4, 5), 4)), words)
    assert (first.num_top, first.num_tokens, second.num_top, second.num_tokens) == (1, 2, 4, 3)
    whole = logits.log_softmax(-1)
    for row, scores in enumerate((*first.tokens(), *second.tokens())):
        assert scores.logprob == pytest.approx(float(whole[row, tokens[row]]), abs=1e-5)


def test_pieces_fit_into_messages() -> None:
    num_tokens, num_top = 4000, 20
    words = list(range(num_tokens * (2 + 2 * num_top)))
    [pieces] = pieces_of_prompts((Scores(1, (0,) * num_tokens, num_top),), words)
    assert len(pieces) == 3 and sum(piece.num_tokens for piece in pieces) == num_tokens
    assert all(len(piece.raw) <= MAX_BLOB_BYTES for piece in pieces)
    assert b"".join(piece.raw for piece in pieces) == b"".join(word.to_bytes(4, "little") for word in words)
