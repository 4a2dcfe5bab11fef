"""A loaded model on one device with its attention backend: what a worker calls to compute.

It decides dtype and device from the user's options and the checkpoint.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model.attention import AttentionBackend, choose_attention
from model.attention_cpu import CpuAttention
from model.checkpoint import Checkpoint, Taken, folded, full_digests, open_checkpoint, sampled_digests
from model.collectives import Collectives
from model.cpu_products import Threads
from model.draft import Draft
from model.eagle import load_eagle
from model.inputs import ModelInput
from model.loaded_draft import LoadedDraft
from model.mlp import check_divides
from model.mtp import load_mtp
from model.packing import Packing, choose_packing, kernels_of
from model.paged_kv import TORCH_DTYPES, PagedKv
from model.passes import Passes, TorchPasses
from model.transformer import PREFIXES, Decoder, load_decoder, text_prefix
from protocol.errors import ConfigError
from protocol.fingerprint import Fingerprint, pack_draft, pack_weights
from protocol.kv_layout import ITEM_BYTES, KvLayout, LayerGroup, LayerLayout
from runtime.draft_config import load_draft_config, load_mtp_config
from runtime.log import get_log
from runtime.model_config import ModelConfig, config_facts, facts_digest, load_config, tokenizer_digest

log = get_log("model")
_NOT_NARROW = (
    "embed_tokens.weight",
    "norm.weight",
    "bias",
    ".gate.weight",
    ".router.weight",
    ".sinks",
)  # float32 in memory, where linears are bfloat16


class Runner(Protocol):
    """The interface that the scheduler calls: ModelRunner, FakeRunner, or a GraphedRunner around one."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> str:
        """The dtype of activations and KV: a key of protocol.kv_layout.ITEM_BYTES."""
        ...

    @property
    def mapped_weight_bytes(self) -> int:
        """Bytes of weights in the mapped file. They take memory when read, shared by the host's workers."""
        ...

    @property
    def private_weight_bytes(self) -> int:
        """Bytes of weights in this worker's own memory. Every other worker of the host takes as many."""
        ...

    @property
    def draft(self) -> Draft | None:
        """The draft that was loaded with the model, for speculative decoding."""
        ...

    @property
    def collectives(self) -> Collectives | None:
        """With the ranks that compute the model's layers together; None: this worker has no group."""
        ...

    @property
    def max_graphed(self) -> int:
        """Tokens of decodes that a captured graph computes at most; 0 without graphs."""
        ...

    def longest_at_once(self, num_decodes: int) -> int | None:
        """See AttentionBackend."""
        ...

    def kv_layout(self, page_size: int) -> KvLayout:
        """The shape of this model's KV at a page size (tokens). With a draft, its group comes behind the model's."""
        ...

    def fingerprint(self) -> Fingerprint:
        """The model's fingerprint; two workers exchange KV only if theirs are equal."""
        ...

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Logits (L, V) float32 of the wanted rows. Writes K and V of all T tokens at their slots.

        The next forward may overwrite the logits, so work enqueued after it must not read them.
        on_layer(l) is called on this thread when layer l's K and V are written (on a device: enqueued), before the
        attention of layer l. So layer l can be sent while later layers compute. A forward of no tokens reports every
        layer, too, and writes no page but the padding page 0.
        """
        ...

    def forward_with_features(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `forward`, and the features (T, F) of all tokens, from which `draft` proposes. Only with a draft.

        The next forward may overwrite them, too.
        """
        ...

    def hidden(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """As `forward`, but the hidden states of the wanted rows, from which `logits` makes their logits; and the
        features (T, F) of all tokens if there is a draft."""
        ...

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32 of hidden states."""
        ...


class DraftSource(NamedTuple):
    """Where a model's draft comes from."""

    algorithm: str  # eagle | eagle3 | mtp
    folder: Path  # the model's own for mtp
    num_layers: int = 1  # of mtp: how many of its layers are used


@dataclass(frozen=True)
class ModelRunner:
    """One loaded model. `dtype` is the dtype of KV, and of weights and activations unless `packing` widens them."""

    config: ModelConfig
    device: torch.device
    dtype: str
    decoder: Decoder
    attention: AttentionBackend
    checkpoint: Checkpoint
    packing: Packing
    check_weights: bool = False  # the fingerprint covers every byte of the weights
    max_graphed: int = 0
    draft: LoadedDraft | None = None
    draft_checkpoint: Checkpoint | None = None  # None: the draft's weights are in the model's own
    collectives: Collectives | None = None
    threads: Threads = field(default_factory=Threads)  # of the kernels on a CPU

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        context_length: int | None = None,
        attention: str = "auto",
        page_size: int = 16,
        workers_on_host: int = 1,
        check_weights: bool = False,
        cpu_kernels: bool = True,
        draft: DraftSource | None = None,
        collectives: Collectives | None = None,
    ) -> "ModelRunner":
        """Loads a Hugging Face folder.

        `device` auto: CUDA if there is one. `dtype` auto: the checkpoint's. `context_length`: longest prompt plus
        output in tokens; None: the model's limit. `page_size`: the page size to try the attention backend with.
        `workers_on_host`: how many workers share the host's memory; it decides whether each packs its weights.
        `check_weights`: read every weight, refuse NaN and infinities, and let the fingerprint cover every byte.
        `cpu_kernels`: on a CPU, use the kernels of cpu_kernels.py if they can be built. `draft`: load it, too.
        `collectives`: with the ranks of its group, which share the MLPs of the model, but not of a draft.
        Raises CheckpointError or ConfigError, each with one sentence.
        """
        folder = Path(folder)
        on = choose_device(device)
        config = load_config(folder, context_length=context_length)
        num_ranks = collectives.size if collectives else 1
        check_divides(num_ranks, config)
        refuse_sinks(attention, config)
        checkpoint = open_weights(folder, config, check_weights)
        name = choose_dtype(dtype, config, checkpoint)

        weight_bytes, threads = _count_held(checkpoint, config, collectives) * ITEM_BYTES[name], Threads()
        packing = choose_packing(
            config, on, name, weight_bytes, workers_on_host=workers_on_host, threads=threads, cpu_kernels=cpu_kernels
        )
        compute, packs = packing.compute, packing.pack

        def computing(of: ModelConfig) -> tuple[Passes, AttentionBackend]:
            """The passes and the attention of a model with this configuration."""
            kernels = kernels_of(of, compute, name, threads) if cpu_kernels and on.type == "cpu" else None
            layer = LayerLayout(of.num_kv_heads, of.head_dim, page_size, name)
            backend = choose_attention(attention, on, layer, of.num_heads, compute, of.context_length, kernels)
            if packing.row_exact and isinstance(backend, CpuAttention):
                backend = replace(backend, row_exact=True)
            return kernels or passes_of(of, on), backend

        passes, backend = computing(config)
        decoder = load_decoder(
            checkpoint,
            config,
            passes,
            to_dtype=compute,
            to_device=on,
            pack=packs,
            collectives=collectives,
            served=TORCH_DTYPES[name],
        )
        of_model = (config, on, name, decoder, backend, checkpoint, packing, check_weights)
        runner = cls(*of_model, collectives=collectives, threads=threads)
        if parts := other_parts(checkpoint):
            log.info("only the text of this model is served", without=", ".join(parts))
        if draft is not None and draft.algorithm == "mtp":
            drafts = load_mtp_config(folder, config)
            added = load_mtp(checkpoint, drafts, decoder, passes, backend, pack=packs)
            runner = replace(runner, draft=added.first(draft.num_layers))
        elif draft is not None:
            drafts = load_draft_config(draft.folder, draft.algorithm, config)
            own = open_checkpoint(draft.folder, check_weights)
            loaded = load_eagle(own, drafts, decoder, *computing(drafts.layer), pack=packs)
            runner = replace(runner, draft=loaded, draft_checkpoint=own)
        log.info("weights loaded", **runner.weights_info)
        return runner

    @property
    def weights_info(self) -> dict[str, int]:
        """What the log says of the memory that weights take. A rank of a group has a share of each MLP only."""
        mib = {"mapped_mib": self.mapped_weight_bytes >> 20, "private_mib": self.private_weight_bytes >> 20}
        ranks = self.collectives
        return mib if ranks is None else mib | {"rank": ranks.rank, "ranks": ranks.size}

    def longest_at_once(self, num_decodes: int) -> int | None:
        """See AttentionBackend."""
        return self.attention.longest_at_once(num_decodes)

    def kv_layout(self, page_size: int) -> KvLayout:
        """The shape of this model's KV at a page size (tokens); see Runner."""
        target = LayerGroup(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim)
        return KvLayout((target, *([self.draft.group] if self.draft else [])), page_size, self.dtype)

    def fingerprint(self) -> Fingerprint:
        """The model's fingerprint. Reads samples of the weights, or all of them: cheap after the first forward."""
        facts, tokenizer = config_facts(self.config), tokenizer_digest(self.checkpoint.folder)
        packed = pack_weights(facts_digest(facts, self.dtype), *self._digests(self.checkpoint), tokenizer, facts)
        if self.draft is None:
            return packed
        facts = self.draft.config.facts
        digests = self._digests(self.draft_checkpoint) if self.draft_checkpoint else ({}, None)
        return replace(packed, draft=pack_draft(facts_digest(facts, self.dtype), *digests, facts))

    def _digests(self, checkpoint: Checkpoint) -> tuple[dict[str, bytes], dict[str, bytes] | None]:
        """By tensor: digests of samples, and of all bytes if weights are checked."""
        return folded(sampled_digests(checkpoint)), folded(full_digests(checkpoint)) if self.check_weights else None

    @property
    def mapped_weight_bytes(self) -> int:
        """Bytes of weights in the mapped file: neither device, dtype nor packing needs a copy of them."""
        if self.packing.packed:
            return 0
        return sum(taken.numbers * taken.dtype.itemsize for _, taken in self._taken if taken.is_view)

    @property
    def private_weight_bytes(self) -> int:
        """Bytes of weights in this worker's memory: device, dtype or packing needs a copy of them."""
        total = sum(taken.numbers * self._item_bytes(name, taken) for name, taken in self._taken)
        return total - self.mapped_weight_bytes

    def _item_bytes(self, name: str, taken: Taken) -> int:
        """Bytes of a number of the tensor `name` in memory."""
        return (
            ITEM_BYTES[self.dtype] if self.packing.narrow and not name.endswith(_NOT_NARROW) else taken.dtype.itemsize
        )

    @property
    def _taken(self) -> Iterator[tuple[str, Taken]]:
        """Every tensor of model and draft by name, and what this worker has of it."""
        for checkpoint in filter(None, (self.checkpoint, self.draft_checkpoint)):
            yield from checkpoint.taken.items()

    def forward(self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Logits (L, V) float32; see Runner.forward."""
        return self.decoder.forward(inp, kv, self.attention, on_layer)

    def forward_with_features(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits (L, V) float32 and features (T, F); see Runner."""
        hidden_LE, features_TF = self.hidden(inp, kv, on_layer)
        assert features_TF is not None, "only a draft reads features"
        return self.decoder.logits(hidden_LE), features_TF

    def hidden(
        self, inp: ModelInput, kv: PagedKv, on_layer: Callable[[int], None] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states (L, E), and features (T, F) if there is a draft; see Runner."""
        if self.draft is None:
            return self.decoder.hidden(inp, kv, self.attention, on_layer), None
        return self.decoder.hidden_with_features(inp, kv, self.attention, on_layer, self.draft.feature_layers)

    def logits(self, hidden_LE: Tensor) -> Tensor:
        """Logits (L, V) float32; see Runner."""
        return self.decoder.logits(hidden_LE)


def _count_held(checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives | None) -> int:
    """The numbers of the whole checkpoint, less those that other ranks have of the model's linears. Reads no weight."""
    whole = {name: math.prod(shape) for name, (_, shape) in checkpoint.tensors.items()}
    if collectives is not None or config.quantised is not None:
        meta, passes = torch.device("meta"), passes_of(config, torch.device("cpu"))
        load_decoder(checkpoint, config, passes, to_dtype=torch.float32, to_device=meta, collectives=collectives)
        whole |= {name: taken.numbers for name, taken in checkpoint.taken.items()}
    return sum(whole.values())


def refuse_sinks(attention: str, config: ModelConfig) -> None:
    """ConfigError if the model has sinks and the backend that was asked for has none."""
    if attention == "varlen" and any(layer.mixer.has_sinks for layer in config.layers):
        raise ConfigError(
            "--attention-backend: got 'varlen', but it has no sinks, which this model needs", param="attention-backend"
        )


def other_parts(checkpoint: Checkpoint) -> list[str]:
    """What the tensors of other parts than the model of texts are called, if it stands beside such parts."""
    prefix = text_prefix(checkpoint)
    if prefix == PREFIXES[0]:
        return []
    names = (
        name.removeprefix("model.") for name in checkpoint if not name.startswith((prefix, "lm_head", "language_model"))
    )
    return sorted({name.split(".")[0] for name in names})


def passes_of(config: ModelConfig, device: torch.device) -> TorchPasses:
    """The passes of a model on this device: on a GPU those in Triton, if it is installed."""
    kind = TorchPasses
    if device.type == "cuda" and find_spec("triton") is not None:
        from model.passes_triton import TritonPasses  # noqa: PLC0415 - an optional package, for GPUs

        kind = TritonPasses
    return kind(config.num_heads, config.head_dim, config.rms_norm_eps)


def choose_device(name: str) -> torch.device:
    """The device of this name: auto, cpu, cuda or cuda:N. A GPU becomes this thread's current one.

    ConfigError if there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"device: got {name!r}, expected auto, cpu or cuda", param="device")
    if not name.startswith("cuda"):
        return torch.device(name)

    count = torch.cuda.device_count()
    if not count:
        raise ConfigError(f"device: got {name!r}, but torch finds no CUDA device here", param="device")
    device = torch.device("cuda", torch.device(name).index or 0)
    if device.index >= count:
        raise ConfigError(f"device: got {name!r}, but torch finds {count} CUDA devices here", param="device")
    torch.cuda.set_device(device)  # used by calls without a device: the driver, pinned memory, graphs, Triton
    return device


def open_weights(folder: Path, config: ModelConfig, check_values: bool = False) -> Checkpoint:
    """The folder's checkpoint, read as its config.json says that it is quantised. See open_checkpoint."""
    block = config.quantised.block if config.quantised and config.quantised.method == "fp8" else None
    return open_checkpoint(folder, check_values, block)


def choose_dtype(asked: str, config: ModelConfig, checkpoint: Checkpoint) -> str:
    """The dtype of weights and KV: the checkpoint's for auto. ConfigError for one that cannot be served."""
    held = config.checkpoint_dtype or checkpoint.dtype or "float32"
    if asked != "auto" and asked not in ITEM_BYTES:
        raise ConfigError(f"dtype: got {asked!r}, expected auto, {', '.join(ITEM_BYTES)}", param="dtype")
    return held if asked == "auto" else asked
