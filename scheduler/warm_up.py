"""The first forwards of a worker, before it says that it is ready: what is compiled or loaded on first use is, by then.

A GPU's attention kernel takes seconds to compile, in which a serving loop would look like one that hangs. Only page 0
is read and written: padding, which nobody owns. What it does not know: requests, or what is compiled.
"""

import torch
from torch import Tensor

from model.graphs import GraphedRunner
from model.inputs import ModelInput
from model.mirrored_kv import MirroredKv
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.errors import InternalError
from scheduler.streams import Stream


def warm_up(runner: Runner, kv: PagedKv, forward: Stream, *, max_requests: int, max_pages: int) -> None:
    """One tiny chunk of a prompt, then one decode, on the forward stream; a page to its twin and back, if there is one;
    then graphs of decodes of up to `max_requests` requests with `max_pages` pages each, if the runner has graphs.
    Blocks until all is done. InternalError when a forward fails. Page 0 holds zeros afterwards."""
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
        except Exception as error:  # noqa: BLE001 - segments must not raise; raised again on the caller's thread
            errors.append(error)

    forward.launch([run])
    forward.synchronize()
    if errors:
        raise InternalError(f"the first forward has failed: {errors[0]}") from errors[0]


def _two_forwards(runner: Runner, kv: PagedKv) -> None:
    for position, is_decode in ((0, False), (1, True)):
        runner.forward(_one_token(position, is_decode, kv.layout.page_size, runner.device), kv)


def _one_token(position: int, is_decode: bool, page_size: int, device: torch.device) -> ModelInput:
    """A request whose token at `position` is computed; all its pages are page 0."""

    def column(value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int64, device=device)

    seq_len = position + 1
    return ModelInput(
        input_ids_T=column(0),
        positions_T=column(position),
        slots_T=column(position % page_size),
        page_table_BP=torch.zeros((1, -(-seq_len // page_size)), dtype=torch.int64, device=device),
        seq_lens_B=column(seq_len),
        extend_lens=() if is_decode else (1,),
        extend_seq_lens=() if is_decode else (seq_len,),
        num_decodes=int(is_decode),
        max_decode_seq_len=seq_len if is_decode else 0,
        logit_indices_L=column(0),
    )
