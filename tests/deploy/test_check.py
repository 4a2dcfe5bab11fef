"""`baton check` says what a worker would say of a folder, and sums up what a worker's ranks would hold."""

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from deploy.check import Asked, check, hints, in_words, main
from deploy.cli import main as baton
from model.runner import DraftSource, ModelRunner
from protocol.errors import CheckpointError, ConfigError
from protocol.kv_layout import KvLayout
from runtime.model_config import load_config
from testkit.checkpoints import Architecture, make_checkpoint
from tests.drafts import add_mtp
from tests.model.ranks import MetCollectives, met

ASKED = Asked(
    model=None, context_length=None, max_running_requests=8, page_size=16, dtype="auto", device="cpu", dp_size=1
)


def asked(folder: Path, **changes: Any) -> Asked:
    return replace(ASKED, model=str(folder), **changes)


@pytest.mark.parametrize("arch", ["llama", "qwen3_moe", "mixtral", "glm4_moe", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_sums_are_what_a_worker_holds(tmp_path: Path, arch: Architecture, ranks: int) -> None:
    folder = make_checkpoint(tmp_path, arch)

    def held(collectives: MetCollectives | None = None) -> tuple[int, KvLayout]:
        runner = ModelRunner.load(folder, device="cpu", dtype="float32", collectives=collectives)
        return runner.mapped_weight_bytes + runner.private_weight_bytes, runner.kv_layout(16)

    report = check(asked(folder, dp_size=ranks, context_length=100))
    weights, layout = held()
    assert report.weights == weights and report.tensors_not_read == []
    assert report.weights_of_a_rank == (met(ranks, held)[0][0] if ranks > 1 else weights)
    assert report.kv_of_a_context == 7 * layout.all_page_bytes and report.kv_of_a_batch == 8 * report.kv_of_a_context
    assert report.kv_of_a_token * 16 == layout.all_page_bytes


def test_the_parts_of_a_folder_in_words(tmp_path: Path) -> None:
    report = check(asked(make_checkpoint(tmp_path, "glm4_moe")))
    assert report.layers == [
        "layer 0: attention with 4 heads and 2 KV heads of 16, a norm of each head; an MLP of 80",
        "layers 1 to 2: attention with 4 heads and 2 KV heads of 16, a norm of each head; 8 experts of 24, 2 for a"
        " token from 2 of 4 groups by sigmoid, and a shared one of 24",
    ]
    assert (report.has_tokenizer, report.chat_templates) == (False, [])
    lines = list(in_words(report, ASKED))
    assert lines[0] == f"{tmp_path}: glm4_moe, loads"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("arch", ["glm4_moe", "qwen3"])
def test_a_draft_in_the_folder_and_what_a_worker_holds_more_with_it(
    tmp_path: Path, arch: Architecture, ranks: int
) -> None:
    folder, num_layers = make_checkpoint(tmp_path, arch), 1 if arch == "glm4_moe" else 2
    add_mtp(folder, num_layers)

    def held(collectives: MetCollectives | None = None, *, drafts: bool = True) -> tuple[int, KvLayout]:
        source = DraftSource("mtp", folder, num_layers) if drafts else None
        runner = ModelRunner.load(folder, device="cpu", dtype="float32", collectives=collectives, draft=source)
        return runner.mapped_weight_bytes + runner.private_weight_bytes, runner.kv_layout(16)

    if arch == "glm4_moe" and ranks > 1:  # its tables repeat the model's, as in folders of Zhipu AI
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    wanted = asked(folder, dp_size=ranks)
    report = check(wanted)
    (more, more_kv), (without, kv) = (
        met(ranks, partial(held, drafts=drafts))[0] if ranks > 1 else held(drafts=drafts) for drafts in (True, False)
    )
    assert report.draft_layers == num_layers and report.draft_refused == ""
    assert report.draft_weights == more - without > 0 and report.weights_of_a_rank == without
    assert report.draft_kv_of_a_token * 16 == more_kv.all_page_bytes - kv.all_page_bytes > 0

    lines = list(in_words(report, wanted))
    assert any(line.endswith(f"; {'1 draft layer' if num_layers == 1 else '2 draft layers'}") for line in lines)
    sizes = f"weights {report.draft_weights / (1 << 20):.1f} MiB{' for each rank' if ranks > 1 else ''}"
    kv_bytes = f"KV {report.draft_kv_of_a_token:,} bytes a token"
    assert f"a draft by its own layers (--speculative-algorithm mtp) takes as well: {sizes}, {kv_bytes}" in lines
    first = "model.layers.3.eh_proj.weight" if arch == "glm4_moe" else "model.mtp_layers.0.final_layernorm.weight"
    assert first in report.tensors_not_read and any("are none of the model itself, such as" in line for line in lines)


def test_draft_layers_that_are_named_and_do_not_load_get_the_workers_sentence(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "glm4_moe", num_nextn_predict_layers=1)
    report = check(asked(folder))
    with pytest.raises(CheckpointError) as raised:
        ModelRunner.load(folder, device="cpu", draft=DraftSource("mtp", folder))
    assert report.draft_refused == str(raised.value) and report.draft_layers == report.draft_weights == 0
    lines = list(in_words(report, ASKED))
    assert "  no tokenizer: requests must send token ids; no chat template; no draft layers that load" in lines
    assert f"no draft by its own layers (--speculative-algorithm mtp): {raised.value}" in lines


def test_a_folder_without_draft_layers(tmp_path: Path) -> None:
    report = check(asked(make_checkpoint(tmp_path, "minimax_m2")))
    assert (report.draft_layers, report.draft_weights, report.draft_kv_of_a_token, report.draft_refused) == (
        0,
        0,
        0,
        "",
    )
    lines = list(in_words(report, ASKED))
    assert "  no tokenizer: requests must send token ids; no chat template; no draft layers" in lines
    assert not any("speculative" in line for line in lines)


def test_windows_sinks_and_their_layers_in_words(tmp_path: Path) -> None:
    layers = check(asked(make_checkpoint(tmp_path, "gpt_oss"))).layers
    assert any("a window of 24 tokens, a sink of each head" in layer for layer in layers)
    assert any("window" not in layer and "a sink of each head" in layer for layer in layers)


def test_the_bundled_model_has_a_tokenizer_a_template_and_draft_layers() -> None:
    report = check(ASKED)
    assert report.has_tokenizer and report.chat_templates == ["default"] and report.draft_layers == 2
    assert all("mtp_layers" in name for name in report.tensors_not_read)


def test_what_does_not_fit_gets_the_flag_that_would_help(tmp_path: Path) -> None:
    config = load_config(make_checkpoint(tmp_path, "qwen3_moe"), context_length=100)
    found = [
        list(hints(asked(tmp_path, device=device), config, dtype, left, 1000, at_once))
        for device, dtype, left, at_once in (
            ("cpu", "float32", -(1 << 30), 0), ("auto", "bfloat16", -(1 << 30), 0), ("cpu", "bfloat16", 555, 0),
            ("cpu", "bfloat16", 3333, 3), ("cpu", "bfloat16", 8000, 8),
        )
    ]  # fmt: skip
    assert [hint[0].split(" ")[0:2] for hint in found[:1]] == [["--dtype", "bfloat16"]]
    assert "1.0 GiB more than is available" in found[0][1] and "--dp-size" not in found[0][1]
    assert "--dp-size N" in found[1][0]
    assert found[2][0].startswith("--context-length 55 ")
    assert found[3][0].startswith("3 requests of 100 tokens fit at once; --max-running-requests 3")
    assert found[4] == []


@pytest.mark.parametrize("form", [[], ["json"]])
def test_what_no_worker_would_load_gets_the_workers_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    folder = make_checkpoint(tmp_path, "qwen3_moe")
    fields = json.loads((folder / "config.json").read_text())
    for changes, dp_size, sentence in (
        ({"num_experts_per_tok": 9}, 1, "num_experts_per_tok: got 9"),
        ({"num_experts": 9}, 1, "got shape [8, 48], config.json implies [9, 48]"),
        ({}, 5, "dp_size: got 5, expected a divisor of"),
    ):
        (folder / "config.json").write_text(json.dumps(fields | changes))
        wanted = asked(folder, dp_size=dp_size)
        with pytest.raises((CheckpointError, ConfigError)) as raised:
            check(wanted)
        assert sentence in str(raised.value)
        capsys.readouterr()
        assert main([json.dumps(vars(wanted)), *form]) == 1
        told = capsys.readouterr()
        if form:
            assert json.loads(told.out)["error"] == str(raised.value) and not json.loads(told.out)["loads"]
        else:
            assert told.err == f"baton: error: {raised.value}\n" and not told.out


def test_the_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Replaced(Exception):
        """The process would be another one."""

    def become(_: str, words: list[str]) -> None:
        raise Replaced(words)

    monkeypatch.setattr(os, "execv", become)
    with pytest.raises(Replaced) as raised:
        baton(["check", "some/folder", "--context-length", "64", "--dp", "2", "--json"])
    python, *words, settings, form = raised.value.args[0]
    assert [python, *words, form] == [sys.executable, "-P", "-m", "deploy.check", "json"]
    read = Asked(**json.loads(settings))
    assert (read.context_length, read.dp_size, read.page_size, Path(str(read.model)).name) == (64, 2, 16, "folder")

    monkeypatch.undo()
    assert main([json.dumps(vars(ASKED)), "json"]) == 0
    assert json.loads(capsys.readouterr().out)["loads"]
