"""Workers with different weights notice it; the same weights agree, however they lie in files."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import (
    BLOCK_BYTES,
    BLOCKS_PER_TENSOR,
    folded,
    full_digests,
    open_checkpoint,
    sample_places,
    sampled_digests,
)
from model.runner import ModelRunner
from protocol.fingerprint import MAX_TENSORS, Fingerprint, difference
from testkit.checkpoints import make_checkpoint

NAME = "model.layers.0.mlp.up_proj.weight"


def fingerprint(folder: Path, *, check_weights: bool = False) -> Fingerprint:
    return ModelRunner.load(folder, device="cpu", check_weights=check_weights).fingerprint()


def turn_bit(folder: Path, name: str, at: int) -> None:
    """Changes one bit of byte `at` of a tensor in model.safetensors."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    start, _ = json.loads(content[8 : 8 + header_bytes])[name]["data_offsets"]
    content[8 + header_bytes + start + at] ^= 1
    path.write_bytes(content)


def test_the_same_weights_agree_in_one_file_and_in_shards(tmp_path: Path) -> None:
    whole = make_checkpoint(tmp_path / "whole", "llama")
    sharded = make_checkpoint(tmp_path / "sharded", "llama", max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert fingerprint(whole) == fingerprint(sharded)
    assert fingerprint(whole, check_weights=True) == fingerprint(sharded, check_weights=True)


def test_other_weights_of_the_same_shapes_differ_and_the_first_tensor_is_named(tmp_path: Path) -> None:
    base = fingerprint(make_checkpoint(tmp_path / "base", "llama"))
    tuned = fingerprint(make_checkpoint(tmp_path / "tuned", "llama", seed=1))
    sentence = difference(base, tuned, "prefill-0", "decode-0")
    names = sorted(open_checkpoint(tmp_path / "base"))
    assert sentence is not None and sentence.startswith(f"weights: the digest of tensor {names[0]!r} is ")
    assert sentence.endswith(f"({len(names)} of {len(names)} tensors differ)")


def test_one_changed_tensor_is_the_one_that_is_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen2")
    before = fingerprint(folder)
    turn_bit(folder, NAME, 100)
    sentence = difference(before, fingerprint(folder), "a", "b")
    assert sentence is not None and f"tensor {NAME!r} is " in sentence and "(1 of " in sentence


def test_a_full_hash_sees_what_a_sample_misses(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama", num_hidden_layers=1, intermediate_size=4000)
    sampled, full = fingerprint(folder), fingerprint(folder, check_weights=True)
    assert difference(sampled, full, "a", "b") is None  # only one of them has hashed everything
    places = sample_places(NAME, len(open_checkpoint(folder).raw(NAME)))
    unread = next(one[1] for one, other in pairwise(places) if one[1] < other[0])
    turn_bit(folder, NAME, unread)
    assert difference(sampled, fingerprint(folder), "a", "b") is None
    sentence = difference(full, fingerprint(folder, check_weights=True), "a", "b")
    assert sentence is not None and NAME in sentence


def test_dtype_and_shape_of_a_tensor_count(tmp_path: Path) -> None:
    tensors = load_file(make_checkpoint(tmp_path / "a", "llama") / "model.safetensors")
    expected = sampled_digests(open_checkpoint(tmp_path / "a"))
    name = "model.layers.0.self_attn.q_proj.weight"
    for what, tensor in {"shape": tensors[name].reshape(-1), "dtype": tensors[name].view(torch.int32)}.items():
        (tmp_path / what).mkdir()
        save_file({**tensors, name: tensor}, tmp_path / what / "model.safetensors")
        found = sampled_digests(open_checkpoint(tmp_path / what))
        assert {each for each in found if found[each] != expected[each]} == {name}


@pytest.mark.parametrize("num_bytes", [0, 1, 32768, 32769, 40_000, 10**6, 2**33 + 5])
def test_places_are_bounded_distinct_and_within_the_tensor(num_bytes: int) -> None:
    places = sample_places(NAME, num_bytes)
    assert places == sample_places(NAME, num_bytes)
    assert sum(end - start for start, end in places) <= BLOCKS_PER_TENSOR * BLOCK_BYTES
    assert places[0][0] == 0 and places[-1][1] == num_bytes
    assert all(one[0] < other[0] for one, other in pairwise(places))
    if num_bytes > 10**6:
        assert places != sample_places("another", num_bytes)


def test_the_whole_sample_is_bounded() -> None:
    rng = random.Random(1)
    most = sum(end - start for i in range(MAX_TENSORS) for start, end in sample_places(str(i), rng.randrange(2**40)))
    assert most <= MAX_TENSORS * BLOCKS_PER_TENSOR * BLOCK_BYTES == 64 * 1024 * 1024


def test_every_byte_counts_in_a_full_hash(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama", num_hidden_layers=1)
    before = full_digests(open_checkpoint(folder))
    for at in (0, 5000, len(open_checkpoint(folder).raw(NAME)) - 1):
        turn_bit(folder, NAME, at)
        after = full_digests(open_checkpoint(folder))
        assert {name for name in after if after[name] != before[name]} == {NAME}
        turn_bit(folder, NAME, at)


def test_the_tokenizer_of_the_folder_is_in_the_fingerprint(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama")
    assert fingerprint(folder).tokenizer == ""
    (folder / "tokenizer.json").write_text("{}")
    one = fingerprint(folder)
    (folder / "tokenizer.json").write_text("[]")
    other = fingerprint(folder)
    assert len({one.tokenizer, other.tokenizer, ""}) == 3
    assert difference(one, other, "a", "b") is None  # workers see ids only; the gateway compares it with its own


def test_the_experts_of_a_layer_have_one_digest_for_each_of_their_linears(tmp_path: Path) -> None:
    """So a fingerprint has room for thousands of experts, and still names what differs."""
    folder = make_checkpoint(tmp_path, "qwen3_moe")
    before, names = fingerprint(folder, check_weights=True), set(open_checkpoint(folder))
    digests = full_digests(open_checkpoint(folder))
    assert folded(digests).keys() == {name for name in names if ".experts." not in name} | {
        f"model.layers.{layer}.mlp.experts.*.{linear}_proj.weight"
        for layer in (0, 2)
        for linear in ("gate", "up", "down")
    }
    swapped = {
        name.replace(".experts.0.", ".experts.x.").replace(".experts.1.", ".experts.0.").replace(".x.", ".1."): digest
        for name, digest in digests.items()
    }
    assert sum(one != folded(digests)[name] for name, one in folded(swapped).items()) == 2 * 3

    turn_bit(folder, "model.layers.2.mlp.experts.5.up_proj.weight", 8)
    sentence = difference(before, fingerprint(folder, check_weights=True), "a", "b")
    assert sentence is not None and "tensor 'model.layers.2.mlp.experts.*.up_proj.weight' is " in sentence
    assert "(1 of " in sentence


def test_of_a_large_expert_the_two_ends_are_sampled() -> None:
    name, size = "model.layers.0.mlp.experts.12.up_proj.weight", 1 << 20
    assert sample_places(name, size) == [(0, BLOCK_BYTES), (size - BLOCK_BYTES, size)]
    assert sample_places(name, BLOCK_BYTES) == [(0, BLOCK_BYTES)]
