"""Trains the bundled model from nothing and writes its folder: `python -m models.train.train`.

One seed decides the text, the initial weights and so the result. Figures on the result: see measure.py.
Shape suffixes: R rows, T tokens of a row, V vocabulary.
"""

import argparse
import ctypes
import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from models.train import corpus
from models.train.packing import IGNORED, pack
from models.train.recipe import Recipe, config_json, generation_config_json
from models.train.special import END_OF_TEXT, SPECIAL_TOKENS
from models.train.tokenizer import train_tokenizer, write_tokenizer

STORY_FOLDER = Path(__file__).resolve().parents[1] / "story"
CHECK_STEPS = 6


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the bundled model and write its folder.")
    parser.add_argument("--out", type=Path, default=STORY_FOLDER, help="folder to write (default: %(default)s)")
    parser.add_argument(
        "--check",
        nargs="?",
        type=int,
        const=CHECK_STEPS,
        metavar="STEPS",
        help=f"train STEPS steps ({CHECK_STEPS} unless told), print losses and hash; write nothing",
    )
    arguments = parser.parse_args()
    recipe = Recipe()
    if arguments.check is not None:
        print(json.dumps(check(recipe, arguments.check), indent=2))
        return 0
    started_s = time.monotonic()
    tokenizer = train_tokenizer(recipe.shape.vocab_size)
    tell = telling(every=60)
    model, losses = train(recipe, tokenizer, recipe.num_steps, lambda step, loss: tell(step, [loss]))
    write_model(model, tokenizer, recipe, arguments.out)
    mean_loss = sum(losses[-50:]) / len(losses[-50:])
    print(
        f"loss of the last 50 steps {mean_loss:.4f}; {time.monotonic() - started_s:.0f} s; hash {weights_hash(model)}"
    )
    print(f"wrote {arguments.out}; now: python -m models.train.measure {arguments.out}")
    return 0


def telling(every: int) -> Callable[[int, Sequence[float]], None]:
    """Prints the losses of each step whose number `every` divides; a draft has one for each of its steps."""
    started_s = time.monotonic()

    def tell(step: int, losses: Sequence[float]) -> None:
        if (step + 1) % every == 0:
            words = " ".join(f"{loss:.3f}" for loss in losses)
            print(f"step {step + 1}: loss {words}, {time.monotonic() - started_s:.0f} s", flush=True)

    return tell


def check(recipe: Recipe, num_steps: int) -> dict[str, object]:
    """The first steps of the recipe: their losses, and a hash of the weights they lead to."""
    model, losses = train(recipe, train_tokenizer(recipe.shape.vocab_size), num_steps, lambda _step, _loss: None)
    return {
        "machine": machine(),
        "losses": [round(loss, 4) for loss in losses],
        "weights_sha256": weights_hash(model),
    }


def machine() -> str:
    """What the last bits of the weights depend on: the build of torch, the processor and its instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    processor = {line for line in lines if line.startswith(("model name", "flags"))}
    name = next((line.split(": ")[-1] for line in sorted(processor, reverse=True)), platform.machine())
    return f"torch {torch.__version__}, {name} {hashlib.sha256(str(sorted(processor)).encode()).hexdigest()[:8]}"


def train(
    recipe: Recipe, tokenizer: Tokenizer, num_steps: int, on_step: Callable[[int, float], object]
) -> tuple[Qwen3ForCausalLM, list[float]]:
    """The model after the first `num_steps` of the recipe, in float32, and the loss of every step."""
    prepare(recipe)
    model = Qwen3ForCausalLM(Qwen3Config(**config_json(recipe.shape) | {"torch_dtype": "float32"}))
    model.train()
    optimizers = make_optimizers(model, recipe)
    losses: list[float] = []
    batches = _batches(recipe, tokenizer)
    for step in range(num_steps):
        inputs_RT, targets_RT = next(batches)
        logits_RTV = model(input_ids=inputs_RT, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits_RTV.flatten(0, 1), targets_RT.flatten(), ignore_index=IGNORED)
        loss.backward()
        advance(model, optimizers, recipe, step)
        losses.append(loss.item())
        on_step(step, losses[-1])
    return model, losses


def make_optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings, heads and norms."""
    named = dict(model.named_parameters())
    inside = {name for name, p in named.items() if p.ndim == 2 and "embed" not in name and "head" not in name}
    matrices = [p for name, p in named.items() if name in inside]
    others = [p for name, p in named.items() if name not in inside]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_lr, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(others, lr=recipe.embedding_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def advance(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], recipe: Recipe, step: int) -> None:
    """One step of every optimiser with the gradients at hand, which are cleared."""
    nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * recipe.lr_factor(step)
        optimizer.step()
        optimizer.zero_grad()


def _batches(recipe: Recipe, tokenizer: Tokenizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs_RT, targets_RT), int64, of the recipe's seed."""
    ids = (tokenizer.encode(text).ids for text in corpus.documents(recipe.seed))
    rows = pack(ids, recipe.row_tokens, SPECIAL_TOKENS.index(END_OF_TEXT))
    while True:
        batch = [next(rows) for _ in range(recipe.rows_per_step)]
        yield torch.tensor([inputs for inputs, _ in batch]), torch.tensor([targets for _, targets in batch])


def write_model(model: nn.Module, tokenizer: Tokenizer, recipe: Recipe, folder: Path) -> None:
    """The whole Hugging Face folder, weights in bfloat16, the tied output matrix left out."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(tokenizer, folder, recipe.shape.max_position_embeddings)
    for name, value in (("config", config_json(recipe.shape)), ("generation_config", generation_config_json())):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    save_weights(model, folder)


def save_weights(model: nn.Module, folder: Path, beside: Mapping[str, Tensor] | None = None) -> None:
    """model.safetensors in `folder`, bfloat16, with the weights `beside`."""
    weights = folder / "model.safetensors"
    save_file({**(beside or {}), **_stored_weights(model)}, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # readable by whoever serves it


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names and bfloat16 bytes of the weights as they are stored."""
    digest = hashlib.sha256()
    for name, weight in sorted(_stored_weights(model).items()):
        digest.update(name.encode())
        digest.update(weight.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _stored_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters in bfloat16, a tied one once, and buffers of integers."""
    weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    return weights | {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_floating_point()}


def prepare(recipe: Recipe) -> None:
    """Makes this process repeat itself: threads, kernels, seed.

    Asks glibc to keep freed blocks: else each step returns and refaults all activations, a third of its time.
    """
    torch.set_num_threads(recipe.num_threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for parameter, value in ((-4, 0), (-1, (1 << 31) - 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD
            libc.mallopt(parameter, value)


if __name__ == "__main__":
    sys.exit(main())
