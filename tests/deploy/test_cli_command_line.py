import pytest

from deploy.cli import find_config, parse
from deploy.options import COMMANDS, options_for
from protocol.errors import ConfigError


def helped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    monkeypatch.setenv("COLUMNS", "112")
    with pytest.raises(SystemExit) as ended:
        parse(argv, "1.2.3")
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_flags_are_kept_as_typed_by_option_name() -> None:
    line = parse(["serve", "--page-size", "32", "--prefill=2", "--disable-overlap-schedule"], "1")
    assert line.command == "serve"
    assert line.flags == {"page-size": "32", "prefill": "2", "disable-overlap-schedule": "true"}


def test_aliases_mean_the_option() -> None:
    line = parse(["worker", "--model-path", "/m", "--disaggregation-mode", "null"], "1")
    assert line.flags == {"model": "/m", "role": "null"}
    line = parse(["serve", "--disaggregation-transfer-backend", "zmq"], "1")
    assert line.flags == {"transfer-backend": "zmq"}
    typed = "--max-model-len 9 --max-num-seqs 8 --block-size 7 --no-async-scheduling --h11-max-header-count=6"
    assert parse(["serve", *typed.split()], "1").flags == {
        "context-length": "9",
        "max-running-requests": "8",
        "page-size": "7",
        "disable-overlap-schedule": "true",
        "max-headers": "6",
    }


@pytest.mark.parametrize(
    ("typed", "method"),
    [
        ("--speculative-model /d --num-speculative-tokens 3 --speculative-algorithm NEXTN", "NEXTN"),
        ("--spec-model /d --spec-tokens 3 --spec-method mimo_mtp", "mimo_mtp"),
    ],
)
def test_a_draft_in_other_servers_words(typed: str, method: str) -> None:
    line = parse(["serve", *typed.split()], "1")
    assert line.flags == {
        "speculative-draft-model-path": "/d",
        "speculative-num-steps": "3",
        "speculative-algorithm": method,
    }
    assert find_config(line, {})["speculative-algorithm"] == "mtp"
    for typed, meant in (("half", "float16"), ("float", "float32")):
        assert find_config(parse(["serve", "--dtype", typed], "1"), {})["dtype"] == meant


@pytest.mark.parametrize("command", ["serve", "gateway", "worker", "demo", "config"])
@pytest.mark.parametrize("typed", ["DIR --host h", "--host h DIR", "--model DIR --host h DIR"])
def test_the_model_needs_no_flag(command: str, typed: str) -> None:
    words = typed.replace("host", "model").replace(" h", " DIR") if command == "demo" else typed
    assert parse([command, *words.split()], "1").flags["model"] == "DIR"


def test_a_foreign_flag_that_changes_nothing_is_taken() -> None:
    typed = "-tp 1 -pp1 -dp 1 --trust-remote-code --ep-size=1 DIR --enable-prefix-caching --load-format auto"
    assert parse(["serve", *typed.split()], "1").flags == {"model": "DIR"}


@pytest.mark.parametrize("typed", ["a b", "a,b", "a --port 1 --served-model-name a"])
def test_a_list_is_typed_with_spaces_or_commas(typed: str) -> None:
    line = parse(["serve", "--served-model-name", *typed.split()], "1")
    assert line.flags["served-model-name"] == ("a" if "--port" in typed else "a,b")


def test_config_takes_the_flags_of_every_server_and_json() -> None:
    line = parse(["config", "--port", "1", "--role", "decode", "--json"], "1")
    assert line.flags == {"port": "1", "role": "decode"}
    assert line.as_json


@pytest.mark.parametrize(
    "typed, says",
    [
        ("srve", "unknown command 'srve', did you mean `baton serve`?"),
        (
            "qqq",
            "unknown command 'qqq'; commands are serve, gateway, worker, demo, bench, verify, check, kernels, keys",
        ),
        ("serve --page-sise 2", "unknown flag --page-sise for baton serve, did you mean --page-size?"),
        ("serve --page-siz=2", "unknown flag --page-siz for baton serve, did you mean --page-size?"),
        ("serve --qqqqqqqq", "unknown flag --qqqqqqqq for baton serve; see baton serve --help"),
        ("serve --max-batch 2", "unknown flag --max-batch for baton serve; see baton serve --help"),
        ("serve --prot 1", "unknown flag --prot for baton serve, did you mean --port?"),
        (
            "serve --no-enable-mixed-chunk",
            "unknown flag --no-enable-mixed-chunk for baton serve, did you mean `--enable-mix",
        ),
        ("serve --prompt x", "unknown flag --prompt for baton serve; it belongs to baton demo"),
        ("serve --max_model_len 1", "unknown flag --max_model_len for baton serve, did you mean --max-model-len?"),
        ("serve --pp-size 2", "--pp-size: got '2', expected 1: each rank computes on one device"),
        ("serve -tp 2", "-tp: got '2', expected 1: say --tp-size, with --dp-size and"),
        ("serve -tp2", "-tp: got '2', expected 1: say --tp-size, with --dp-size and"),
        ("serve -tp=2", "-tp: got '2', expected 1: say --tp-size, with --dp-size and"),
        ("serve --speculative-config {}", "flags say it: its method is --speculative-algorithm, its model"),
        (
            "serve --speculative-accept-threshold-acc 0.9",
            "got '0.9', expected 1 or 1.0: a proposal is kept only if it is",
        ),
        ("serve -O 3", "-O is not a flag of this command: Baton compiles no graph"),
        ("serve -O3", "-O is not a flag of this command: Baton compiles no graph"),
        ("--prefill 2", "a command comes before the flags: `baton serve --prefill 2`; commands are serve, gateway"),
        ("--role=decode", "a command comes before the flags: `baton worker --role=decode`; commands are"),
        ("--port 1 gateway", "a command comes before the flags: `baton gateway --port 1`; commands are"),
        ("--what", "a command comes before the flags: `baton serve --what`; commands are"),
        (f"--port {'9' * 999}", "a command comes before the flags: `baton COMMAND [flags]`; commands are"),
        ("help srve", "unknown command 'srve', did you mean `baton serve`?"),
        ("serve --pp-size", "--pp-size/--pp: expected one argument"),
        ("serve --disaggregation-mode prefill", "prefill and decode are workers of one command: `baton serve --pre"),
        ("gateway --disaggregation-mode=decode", "--disaggregation-mode is not a flag of this command"),
        ("serve --max-num-batched-tokens", "--max-prefill-tokens limits the prompt tokens"),
        ("serve --gpu-memory-utilization 0.9", "--max-total-tokens limits the KV"),
        ("serve --enforce-eager", "--disable-cuda-graph switches off the CUDA graphs"),
        ('serve --kv-transfer-config {"kv_role":"kv_producer"}', "--transfer-backend says how KV travels"),
        ("keys new x --port 1", "unknown flag --port for baton keys; it belongs to baton serve, baton gateway"),
        ("serve DIR extra", "unexpected argument 'extra'"),
        ("serve DIR --model OTHER", "--model is given twice: 'OTHER' and 'DIR'; expected one value"),
        ("serve --port", "--port: expected one argument"),
        ("worker --prefill 2", "unknown flag --prefill for baton worker"),
    ],
)
def test_errors_say_what_was_meant(typed: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(typed.split(), "1")
    assert says in caught.value.message


@pytest.mark.parametrize("command", [command for command in COMMANDS if options_for(command)])
def test_the_flag_that_explains_the_environment_is_one_of_the_command(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, _, footer = helped(capsys, monkeypatch, command, "--help").partition("Every flag is also")
    flag, variable = footer.partition("(")[2].partition(")")[0].split(": ")
    assert f"\n  {flag} " in flags
    assert variable == f"BATON_{flag.removeprefix('--').replace('-', '_').upper()}"


def test_the_words_of_keys_are_kept_as_typed() -> None:
    assert parse(["keys", "new", "DIR", "host-a"], "1").words == ("new", "DIR", "host-a")
    assert parse(["keys"], "1").words == parse(["serve"], "1").words == ()


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = helped(capsys, monkeypatch, "--help")
    for name, what in COMMANDS.items():
        assert f"  baton {name:<7}  {what}\n" in text


@pytest.mark.parametrize("command", ["serve", "worker", "demo"])
def test_help_says_how_one_gpu_is_named(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = " ".join(helped(capsys, monkeypatch, command, "--help").split())
    assert "auto, cpu, cuda, cuda:N (default: auto)" in told


def test_help_has_groups_defaults_and_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = helped(capsys, monkeypatch, "serve", "--help")
    groups = ["what to start:", "model:", "addresses:", "memory and batches:", "from prefill to decode:", "examples:"]
    places = [text.index(f"\n{group}\n") for group in groups]
    assert places == sorted(places)
    assert "  --page-size N                     tokens in one page of KV (default: 16) [also --block-size]\n" in text
    assert "  --model DIR                       folder with config.json and safetensors weights" in text
    assert "(default: the bundled model)" in " ".join(text.split())
    assert "[also --model-path]" in text
    assert "  baton serve --prefill 0 --decode 0 --unified 1     the colocated baseline\n" in text
    switch = text[text.index("  --check-weights ") : text.index("  --gpus ")]
    assert switch.split()[-2:] == ["(default:", "off)"]
    assert max(len(line) for line in text.splitlines()) <= 112


def test_required_flags_are_marked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = helped(capsys, monkeypatch, "worker", "--help")
    assert "what this worker does: prefill, decode, unified (required)" in text


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert helped(capsys, monkeypatch, "--version") == "baton 1.2.3\n"
    assert helped(capsys, monkeypatch, "version") == "baton 1.2.3\n"


@pytest.mark.parametrize("typed, same", [("help", "--help"), ("help serve", "serve --help")])
def test_help_may_be_typed_as_a_word(
    typed: str, same: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert helped(capsys, monkeypatch, *typed.split()) == helped(capsys, monkeypatch, *same.split())


def test_the_flag_as_typed_is_kept() -> None:
    line = parse(["serve", "--max-model-len=9", "--page-size", "2", "DIR"], "1")
    assert line.spelled == {"context-length": "--max-model-len", "page-size": "--page-size"}
