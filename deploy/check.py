"""`baton check`: whether a model folder loads, what it is made of, and how much memory it takes. Nothing is started.

It is a process of its own, `python -m deploy.check JSON`, because it needs torch, which other commands do without.
Names, shapes and dtypes of all tensors are checked as a worker does; no weight is read.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch

from deploy.model_folder import find_model, has_tokenizer
from gateway.text.chat_template import read_template_sources
from model.attention_cpu import CpuAttention
from model.checkpoint import Checkpoint
from model.host_memory import available_bytes
from model.mlp import check_divides
from model.mtp import load_mtp
from model.runner import choose_device, choose_dtype, open_weights, passes_of
from model.transformer import Decoder, load_decoder
from protocol.errors import BatonError
from protocol.kv_layout import ITEM_BYTES, KvLayout
from runtime.draft_config import load_mtp_config, num_mtp_layers
from runtime.model_config import ModelConfig, load_config
from runtime.model_parts import ExpertsConfig, LayerConfig, MlpConfig

EXIT_REFUSED: Final = 1
_GIB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `baton check` was asked, by the options' names."""

    model: str | None
    context_length: int | None
    max_running_requests: int
    page_size: int
    dtype: str
    device: str
    dp_size: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a folder has. Sizes are bytes; those of KV are of one rank."""

    folder: str
    architecture: str
    layers: list[str]  # equal ones together
    draft_layers: int  # in the model's own folder, for --speculative-algorithm mtp
    draft_weights: int  # of each rank; of those that repeat the model's embedding or head it holds none
    draft_kv_of_a_token: int
    draft_refused: str  # why layers that config.json names do not load; "": they do, or there are none
    tensors_not_read: list[str]
    has_tokenizer: bool
    chat_templates: list[str]
    context_length: int
    dtype: str
    weights: int
    weights_of_a_rank: int
    kv_of_a_token: int
    kv_of_a_context: int
    kv_of_a_batch: int
    available: int
    requests_at_once: int  # of the longest context, that fit beside the weights
    hints: list[str]


def check(asked: Asked) -> Report:
    """Reads the folder. Raises what a worker would raise for it, each with one sentence."""
    folder, device = find_model(asked.model), choose_device(asked.device)
    config = load_config(folder, context_length=asked.context_length)
    check_divides(asked.dp_size, config)
    checkpoint = open_weights(folder, config)
    decoder = load_decoder(
        checkpoint,
        config,
        passes_of(config, torch.device("cpu")),
        to_dtype=torch.float32,
        to_device=torch.device("meta"),
    )
    dtype, not_read = choose_dtype(asked.dtype, config, checkpoint), set(checkpoint) - checkpoint.taken.keys()

    item_bytes, numbers = ITEM_BYTES[dtype], _numbers_taken(checkpoint)
    of_a_rank = numbers - shared_numbers(config) // asked.dp_size * (asked.dp_size - 1)
    shape = config.num_layers, config.num_kv_heads, config.head_dim
    layout, one_token = (KvLayout.uniform(*shape, page_size, dtype) for page_size in (asked.page_size, 1))
    context = layout.num_pages(config.context_length) * layout.all_page_bytes
    available = available_bytes(device)
    taken = numbers if device.type == "cpu" else of_a_rank  # ranks of one host share the mapped file
    left = available - taken * item_bytes
    at_once = max(0, left) // (context * (asked.dp_size if device.type == "cpu" else 1))
    drafts = draft_layers(folder, checkpoint, decoder)
    return Report(
        folder=str(folder),
        architecture=config.architecture,
        layers=list(layers_in_words(config)),
        draft_layers=drafts.count,
        draft_weights=drafts.numbers * item_bytes,
        draft_kv_of_a_token=one_token.all_page_bytes // config.num_layers * drafts.count,
        draft_refused=drafts.refused,
        tensors_not_read=sorted(not_read),
        has_tokenizer=has_tokenizer(folder),
        chat_templates=sorted(read_template_sources(folder)),
        context_length=config.context_length,
        dtype=dtype,
        weights=numbers * item_bytes,
        weights_of_a_rank=of_a_rank * item_bytes,
        kv_of_a_token=one_token.all_page_bytes,
        kv_of_a_context=context,
        kv_of_a_batch=context * asked.max_running_requests,
        available=available,
        requests_at_once=at_once,
        hints=list(hints(asked, config, dtype, left, context, at_once)),
    )


def hints(asked: Asked, config: ModelConfig, dtype: str, left: int, context: int, at_once: int) -> Iterator[str]:
    """What would help. `left`: bytes beside the weights; `context`: bytes of KV of the longest one."""
    if left < 0:
        if dtype == "float32":
            yield "--dtype bfloat16 halves the weights, which do not fit"
        ranks = "--dp-size N shares the MLPs and experts out to ranks on N GPUs" if asked.device != "cpu" else ""
        yield f"the weights take {-left / _GIB:.1f} GiB more than is available{'; ' if ranks else ''}{ranks}"
    elif at_once == 0:
        tokens = left // (context // config.context_length)
        yield f"--context-length {tokens} is the longest context whose KV fits beside the weights"
    elif at_once < asked.max_running_requests:
        fewer = f"--max-running-requests {at_once}, or a lower --context-length, lets none be preempted"
        yield f"{at_once} requests of {config.context_length} tokens fit at once; {fewer}"


def shared_numbers(config: ModelConfig) -> int:
    """The weights that the ranks of a group share out: those of MLPs and experts."""
    return sum(_numbers_of(layer, config.hidden_size) for layer in config.layers)


def _numbers_of(layer: LayerConfig, hidden: int) -> int:
    match layer.feed:
        case ExpertsConfig(count=count, expert=expert, shared=shared):
            return 3 * hidden * (count * expert.width + (shared.width if shared else 0))
        case MlpConfig(width=width):
            return 3 * hidden * width


def layers_in_words(config: ModelConfig) -> Iterator[str]:
    """A line for each run of equal layers."""
    first = 0
    for layer, same in groupby(config.layers):
        last = first + len(list(same)) - 1
        which = f"layer {first}" if first == last else f"layers {first} to {last}"
        yield f"{which}: {_mixer_in_words(layer)}; {_feed_in_words(layer)}"
        first = last + 1


def _mixer_in_words(layer: LayerConfig) -> str:
    mixer = layer.mixer
    norm = {"none": "", "head": ", a norm of each head", "all": ", a norm of all heads"}[mixer.qk_norm]
    window = f", a window of {mixer.window} tokens" if mixer.window else ""
    sinks = ", a sink of each head" if mixer.has_sinks else ""
    heads = f"{mixer.num_heads} heads and {mixer.num_kv_heads} KV heads of {mixer.head_dim}"
    return f"attention with {heads}{norm}{window}{sinks}"


def _feed_in_words(layer: LayerConfig) -> str:
    match layer.feed:
        case ExpertsConfig(count=count, router=router, expert=expert, shared=shared):
            groups = f" from {router.num_chosen_groups} of {router.num_groups} groups" if router.num_groups > 1 else ""
            beside = f", and a shared one of {shared.width}" if shared else ""
            return (
                f"{count} experts of {expert.width}, {router.num_chosen} for a token{groups} by {router.scores}{beside}"
            )
        case MlpConfig(width=width):
            return f"an MLP of {width}"


@dataclass(frozen=True)
class DraftLayers:
    """The draft layers of a folder, and how many numbers their weights have. `refused`: why they do not load."""

    count: int = 0
    numbers: int = 0
    refused: str = ""


def draft_layers(folder: Path, checkpoint: Checkpoint, decoder: Decoder) -> DraftLayers:
    """The draft layers that config.json names, read as a worker does with --speculative-algorithm mtp. They are taken
    from the checkpoint."""
    try:
        num_mtp_layers(folder)
    except BatonError:
        return DraftLayers()
    before = _numbers_taken(checkpoint)
    try:
        config = load_mtp_config(folder, decoder.config)
        load_mtp(checkpoint, config, decoder, decoder.passes, CpuAttention(torch.float32))
    except BatonError as error:
        return DraftLayers(refused=error.message)
    return DraftLayers(config.layer.num_layers, _numbers_taken(checkpoint) - before)


def _numbers_taken(checkpoint: Checkpoint) -> int:
    return sum(taken.numbers for taken in checkpoint.taken.values())


def in_words(report: Report, asked: Asked) -> Iterator[str]:
    """The report for people."""
    yield f"{report.folder}: {report.architecture}, loads"
    yield from (f"  {line}" for line in report.layers)
    templates = f"chat templates: {', '.join(report.chat_templates)}" if report.chat_templates else "no chat template"
    tokenizer = "a tokenizer" if report.has_tokenizer else "no tokenizer: requests must send token ids"
    count = report.draft_layers
    drafts = f"{count} draft layer{'' if count == 1 else 's'}" if count else "no draft layers"
    yield f"  {tokenizer}; {templates}; {drafts}{' that load' if report.draft_refused else ''}"
    if report.tensors_not_read:
        others = report.tensors_not_read
        yield f"  {len(others)} tensors are none of the model itself, such as {others[0]}"

    ranks = f", {_size(report.weights_of_a_rank)} for each of {asked.dp_size} ranks" if asked.dp_size > 1 else ""
    yield f"weights in {report.dtype}: {_size(report.weights)}{ranks}"
    yield (
        f"KV: {report.kv_of_a_token:,} bytes a token, {_size(report.kv_of_a_context)} for a context of"
        f" {report.context_length:,}, {_size(report.kv_of_a_batch)} for {asked.max_running_requests} of them"
    )
    if report.draft_layers:
        each = " for each rank" if asked.dp_size > 1 else ""
        sizes = f"weights {_size(report.draft_weights)}{each}, KV {report.draft_kv_of_a_token:,} bytes a token"
        yield f"a draft by its own layers (--speculative-algorithm mtp) takes as well: {sizes}"
    elif report.draft_refused:
        yield f"no draft by its own layers (--speculative-algorithm mtp): {report.draft_refused}"
    fit = f"in which {report.requests_at_once:,} such contexts fit beside the weights"
    yield f"available: {_size(report.available)}, {fit}"
    yield from (f"hint: {hint}" for hint in report.hints)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / (1 << 20):.1f} MiB"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report; returns the exit status. The first argument is JSON of the options; the second may be json."""
    settings, *form = sys.argv[1:] if argv is None else argv
    asked = Asked(**json.loads(settings))
    try:
        report = check(asked)
    except BatonError as error:
        if form == ["json"]:
            print(json.dumps({"loads": False, "error": error.message, "param": error.param}, indent=2))
        else:
            print(f"baton: error: {error.message}", file=sys.stderr)
        return EXIT_REFUSED
    found: dict[str, Any] = {"loads": True, **asdict(report)}
    print(json.dumps(found, indent=2) if form == ["json"] else "\n".join(in_words(report, asked)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
