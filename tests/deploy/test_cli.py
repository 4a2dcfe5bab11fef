from pathlib import Path

import pytest

from deploy.cli import CommandLine, find_config, main
from runtime.layered_config import Origin


def test_a_wrong_flag_ends_with_status_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--page-size", "x"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "baton: error: --page-size: got 'x', expected an integer from 1 to 4096\n"


@pytest.mark.parametrize(
    "typed, says",
    [
        ("serve --model /nowhere", "--model: folder '/nowhere' does not exist"),
        ("serve --prefill 0 --decode 0", "expected at least one prefill and one decode worker, or one unified"),
        ("serve --context-length 999999", "--context-length: got 999999, expected 2 to 2048"),
        ("gateway --context-length 999999", "--context-length: got 999999, expected 2 to 2048"),
        (
            "serve --max-model-len 999999",
            "error: --max-model-len (here --context-length): got 999999, expected 2 to 2048",
        ),
        ("serve --max-model-len 0", "error: --max-model-len (here --context-length): got 0, expected an integer of at"),
        (
            "serve --max-model-len 8k",
            "(here --context-length): got '8k', expected an integer of at least 1 (did you mean",
        ),
        ("serve --model-path /nowhere", "error: --model-path (here --model): folder '/nowhere' does not exist"),
        ("worker", "--role is missing"),
        ("worker --role decode", "--gateway is missing"),
        ("worker --role decode --gateway here", "--gateway: got 'here', expected tcp://HOST:PORT"),
        ("serve --keys /nowhere", "--keys: '/nowhere': it does not exist"),
        ("gateway --keys /nowhere", "--keys: '/nowhere': it does not exist"),
        ("worker --role decode --gateway tcp://127.0.0.1:1 --keys /nowhere", "--keys: '/nowhere': it does not exist"),
        ("serve --encrypt-data", "--encrypt-data needs --keys DIR: `baton keys new` makes one"),
        ("gateway --control tcp://0.0.0.0:7000", "--control: '0.0.0.0' can be reached from other machines"),
        (
            "worker --role decode --gateway tcp://127.0.0.1:1 --host ::",
            "--host: '::' can be reached from other machines",
        ),
        ("serve --config /nowhere.toml", "--config: cannot read '/nowhere.toml': No such file or directory"),
    ],
)
def test_what_cannot_start_is_refused_first(typed: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.split()) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_a_chat_template_without_a_tokenizer_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    assert main([command, "--model", str(tmp_path), "--chat-template", str(tmp_path / "chat.jinja")]) == 2
    says = capsys.readouterr().err
    assert "error: --chat-template: got " in says and "has no tokenizer.json, so no chat can be answered" in says


def test_an_error_names_the_variable_or_the_file_that_has_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baton.toml"
    path.write_text("context-length = 999999\n")
    assert main(["serve", "--config", str(path)]) == 2
    assert f"error: context-length in {path}: got 999999, expected 2 to 2048" in capsys.readouterr().err
    monkeypatch.setenv("BATON_CONTEXT_LENGTH", "999998")
    assert main(["serve", "--config", str(path)]) == 2
    assert "error: BATON_CONTEXT_LENGTH: got 999998, expected 2 to 2048" in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["gpu", "cuda"])
def test_an_error_shows_the_value_as_typed(
    typed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.machine._GPU_SIGNS", ())  # nothing here is a sign of a GPU
    assert main(["serve", "--device", typed]) == 2
    assert f"error: --device: got '{typed}', but this machine shows no GPU" in capsys.readouterr().err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "baton serve" in capsys.readouterr().out


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "baton.toml"
    path.write_text('page_size = 8\nrole = "decode"\n')
    config = find_config(CommandLine("serve", {}), {"BATON_CONFIG": str(path), "BATON_GATEWAY": "tcp://h:1"})
    assert config.settings["page-size"].value == 8
    assert config.settings["page-size"].origin is Origin.FILE


def test_the_demo_is_one_pair_on_a_free_port_whatever_is_configured() -> None:
    config = find_config(CommandLine("demo", {}), {"BATON_PORT": "8000", "BATON_PREFILL": "4"})
    assert [config[name] for name in ("prefill", "decode", "unified", "port")] == [1, 1, 0, 0]
    assert config["log-level"] == "warning"
    assert config["prompt"] == "Once upon a time"
    assert config["speculative-adaptive"] is False, "a demonstration shows proposals also where they do not pay"
    assert find_config(CommandLine("serve", {}), {})["speculative-adaptive"] is True


def test_a_gpu_is_cuda() -> None:
    assert find_config(CommandLine("serve", {"device": "gpu"}), {})["device"] == "cuda"


def test_in_a_pipe_no_line_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    folder = "/models/" + "x" * 200
    assert main(["config", "--model", folder]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["model", folder, "flag", "--model"] in lines
