"""The first forwards of a worker, before it reports that it is ready. They compile and load what later ones need.

A GPU's attention kernel takes seconds to compile. In a serving loop that would look like a hang. Only page 0, the
padding, is read and written.
"""

import torch
from torch import Tensor

from model.graphs import GraphedRunner
from model.inputs import ModelInput
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.errors import InternalError
from protocol.kv_layout import pages_for
from scheduler.streams import Stream


def warm_up(runner: Runner, kv: PagedKv, forward: Stream, *, max_requests: int, max_pages: int) -> None:
    """Runs one chunk of a prompt and one decode on the forward stream, and copies a page to its twin and back.

    A runner with graphs then captures decodes of up to `max_requests` requests with `max_pages` pages each.
    Blocks until all is done. InternalError when a forward fails. Page 0 holds zeros afterwards.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            with torch.inference_mode():
                _two_forwards(runner, kv)
                if isinstance(kv, MirroredKv):
                    kv.stage_out(0, torch.zeros(1, dtype=torch.int64, device=kv.device))
                    kv.stage_in(torch.zeros(1, dtype=torch.int64, device=kv.device))
                if isinstance(runner, GraphedRunner):
                    runner.capture(kv, max_requests, max_pages)
                for layer in range(kv.layout.num_layers):
                    kv.layer(layer)[0].zero_()
        except Exception as error:  # noqa: BLE001 - segments must not raise; the caller's thread raises it again
            errors.append(error)

    forward.launch([run])
    forward.record().synchronize()
    if errors:
        raise InternalError(f"the first forward has failed: {errors[0]}") from errors[0]


def _two_forwards(runner: Runner, kv: PagedKv) -> None:
    for position, is_decode in ((0, False), (1, True)):
        runner.forward(_one_token(position, is_decode, kv.layout.page_size, runner.device), kv)


def _one_token(position: int, is_decode: bool, page_size: int, device: torch.device) -> ModelInput:
    """The input of a request whose token at `position` is computed. All its pages are page 0."""

    def column(value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int64, device=device)

    seq_len = position + 1
    return ModelInput(
        input_ids_T=column(0),
        positions_T=column(position),
        slots_T=column(position % page_size),
        page_table_BP=torch.zeros((1, pages_for(seq_len, page_size)), dtype=torch.int64, device=device),
        seq_lens_B=column(seq_len),
        extend_lens=() if is_decode else (1,),
        extend_seq_lens=() if is_decode else (seq_len,),
        num_decodes=int(is_decode),
        max_decode_seq_len=seq_len if is_decode else 0,
        logit_indices_L=column(0),
    )
