"""The first forwards of a worker, before it reports that it is ready. They compile and load what later ones need.
warm_requests.py has the first requests, which draw tokens.

A GPU's attention kernel takes seconds to compile. In a serving loop that would look like a hang. Only page 0, the
padding, is read and written.
"""

from dataclasses import replace

import torch

from model.collectives import outside_steps
from model.draft import first_layer
from model.graphs import GraphedRunner, Lanes
from model.host_copies import HostCopies
from model.paged_kv import PagedKv
from model.runner import Runner
from protocol.errors import ConfigError, InternalError
from scheduler.draft_shape import NO_DRAFT, DraftShape
from scheduler.execution.streams import Stream


def warm_up(
    runner: Runner,
    kv: PagedKv,
    forward: Stream,
    *,
    max_requests: int,
    max_pages: int,
    host: HostCopies | None = None,
    shape: DraftShape = NO_DRAFT,
    num_ranks: int = 1,
) -> None:
    """Runs one chunk of a prompt and one decode on the forward stream, and copies a page to host memory and back.

    With a tree draft there is also a decode with a tree mask. A draft runs behind each. A runner with graphs then
    captures decodes of up to `max_requests` requests with `max_pages` pages each, with as many tokens of a request as a
    draft of `shape` needs. All `num_ranks` ranks of a group run the same forwards.
    Blocks until all is done. InternalError when a forward fails, ConfigError as from GraphedRunner.capture.
    Page 0 holds zeros afterwards.
    """
    errors: list[Exception] = []
    trees = shape.is_tree

    def run_all() -> None:
        try:
            with torch.inference_mode():
                step = outside_steps(num_ranks, 1)
                decode = replace(Lanes(1, 1, kv.layout.page_size, runner.device).input, step=step)
                chunk = replace(decode, extend_lens=(1,), extend_seq_lens=(1,), num_decodes=0, max_decode_seq_len=0)
                node = replace(Lanes(1, 1, kv.layout.page_size, runner.device, trees=True).input, step=step)
                for inp in (chunk, decode, node) if trees else (chunk, decode):
                    if runner.draft is None:
                        runner.forward(inp, kv)
                    else:
                        _, features_TF = runner.forward_with_features(inp, kv)
                        first_layer(runner.draft, inp, runner.draft.fuse(features_TF), kv)
                padding_N = torch.zeros(1, dtype=torch.int64, device=kv.device)
                for layer in range(kv.layout.num_layers):
                    kv.stage_out(layer, padding_N)
                kv.stage_in(padding_N)
                if host is not None:
                    host.spill(padding_N, padding_N)
                    host.fill(padding_N, padding_N)
                if isinstance(runner, GraphedRunner):
                    runner.capture(kv, max_requests, max_pages, shape.num_computed, trees=trees)
                clear_padding(kv)
        except Exception as error:  # noqa: BLE001 - segments must not raise; the caller's thread raises it again
            errors.append(error)

    forward.launch([run_all])
    forward.record().synchronize()
    if errors and isinstance(errors[0], ConfigError):
        raise errors[0]
    if errors:
        raise InternalError(f"the first forward has failed: {errors[0]}") from errors[0]


def clear_padding(kv: PagedKv) -> None:
    """Page 0 holds zeros afterwards, in every layer."""
    for layer in range(kv.layout.num_layers):
        kv.layer(layer)[0].zero_()
