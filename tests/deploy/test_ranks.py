import json
from pathlib import Path

import pytest

from deploy.cli import main
from deploy.layout import serve_plan
from deploy.ranks import sizes_of
from protocol.errors import ConfigError
from tests.deploy.configs import MODEL, config

SERVED = ("prefill", "decode")
STORY = Path("models/story/config.json")
ON = {"enable_dp_attention": "true"}


@pytest.mark.parametrize(
    "flags, sizes",
    [
        ({}, (1, 1)),
        (ON, (1, 1)),
        ({"dp_size": "4", **ON}, (4, 4)),
        ({"dp_size": "4", "tp_size": "4", **ON}, (4, 4)),  # all ranks, as SGLang counts
        ({"decode_dp_size": "3", **ON}, (1, 3)),
        ({"dp_size": "2", "prefill_dp_size": "1", **ON}, (1, 2)),
        ({"prefill_dp_size": "2", "decode_dp_size": "4", **ON}, (2, 4)),
    ],
)
def test_how_many_ranks_a_worker_has(flags: dict[str, str], sizes: tuple[int, int]) -> None:
    assert sizes_of(config("serve", **flags), MODEL, SERVED) == dict(zip(SERVED, sizes, strict=True))


@pytest.mark.parametrize(
    "flags, says",
    [
        (
            {"dp_size": "3"},
            "--dp-size: got 3, expected --enable-dp-attention beside it, or --prefill 3 --decode 3 for workers that"
            " share nothing",
        ),
        (
            {"decode_dp_size": "3"},
            "--decode-dp-size: got 3, expected --enable-dp-attention beside it, or --decode 3 for workers that share"
            " nothing",
        ),
        ({"dp_size": "4", "tp_size": "4"}, "--dp-size: got 4, expected --enable-dp-attention beside it, or"),
        (
            {"tp_size": "4"},
            "--tp-size: got 4, expected --dp-size 4 --enable-dp-attention beside it: ranks share the MLP of each layer"
            " only, no tensor parallelism yet",
        ),
        ({"tp_size": "4", **ON}, "--tp-size: got 4, expected --dp-size 4 --enable-dp-attention beside it"),
        (
            {"tp_size": "8", "dp_size": "4", **ON},
            "--tp-size: got 8, expected 4, as --dp-size, or 1: the ranks of one worker do not share attention yet",
        ),
        (
            {"tp_size": "2", "prefill_dp_size": "2", "decode_dp_size": "4", **ON},
            "--tp-size: got 2, expected 4, as --decode-dp-size, or 1",
        ),
    ],
)
def test_what_there_is_not_is_one_sentence(flags: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sizes_of(config("serve", **flags), MODEL, SERVED)
    assert caught.value.message.startswith(says)


def test_a_worker_alone_is_told_of_commands() -> None:
    typed = config("worker", role="decode", gateway="tcp://h:1", dp_size="2")
    with pytest.raises(ConfigError, match=r"--dp-size: got 2, .*, or 2 commands, each with --workers-on-host 2, for"):
        sizes_of(typed, MODEL, ["decode"])


def test_ranks_must_divide_the_mlp(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(STORY.read_text())
    assert sizes_of(config("serve", dp_size="5", **ON), tmp_path, SERVED) == {"prefill": 5, "decode": 5}
    with pytest.raises(ConfigError, match="--decode-dp-size: got 3, expected a divisor of 320, the model's intermedi"):
        serve_plan(config("serve", decode_dp_size="3", **ON), tmp_path, "m", cores=2)


def test_ranks_must_divide_the_experts(tmp_path: Path) -> None:
    fields = json.loads(STORY.read_text())
    of_experts = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2}
    fields |= of_experts | {"moe_intermediate_size": 48, "intermediate_size": 320, "mlp_only_layers": [0]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert sizes_of(config("serve", dp_size="16", **ON), tmp_path, SERVED) == {"prefill": 16, "decode": 16}
    for size, expected in (("5", "48, the model's moe_intermediate_size"), ("3", "320, the model's intermediate_size")):
        with pytest.raises(ConfigError, match=f"--dp-size: got {size}, expected a divisor of {expected}"):
            sizes_of(config("serve", dp_size=size, **ON), tmp_path, SERVED)


@pytest.mark.parametrize("text", ["", "{}", '{"intermediate_size": "wide"}'])
def test_a_model_that_does_not_tell_is_left_to_its_workers(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert sizes_of(config("serve", dp_size="3", **ON), tmp_path, ["decode"]) == {"decode": 3}


def test_an_option_of_a_role_without_workers_changes_nothing() -> None:
    typed = config("serve", prefill="0", decode="0", unified="1", prefill_dp_size="3")
    assert [worker.worker_id for worker in serve_plan(typed, MODEL, "m", cores=2).worker_settings] == ["unified-0"]


@pytest.mark.parametrize(
    "command", ["serve --port 0", "demo", "worker --role unified --gateway tcp://127.0.0.1:9 --device cpu"]
)
def test_a_wrong_size_ends_the_command_before_anything_starts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--data-parallel-size", "7", "--enable-dp-attention"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("baton: error: --data-parallel-size (here --dp-size): got 7, expected a divisor of 320")
    assert (shown.err.count("\n"), shown.out) == (1, "")
