import io
import json

import pytest
from rich.console import Console

from deploy.cli import CommandLine, find_config, main, parse
from deploy.config_report import as_json, print_table, show


def test_the_table_tells_value_and_origin() -> None:
    line = parse(["config", "--port", "9000", "--max-model-len", "64"], "1")
    config = find_config(line, {"BATON_DEVICE": "cpu"})
    out = io.StringIO()
    print_table(config, Console(file=out, width=120))
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "port 9000 flag --port" in rows
    assert "context-length 64 flag --max-model-len" in rows
    assert "device cpu environment BATON_DEVICE" in rows
    assert "model (the bundled model) default" in rows
    assert "disable-overlap-schedule off default" in rows


@pytest.mark.parametrize("command", ["serve", "gateway", "worker"])
def test_the_help_has_the_defaults_that_the_table_shows(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([command, "--help"], "1")
    told = "".join(capsys.readouterr().out.split())  # where its lines are folded is of no account
    defaults = [
        setting for setting in find_config(CommandLine(command, {}), {}).settings.values() if setting.value is not None
    ]
    missing = [default.option.name for default in defaults if f"(default:{show(default)})" not in told]
    assert defaults and missing == []


def test_json_has_every_option() -> None:
    report = json.loads(as_json(find_config(CommandLine("config", {"port": "9000"}), {})))
    assert report["port"] == {"value": 9000, "origin": "flag", "place": "--port"}
    assert report["model"] == {"value": None, "origin": "default", "place": None}


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_PAGE_SIZE", "4")
    assert main(["config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page-size"]["origin"] == "environment"
