"""Folders that are damaged in every way: one sentence that names file, field, what was got and what was expected."""

import json
import math
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import CHECKED_VALUES, INDEX_FILE, SINGLE_FILE, count_not_finite
from model.runner import ModelRunner
from protocol.errors import CheckpointError
from testkit.checkpoints import make_checkpoint
from tests.model.speculating import edit_config

Damage = Callable[[Path], Any]
NAN, INF = math.nan, math.inf
QUERY = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
TWICE = b'{"a": %s, "a": %s}' % ((b'{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}',) * 2)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("sound"), "llama", num_hidden_layers=1)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    for each in sound.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    return tmp_path


def sentence(folder: Path, **options: Any) -> str:
    """What is said of a folder that cannot be served."""
    with pytest.raises(CheckpointError) as caught:
        ModelRunner.load(folder, device="cpu", **options)
    said = caught.value.message.replace(str(folder), "")
    assert said.isprintable() and len(said) < 400, said
    return said


def config(**changed: Any) -> Damage:
    return lambda folder: edit_config(folder, **changed)


def file(name: str, content: bytes | str) -> Damage:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def header(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Another header before the same bytes."""

    def edit(folder: Path) -> None:
        path = folder / SINGLE_FILE
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        entries = json.loads(raw[8 : 8 + length])
        change(entries)
        made = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(made)) + made + raw[8 + length :])

    return edit


def entry(**fields: Any) -> Damage:
    """Other fields of one tensor's entry."""
    return header(lambda entries: entries[QUERY].update(fields))


def raw_header(text: bytes, length: int | None = None) -> Damage:
    return file(SINGLE_FILE, struct.pack("<Q", len(text) if length is None else length) + text)


def longer(folder: Path) -> None:
    path = folder / SINGLE_FILE
    path.write_bytes(path.read_bytes() + b"x")


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    """Other tensors."""

    def edit(folder: Path) -> None:
        found = {name: weight.clone() for name, weight in load_file(folder / SINGLE_FILE).items()}
        change(found)
        save_file(found, folder / SINGLE_FILE)

    return edit


def shards(weight_map: Any, **more: Any) -> Damage:
    return file(INDEX_FILE, json.dumps({"weight_map": weight_map, **more}))


def instead(name: str, make: Callable[[Path], Any]) -> Damage:
    """Something else under a file's name."""

    def edit(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return edit


DAMAGES: dict[str, tuple[Damage, str]] = {
    # config.json
    "config empty": (file("config.json", ""), "/config.json: not valid JSON"),
    "config null": (file("config.json", "null"), "/config.json: got a JSON NoneType, expected an object"),
    "config latin": (file("config.json", b'{"a": "\xe9"}'), "/config.json: not UTF-8 at byte"),
    "config mark": (file("config.json", b"\xef\xbb\xbf{}"), "/config.json: not valid JSON (Unexpected UTF-8 BOM"),
    "config deep": (file("config.json", "[" * 100_000), "/config.json: not valid JSON"),
    "config digits": (file("config.json", '{"vocab_size": ' + "9" * 5000 + "}"), "/config.json: not valid JSON"),
    "config folder": (instead("config.json", Path.mkdir), "/config.json: it is not a file"),
    "config pipe": (instead("config.json", os.mkfifo), "/config.json: it is not a file"),
    "config absent": (instead("config.json", lambda path: None), "/config.json: no such file"),
    "config dangles": (instead("config.json", lambda path: path.symlink_to("gone")), "/config.json: no such file"),
    "config loops": (instead("config.json", lambda path: path.symlink_to("config.json")), "/config.json: "),
    "no architecture": (
        config(architectures=..., model_type=...),
        "config.json: architectures is missing, expected one of",
    ),
    "architecture int": (config(architectures=[5]), "config.json: architectures: got [5], expected a list of strings"),
    "vocab float": (config(vocab_size=307.0), "config.json: vocab_size: got 307.0, expected an integer of at least 1"),
    "vocab huge": (config(vocab_size=2**62), "config.json: vocab_size: got 4611686018427387904, expected an integer"),
    "vocab long": (config(vocab_size="x" * 100_000), "config.json: vocab_size: got 'xxxx"),
    "vocab odd": (config(vocab_size="\x1b[31m\n"), "config.json: vocab_size: got '\\x1b[31m\\n', expected"),
    "vocab other": (
        config(vocab_size=300),
        "model.embed_tokens.weight: got shape [307, 48], config.json implies [300, 48]",
    ),
    "hidden other": (config(hidden_size=96), "model.embed_tokens.weight: got shape"),
    "eps nan": (file("config.json", "FILLED"), "rms_norm_eps: got nan, expected a finite number above 0"),
    "rope list": (
        config(rope_scaling=[1], rope_parameters=...),
        "config.json: rope_scaling: got [1], expected an object",
    ),
    "layers more": (config(num_hidden_layers=2), "tensor model.layers.1."),
    "layers huge": (config(num_hidden_layers=2**39), "config.json: num_hidden_layers: got 549755813888"),
    # generation_config.json
    "generation list": (file("generation_config.json", "[]"), "/generation_config.json: got a JSON list"),
    "generation eos": (
        file("generation_config.json", '{"eos_token_id": {}}'),
        "generation_config.json: eos_token_id: got {}",
    ),
    "generation pipe": (instead("generation_config.json", os.mkfifo), "/generation_config.json: it is not a file"),
    # model.safetensors
    "weights absent": (instead(SINGLE_FILE, lambda path: None), f": no {SINGLE_FILE} and no {INDEX_FILE}"),
    "weights empty": (file(SINGLE_FILE, b""), f"/{SINGLE_FILE}: got 0 bytes, too short for a safetensors file"),
    "weights folder": (instead(SINGLE_FILE, Path.mkdir), f"/{SINGLE_FILE}: not a file"),
    "weights pipe": (instead(SINGLE_FILE, os.mkfifo), f"/{SINGLE_FILE}: not a file"),
    "weights text": (
        file(SINGLE_FILE, b"version https://git-lfs.github.com/spec/v1\n"),
        "this is not a safetensors file",
    ),
    "weights pickle": (file(SINGLE_FILE, b"PK\x03\x04" + bytes(99)), "truncated: the header ends at byte 67324760"),
    "header huge": (
        raw_header(b"{}", 2**64 - 1),
        "header of 18446744073709551615 bytes; this is not a safetensors file",
    ),
    "header beyond": (raw_header(b"{}", 3), "truncated: the header ends at byte 11, the file at byte 10"),
    "header latin": (raw_header(b'{"\xe9": 1}'), "the header is not valid JSON (invalid unicode"),
    "header deep": (raw_header(b"[" * 100_000), "the header is not valid JSON (recursion limit"),
    "header list": (raw_header(b"[]"), "the header is not a JSON object"),
    "same tensor twice": (raw_header(TWICE), 'the header is not valid JSON (Detected duplicate key "a"'),
    "bytes between": (header(lambda entries: entries.pop(QUERY)), "invalid offset for tensor `"),
    "bytes after": (longer, "expected tensors one after the other, up to the end of the file"),
    "header nothing": (raw_header(b"{}"), "tensor model.embed_tokens.weight of shape [307, 48] is missing"),
    "header twice": (raw_header(b'{"a": {}, "a": {}}'), 'the header is not valid JSON (Detected duplicate key "a"'),
    "entry text": (header(lambda entries: entries.update({QUERY: "x"})), f"{QUERY}: damaged header entry 'x'"),
    "entry no dtype": (header(lambda entries: entries[QUERY].pop("dtype")), f"{QUERY}: damaged header entry"),
    "entry shape": (entry(shape=[48, -48]), f"{QUERY}: damaged header entry"),
    "entry shape bool": (entry(shape=[True, 48]), f"{QUERY}: damaged header entry"),
    "entry shape long": (entry(shape=[1] * 100_000), "do not hold shape [1, 1, 1, 1, 1, 1, ...] of F32"),
    "entry shape huge": (entry(shape=[2**62, 2**62]), "do not hold shape"),
    "entry offsets": (entry(data_offsets=[0]), f"{QUERY}: damaged header entry"),
    "entry backwards": (entry(data_offsets=[96, 0]), "do not hold shape"),
    "entry beyond": (entry(data_offsets=[2**40, 2**40 + 9216]), f"truncated: {QUERY} ends at byte"),
    "entry overlap": (entry(data_offsets=[0, 9216]), "invalid offset for tensor `lm_head.weight`; expected"),
    "entry dtype": (entry(dtype="F64"), "do not hold shape"),
    "entry dtype odd": (entry(dtype="Q4_0"), f"{QUERY}: got dtype Q4_0, which safetensors does not have"),
    "entry name odd": (
        header(lambda entries: entries.update({"\x1b[31m\n": 5})),
        "'\\x1b[31m\\n': damaged header entry 5",
    ),
    "tensor missing": (weights(lambda found: found.pop(QUERY)), f"tensor {QUERY} of shape [48, 48] is missing"),
    "tensor shape": (
        weights(lambda found: found.update({NORM: torch.ones(47)})),
        f"{NORM}: got shape [47], config.json implies [48]",
    ),
    "tensor int": (
        weights(lambda found: found.update({NORM: torch.ones(48, dtype=torch.int64)})),
        f"{NORM}: got dtype I64, supported",
    ),
    # model.safetensors.index.json
    "index cut": (file(INDEX_FILE, "{"), f"/{INDEX_FILE}: not valid JSON"),
    "index without": (
        file(INDEX_FILE, "{}"),
        f"{INDEX_FILE}: weight_map is missing, expected an object from tensor names",
    ),
    "index text": (shards("x"), f"{INDEX_FILE}: weight_map: got 'x', expected an object"),
    "index nothing": (shards({}), f"{INDEX_FILE}: weight_map: got {{}}, expected an object from tensor names"),
    "index up": (
        shards({"a": "../model.safetensors"}),
        "weight_map: a: got '../model.safetensors', expected a file name inside",
    ),
    "index below": (
        shards({"a": "x/model.safetensors"}),
        "weight_map: a: got 'x/model.safetensors', expected a file name inside",
    ),
    "index dot": (shards({"a": ".."}), "weight_map: a: got '..', expected a file name inside"),
    "index nul": (shards({"a": "x\0y"}), "weight_map: a: got 'x\\x00y', expected a file name inside"),
    "index number": (shards({"a": 5}), "weight_map: a: got 5, expected a string"),
    "index long": (shards({"a": "x" * 5000}), "weight_map: a: got 'xxxx"),
    "index absent": (shards({"a": "gone.safetensors"}), "/gone.safetensors: no such file"),
    "index lies": (shards({"a": SINGLE_FILE}), f"tensor a is missing, though {INDEX_FILE} says it is here"),
    "index odd name": (shards({"\x1b": 5}), "weight_map: '\\x1b': got 5, expected a string"),
}  # fmt: skip


def some_at_once(cases: Iterable[tuple[Any, ...]], every: int) -> list[Any]:
    """One in `every` runs with the unit tests, the others with the slow ones: each writes and reads a whole folder."""
    return [pytest.param(*case, marks=[pytest.mark.slow] if index % every else []) for index, case in enumerate(cases)]


@pytest.mark.parametrize("name", some_at_once(zip(DAMAGES), 5))
def test_damage_is_named(name: str, folder: Path) -> None:
    damage, says = DAMAGES[name]
    if name == "eps nan":
        path = folder / "config.json"
        path.write_text(path.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": NaN'))
        assert "NaN" in path.read_text()
    else:
        damage(folder)
    assert says in sentence(folder)


@pytest.mark.parametrize("share", some_at_once([(index / 24,) for index in range(24)], 6))
def test_a_file_cut_anywhere(share: float, folder: Path) -> None:
    path = folder / SINGLE_FILE
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    assert SINGLE_FILE in sentence(folder)


def test_what_is_more_than_needed_is_no_fault(folder: Path) -> None:
    weights(lambda found: found.update(extra=torch.zeros(3, dtype=torch.int8)))(folder)
    config(an_unknown_field={"x": [1]})(folder)
    assert ModelRunner.load(folder, device="cpu").config.num_layers == 1


# ---- values that are not finite ----


def spoil(name: str, at: int, value: float) -> Damage:
    return weights(lambda found: found[name].view(-1).__setitem__(at, value))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "name, at, total", some_at_once([(NORM, 47, 48), (QUERY, 5, 2304), ("model.embed_tokens.weight", 0, 14736)], 3)
)
def test_weights_that_are_not_finite_are_counted(name: str, at: int, total: int, value: float, folder: Path) -> None:
    spoil(name, at, value)(folder)
    ModelRunner.load(folder, device="cpu")  # nobody looks unless asked to
    said = sentence(folder, check_weights=True)
    assert f"/{SINGLE_FILE}: {name}: 1 of {total} values are NaN or infinite, expected finite numbers" in said


def test_sound_weights_pass_the_check(sound: Path) -> None:
    assert ModelRunner.load(sound, device="cpu", check_weights=True).config.num_layers == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_value_is_looked_at(dtype: torch.dtype) -> None:
    tensor = torch.zeros(CHECKED_VALUES + 3, dtype=dtype)
    assert count_not_finite(tensor) == 0
    for at in (0, CHECKED_VALUES - 1, CHECKED_VALUES, CHECKED_VALUES + 2):
        tensor[at] = NAN
    assert count_not_finite(tensor) == 4
    assert count_not_finite(torch.zeros(0, 5)) == 0
