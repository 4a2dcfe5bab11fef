"""Whatever is wrong with flags, environment or file: one line that names place, value and what was expected; status 2;
nothing was started."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import main
from deploy.model_folder import check_context_length, find_model
from protocol.errors import ConfigError
from runtime.settings import GatewaySettings, WorkerSettings, read_arguments

pytestmark = pytest.mark.slow

LONG = "9" * 5000
EAGLE = "serve --speculative-algorithm eagle"
UNIFIED = f"{EAGLE} --prefill 0 --decode 0 --unified 1"
TREE = f"{UNIFIED} --speculative-eagle-topk 2"


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No child process, no listening socket is left, and no variable of the developer's counts."""
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        monkeypatch.delenv(name)
    started: list[Any] = []
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda self, *args, **kwargs: started.append(args))
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda self: None)
    yield
    assert started == []


def refused(typed: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that `baton` says."""
    assert main(typed) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("baton: error: ") and shown.err.endswith("\n")
    line = shown.err[:-1]
    assert line.isprintable() and len(line) < 700, line
    assert "Traceback" not in line
    return line


FLAGS = [
    # what is no number
    ("serve --port x", "--port: got 'x', expected an integer from 0 to 65535"),
    ("serve --port=-1", "--port: got -1, expected an integer from 0 to 65535"),
    ("serve --port 65536", "--port: got 65536, expected an integer from 0 to 65535"),
    (f"serve --port {LONG}", "--port: got '99999"),
    (f"serve --max-total-tokens {LONG}", "--max-total-tokens: got '99999"),
    ("serve --port 99999999999999999999", "--port: got 99999999999999999999, expected an integer from 0 to 65535"),
    # numbers out of range
    ("serve --page-size 0", "--page-size: got 0, expected an integer from 1 to 4096"),
    ("serve --page-size 5000", "--page-size: got 5000, expected an integer from 1 to 4096"),
    ("serve --max-total-tokens 0", "--max-total-tokens: got 0, expected an integer of at least 1"),
    ("serve --max-total-tokens 2147483648", "got 2147483648, expected an integer from 1 to 2147483647"),
    ("serve --max-running-requests 100000", "--max-running-requests: got 100000, expected an integer from 1 to 65536"),
    ("serve --chunked-prefill-size -1", "--chunked-prefill-size: got -1, expected an integer of at least 0"),
    ("serve --retract-host-gib 0", "--retract-host-gib: got 0, expected an integer from 1 to 65536"),
    ("serve --threads 100000", "--threads: got 100000, expected an integer from 1 to 1024"),
    ("serve --prefill 1000000", "--prefill: got 1000000, expected an integer from 0 to 256"),
    ("serve --context-length 0", "--context-length: got 0, expected an integer of at least 1"),
    ("serve --context-length 1", "--context-length: got 1, expected 2 to 2048"),
    ("serve --context-length 64 --max-total-tokens 63", "got 63, expected at least --context-length, 64"),
    ("serve --max-body-bytes 0", "--max-body-bytes: got 0, expected an integer of at least 1"),
    ("worker --workers-on-host 0", "--workers-on-host: got 0, expected an integer from 1 to 1024"),
    ("demo --max-tokens 0", "--max-tokens: got 0, expected an integer of at least 1"),
    # choices and switches
    ("serve --device tpu", "--device: got 'tpu', expected one of auto, cpu, cuda"),
    ("serve --dtype int8", "--dtype: got 'int8', expected one of auto, float32, bfloat16, float16"),
    ("serve --speculative-algorithm medusa", "got 'medusa', expected one of eagle, eagle3, mtp"),
    ("serve --speculative-algorithm mtp --speculative-draft-model-path /etc", "mtp takes layers of the model's own"),
    ("serve --speculative-algorithm mtp --speculative-num-steps 3", "got 3, expected at most 2, the draft layers of"),
    ("serve --speculative-num-steps 17", "--speculative-num-steps: got 17, expected an integer from 1 to 16"),
    ("serve --speculative-num-steps 3", "got 3, but there is no --speculative-algorithm, so nothing is proposed"),
    (f"{UNIFIED} --speculative-num-draft-tokens 4", "expected 5, one more than --speculative-num-steps, which is 4"),
    ("serve --speculative-adaptive false", "-adaptive: got false, but there is no --speculative-algorithm"),
    ("serve --speculative-pair-without-draft", "-draft: got true, but there is no --speculative-algorithm, so nothing"),
    (f"{UNIFIED} --speculative-eagle-topk 22", "got 22, expected at most 21, for which a tree of --speculative-num"),
    (f"{UNIFIED} --speculative-eagle-topk 64 --speculative-num-steps 1", "got 64, expected at most 63, for which"),
    (f"{TREE} --speculative-num-draft-tokens 16", "got 16, expected 2 to 15, the most that a tree of --speculative-"),
    (f"{TREE} --speculative-num-draft-tokens 1", "and --speculative-eagle-topk 2 can have"),
    (f"{TREE} --speculative-num-steps 16 --speculative-num-draft-tokens 65", "got 65, expected 2 to 63, the most that"),
    (f"{TREE} --speculative-adaptive", "got true, expected false: with --speculative-eagle-topk 2 all trees"),
    (f"{TREE} --attention-backend varlen", "topk: got 2, expected 1: --attention-backend varlen has no tree mask"),
    (f"{TREE.replace('eagle', 'mtp', 1)}", "got 2, expected 1: with --speculative-algorithm mtp proposals are chains"),
    (f"{UNIFIED} --context-length 4", "--speculative-num-steps: got 4, expected at most 2, for which a context of 4"),
    (f"{UNIFIED} --speculative-draft-model-path /nowhere", "folder '/nowhere' does not exist"),
    (f"{UNIFIED} --speculative-draft-model-path /etc", "'/etc' has no config.json, expected the folder of a draft"),
    ("serve --disable-overlap-schedule=maybe", "--disable-overlap-schedule: got 'maybe', expected true or false"),
    ("worker --role unifed", "got 'unifed', expected one of prefill, decode, unified (did you mean 'unified'?)"),
    # names, addresses, folders
    ("serve --host=", "--host: got '', expected a string of printable characters"),
    ("serve --model=", "--model: got '', expected a string of printable characters"),
    ("serve --served-model-name=", "--served-model-name: got '', expected strings of printable characters"),
    ("serve --host no..dots --port 0", "--host: got 'no..dots', expected an address of this machine"),
    ("serve --host 999.1.1.1 --port 0", "--host: got '999.1.1.1', expected an address of this machine"),
    ("serve --host 192.0.2.7 --port 0", "--host: cannot listen on 192.0.2.7:0"),
    (f"serve --port 0 --host {'a' * 300}", "--host: got 'aaaa"),
    ("serve --model some/thing", "'some/thing' is no folder here and not whole in the hub's cache"),
    ("serve --model /etc/passwd", "--model: '/etc/passwd' is a file, expected a folder"),
    ("serve --model /etc", "--model: folder '/etc' has no config.json, expected a model folder"),
    ("serve --model ~nobody-at-all/x", "--model: cannot look into '~nobody-at-all/x'"),
    (f"serve --model /{'a' * 5000}", "--model: cannot look into '/aaaa"),
    ("serve --model /proc/self/fd/x/y", "--model: folder '/proc/self/fd/x/y' does not exist"),
    ("serve --tokenizer /nowhere", "--tokenizer: folder '/nowhere' does not exist"),
    ("serve --tokenizer some/thing", "--tokenizer: 'some/thing' is no folder here and not whole in the hub's cache"),
    ("serve --tokenizer-path /etc", "--tokenizer-path (here --tokenizer): folder '/etc' has no tokenizer.json"),
    ("gateway --tokenizer /etc/passwd", "--tokenizer: '/etc/passwd' is a file, expected a folder with tokenizer.json"),
    ("serve --tokenizer ~nobody-at-all/x", "--tokenizer: cannot look into '~nobody-at-all/x'"),
    ("serve --chat-template no/such.jinja", "--chat-template: file 'no/such.jinja' does not exist"),
    ("gateway --chat-template /etc", "--chat-template: '/etc' is a folder, expected a file with a Jinja template"),
    ("gateway --control here", "--control: got 'here', expected tcp://HOST:PORT"),
    ("gateway --control tcp://h:70000", "expected tcp://HOST:PORT with a port from 0 to 65535"),
    ("worker --role decode --gateway tcp://h:0", "expected tcp://HOST:PORT with a port from 1 to 65535"),
    ("worker --role decode --gateway tcp://no..dots:5", "--gateway: no route to tcp://no..dots:5"),
    ("worker --role decode --gateway tcp://127.0.0.1:5 --worker-id=", "--worker-id: got '', expected"),
    (f"worker --role decode --gateway tcp://127.0.0.1:5 --worker-id {'w' * 200}", "expected 1 to 128 printable ASCII"),
    ("worker --role decode --gateway tcp://127.0.0.1:5 --worker-id wörker", "got 'wörker', expected 1 to 128"),
    # what does not go together, or is not there
    ("serve --port 1 --port 2", "--port is given twice: '1' and '2'; expected one value"),
    ("serve --model a --model-path b", "--model is given twice: 'a' and 'b'; expected one value"),
    ("serve --disable-overlap-schedule --disable-overlap-schedule=false", "--disable-overlap-schedule is given twice"),
    (f"serve --{'q' * 3000}", "unknown flag '--qqqq"),
    ("serve --tp-size 2", "--tp-size: got 2, expected --dp-size 2 --enable-dp-attention beside it"),
    ("serve --dp-size 2", "--dp-size: got 2"),
    ("serve --dp-size 0 --enable-dp-attention", "--dp-size: got 0, expected an integer from 1"),
    (f"serve --tp {LONG}", "--tp (here --tp-size): got '9999"),
    ("serve /nowhere", "--model: folder '/nowhere' does not exist"),
    (f"serve /nowhere {'x' * 3000}", "unexpected argument 'xxxx"),
    ("serve -p 5", "unknown flag -p for baton serve"),
    ("Serve", "unknown command 'Serve', did you mean `baton serve`?"),
    (f"{'s' * 3000}", "unknown command 'ssss"),
    ("--port 5", "a command comes before the flags: `baton serve --port 5`; commands are serve"),
    ("serve --config /etc", "--config: cannot read '/etc': it is not a file"),
    ("serve --config /dev/zero", "--config: cannot read '/dev/zero': it is not a file"),
    ("serve --config ~nobody-at-all/x", "--config: cannot read '~nobody-at-all/x'"),
    (f"serve --config /{'a' * 5000}", "--config: cannot read '/aaaa"),
]  # fmt: skip


@pytest.mark.parametrize("typed, says", FLAGS, ids=[typed[:50] for typed, _ in FLAGS])
def test_flags(typed: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(typed.split(" "), capsys)


@pytest.mark.parametrize(
    "typed, says",
    [
        (["serve", "--served-model-name", "a\nb"], "--served-model-name: got 'a\\nb', expected strings of printable"),
        (["serve", "--host", "\x1b[31m"], "--host: got '\\x1b[31m', expected a string of printable"),
        (["serve", "--model", "/x\udcff"], "--model: got '/x\\udcff', expected a string of printable characters"),
        (["serve", "--port", "80\n"], "--port: got '80\\n', expected an integer"),
        (["serve", "--port", " 80"], "--port: got ' 80', expected an integer"),
        (["serve", "--\x1b[31m"], "unknown flag '--\\x1b[31m' for baton serve"),
        (["\x1b[31m"], "unknown command '\\x1b[31m'"),
        (["serve", ""], "--model: got '', expected a string of printable characters"),
        (["demo", "--prompt", "\udcff"], "--prompt: got '\\udcff', expected text in UTF-8"),
        (["worker", "--role", "decode", "--gateway", "tcp://127.0.0.1:5", "--worker-id", "a b"], "got 'a b', exp"),
        (["worker", "--role", "decode", "--gateway", "tcp://a b:5"], "got 'tcp://a b:5', expected tcp://HOST:PORT"),
    ],
)  # fmt: skip
def test_flags_with_characters_of_their_own(typed: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(typed, capsys)


ENVIRONMENT = [
    ("BATON_PORT", "x", "BATON_PORT: got 'x', expected an integer from 0 to 65535"),
    ("BATON_PORT", LONG, "BATON_PORT: got '99999"),
    ("BATON_DISABLE_OVERLAP_SCHEDULE", "2", "BATON_DISABLE_OVERLAP_SCHEDULE: got '2', expected true or false"),
    ("BATON_DEVICE", "tpu", "BATON_DEVICE: got 'tpu', expected one of auto, cpu, cuda"),
    ("BATON_DEVICE", "cud", "BATON_DEVICE: got 'cud', expected one of auto, cpu, cuda, cuda:N (did you mean 'cuda'?)"),
    ("BATON_SERVED_MODEL_NAME", "a\tb", "BATON_SERVED_MODEL_NAME: got 'a\\tb', expected strings of printable"),
    ("BATON_PAGESIZE", "16", "environment variable BATON_PAGESIZE is unknown, did you mean 'BATON_PAGE_SIZE'?"),
    ("BATON_PORTS", "", "environment variable BATON_PORTS is unknown, did you mean 'BATON_PORT'?"),
    ("BATON_", "1", "environment variable BATON_ is unknown"),
    ("BATON_\x1b[31m", "1", "environment variable 'BATON_\\x1b[31m' is unknown"),
    ("BATON_" + "X" * 3000, "1", "environment variable 'BATON_XXX"),
    ("BATON_MODEL", "/nowhere", "error: BATON_MODEL: folder '/nowhere' does not exist"),
    ("BATON_CONFIG", "/nowhere.toml", "--config: cannot read '/nowhere.toml'"),
    ("BATON_HOST", "192.0.2.7", "error: BATON_HOST: cannot listen on 192.0.2.7"),
]


@pytest.mark.parametrize("name, value, says", ENVIRONMENT, ids=[f"{n[:20]}={v[:10]}" for n, v, _ in ENVIRONMENT])
def test_environment(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert says in refused(["serve"], capsys)


FILES: list[tuple[bytes, str]] = [
    (b"port = 'x'", "port in FILE: got 'x' (a string), expected an integer from 0 to 65535"),
    (b"port = 80.0", "port in FILE: got 80.0 (a float), expected an integer"),
    (b"port = -1", "port in FILE: got -1, expected an integer from 0 to 65535"),
    (b"port = 99999999999999999999", "port in FILE: got 99999999999999999999, expected an integer"),
    (b"port = " + LONG.encode(), "FILE: not valid TOML: "),
    (b"host = 5", "host in FILE: got 5 (an integer), expected a string"),
    (b"host = ''", "host in FILE: got '', expected a string of printable characters"),
    (b'host = "\\u0000"', "host in FILE: got '\\x00', expected a string of printable characters"),
    (b'model = "/x\\u0000y"', "model in FILE: got '/x\\x00y', expected a string of printable characters"),
    (b"device = 'tpu'", "device in FILE: got 'tpu', expected one of auto, cpu, cuda"),
    (b"disable-overlap-schedule = 'yes'", "got 'yes' (a string), expected true or false"),
    (b"disable-overlap-schedule = 1", "got 1 (an integer), expected true or false"),
    (b"page-sise = 16", "FILE: unknown key 'page-sise', did you mean 'page-size'?"),
    (b"config = 'x'", "FILE: unknown key 'config'"),
    (b'"" = 1', "FILE: unknown key ''"),
    (b'"a\\nb" = 1', "FILE: unknown key 'a\\nb'"),
    (b"x" * 3000 + b" = 1", "FILE: unknown key 'xxxx"),
    (b"[serve]\nport = 1", "FILE: section [serve], expected flat keys"),
    (b"serve.port = 1", "FILE: section [serve], expected flat keys"),
    (b"port = {a = 1}", "FILE: section [port], expected flat keys"),
    (b"[[port]]\na = 1", "port in FILE: got [{'a': 1}] (an array), expected an integer"),
    (b"port = 1\nport = 2", "FILE: not valid TOML: Cannot overwrite a value"),
    (b"page-size = 1\npage_size = 2", "FILE: 'page-size' is written twice"),
    (b"port =", "FILE: not valid TOML: Invalid value"),
    (b"port: 80", "FILE: not valid TOML: "),
    (b'{"port": 80}', "FILE: not valid TOML: "),
    (b"port = 1 2", "FILE: not valid TOML: "),
    (b"a = " + b"[" * 5000, "FILE: not valid TOML: "),
    (b"host = 'a\xff'", "--config: cannot read 'FILE': not UTF-8 at byte 9"),
    ("port = 1".encode("utf-16"), "--config: cannot read 'FILE': not UTF-8"),
    (b"\x00\x00", "FILE: not valid TOML: "),
    (b"# " + b"x" * (1 << 20), "--config: cannot read 'FILE': it has 1048578 bytes, expected at most 1048576"),
    (b"prefill = 0\ndecode = 0", "expected at least one prefill and one decode worker, or one unified"),
]


@pytest.mark.parametrize("content, says", FILES, ids=[repr(content[:40]) for content, _ in FILES])
def test_file(
    content: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_bytes(content)
    assert says in refused(["serve", "--config", "FILE"], capsys)


def test_a_pipe_that_nobody_writes_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "it is not a file" in refused(["serve", "--config", str(tmp_path / "pipe")], capsys)


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port: {port} on 127.0.0.1 is in use" in refused(["serve", "--port", str(port)], capsys)


def test_what_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As root every folder may be looked at, so the system's refusal is put in."""
    asked: list[Path] = []
    look = Path.stat

    def refuse(path: Path, **more: Any) -> Any:
        if path != Path("/secret"):
            return look(path, **more)
        asked.append(path)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    assert "--model: cannot look into '/secret': Permission denied" in refused(["serve", "--model", "/secret"], capsys)
    assert "--config: cannot read '/secret': Permission denied" in refused(["serve", "--config", "/secret"], capsys)
    assert len(asked) == 2


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"a":' * 5000, "\ufeff{}", "[]", "nope", '{"max_position_embeddings": "x"}']
)
def test_a_damaged_config_is_left_to_those_who_load_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    check_context_length(find_model(str(tmp_path)), 16)


SETTINGS: list[tuple[type[Any], str, str]] = [
    (WorkerSettings, "", "WorkerSettings: got ''"),
    (WorkerSettings, "{", "WorkerSettings: got '{'"),
    (WorkerSettings, "[]", "WorkerSettings: got '[]'"),
    (WorkerSettings, "null", "WorkerSettings: got 'None'"),
    (WorkerSettings, "[" * 5000, "WorkerSettings: got '[[[["),
    (WorkerSettings, "{}", "WorkerSettings: 'model' is missing"),
    (WorkerSettings, '{"page-sizes": 1}', "WorkerSettings: unknown key 'page-sizes', expected one of model, "),
    (WorkerSettings, '{"page_size": 0}', "WorkerSettings.page_size: got '0'"),
    (WorkerSettings, '{"page_size": true}', "WorkerSettings.page_size: got 'True'"),
    (WorkerSettings, '{"disable_overlap_schedule": 1}', "WorkerSettings.disable_overlap_schedule: got '1'"),
    (WorkerSettings, '{"device": "tpu"}', "WorkerSettings.device: got 'tpu'"),
    (WorkerSettings, '{"role": "both"}', "WorkerSettings.role: got 'both'"),
    (GatewaySettings, '{"port": 65536}', "GatewaySettings.port: got '65536'"),
    (GatewaySettings, '{"served_model_name": []}', "GatewaySettings.served_model_name: got '[]'"),
    (GatewaySettings, '{"served_model_name": ["m", 5]}', "GatewaySettings.served_model_name: got '5'"),
    (GatewaySettings, '{"limits": {"max_headers": 0}}', "GatewaySettings.limits.max_headers: got '0'"),
    (GatewaySettings, '{"prefill": 1}', "GatewaySettings: unknown key 'prefill'"),
]


ENOUGH: dict[type[Any], str] = {
    WorkerSettings: '{"worker_id": "w", "role": "decode", "gateway": "tcp://127.0.0.1:5", "model": "/m"}',
    GatewaySettings: '{"served_model_name": ["m"], "model": "/m"}',
}


@pytest.mark.parametrize("kind, text, says", SETTINGS, ids=[f"{k.__name__}-{t[:30]}" for k, t, _ in SETTINGS])
def test_settings_of_a_process(kind: type[Any], text: str, says: str) -> None:
    if text.startswith('{"'):
        text = ENOUGH[kind][:-1] + "," + text[1:]
    with pytest.raises(ConfigError) as caught:
        read_arguments(kind, ["--settings", text])
    assert says in caught.value.message
    assert "\n" not in caught.value.message and len(caught.value.message) < 1000
