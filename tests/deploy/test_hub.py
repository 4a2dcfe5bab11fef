"""A model by its name at a hub, against a stub of the hub on a loopback port."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants

from deploy.console import Console
from deploy.hub import INDEX, download, is_hub_name, shown_hub
from deploy.model_folder import (
    DRAFT_OPTION,
    NAMED_AT_HUB,
    find_draft,
    find_model,
    find_tokenizer,
    has_tokenizer,
    is_at_hub,
    is_checkpoint,
    model_elsewhere,
    model_name,
    with_hub_folders,
)
from deploy.serve import lone_gateway, lone_worker
from protocol.errors import ConfigError
from runtime.settings import GatewaySettings, WorkerSettings
from tests.deploy.configs import config
from tests.deploy.hub_stub import COMMIT, OLD_COMMIT, StubHub, running_hub

STORY = Path(__file__).resolve().parents[2] / "models/story"
NEEDED = {
    "config.json": b'{"max_position_embeddings": 64}',
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": b"w" * 5000,
    "model.safetensors.index.json": b"{}",
    "chat_template.jinja": b"x",
    "additional_chat_templates/tool_use.jinja": b"y",
}
NOT_NEEDED = dict.fromkeys(
    ("README.md", "pytorch_model.bin", "original/model.safetensors", "onnx/config.json", "consolidated.safetensors"),
    b"z",
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StubHub]:
    with running_hub(StubHub({"org/tiny": NEEDED | NOT_NEEDED})) as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        files = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", found.url + files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        yield found
        close_session()


def refusal(name: str, revision: str | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        find_model(name, revision)
    assert "\n" not in caught.value.message and len(caught.value.message) < 400
    return caught.value


@pytest.mark.parametrize("name", ["org/name", "Qwen/Qwen3-0.6B", "a/b_c.d-e"])
def test_names_at_a_hub(name: str) -> None:
    assert is_hub_name(name)


@pytest.mark.parametrize(
    "name", ["name", "/org/name", "./name", "~/name", "a/b/c", "a/", "/b", "a/.b", "", "a b/c", "a/b\n"]
)
def test_what_is_no_name_at_a_hub(name: str) -> None:
    assert not is_hub_name(name)


def test_only_what_baton_reads_is_downloaded_and_that_once(hub: StubHub) -> None:
    folder = find_model("org/tiny")
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(NEEDED)
    assert all((folder / name).read_bytes() == raw for name, raw in NEEDED.items())
    assert hub.files_sent() == set(NEEDED) and model_name(folder) == "org/tiny" and folder.name == COMMIT

    hub.asked.clear()
    assert find_model("org/tiny") == folder and not hub.files_sent()


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: StubHub) -> None:
    assert find_model("org/tiny", "v1").name == OLD_COMMIT == find_model("org/tiny", OLD_COMMIT).name
    error = refusal("org/tiny", "v2")
    assert error.param == "revision" and error.message.startswith(
        "--revision: got 'v2', which 'org/tiny' does not have"
    )


def test_a_folder_of_that_name_wins(hub: StubHub, tmp_path: Path) -> None:
    assert is_at_hub("org/tiny") and model_elsewhere("org/tiny") == "org/tiny" and not is_checkpoint("org/tiny")
    folder = tmp_path / "org/tiny"
    folder.mkdir(parents=True)
    assert "has no config.json" in refusal("org/tiny").message
    (folder / "config.json").write_text("{}")
    assert find_model("org/tiny") == folder and not hub.asked
    assert model_elsewhere("org/tiny") == str(folder) and is_checkpoint("org/tiny")
    for name in ("org/tiny", None):
        with pytest.raises(ConfigError, match=r"^--revision: got 'v1', but the model is a folder") as caught:
            find_model(name, "v1")
        assert caught.value.param == "revision"


def test_a_model_that_the_hub_does_not_have(hub: StubHub) -> None:
    assert f"'org/none' is neither a folder here nor a model at {hub.url}" in refusal("org/none").message


def test_a_model_without_a_configuration(hub: StubHub) -> None:
    hub.models = {"org/tiny": {"tokenizer.json": b"{}"}}
    assert "has no config.json" in refusal("org/tiny").message


@pytest.mark.parametrize(
    ("field", "words"), [("private", "a private one needs a token"), ("gated", "needs its terms accepted")]
)
def test_a_token_opens_what_it_is_for(hub: StubHub, monkeypatch: pytest.MonkeyPatch, field: str, words: str) -> None:
    setattr(hub, field, "org/tiny")
    error = refusal("org/tiny")
    assert words in error.message and "HF_TOKEN" in error.message and hub.tokens == {""}
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert find_model("org/tiny").name == COMMIT and hub.token in hub.tokens
    assert hub.token not in error.message


def test_without_a_hub_the_cache_is_enough_or_a_sentence_says_what_to_do(
    hub: StubHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = download("model", "org/tiny")
    for name, value, words in (
        ("HF_HUB_OFFLINE", True, "HF_HUB_OFFLINE forbids to ask a hub"),
        ("ENDPOINT", "http://127.0.0.1:9", "http://127.0.0.1:9 cannot be reached"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(constants, name, value)
            hub.asked.clear()
            assert find_model("org/tiny") == folder
            message = refusal("org/other").message
            assert words in message and "name its folder with --model" in message and not hub.asked

    (folder / "config.json").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "not whole in the hub's cache (it lacks config.json), and" in refusal("org/tiny").message


SILENT, CLOSED = 0, -1  # instead of a status of HTTP


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a hub that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listens:
        yield f"http://127.0.0.1:{listens.getsockname()[1]}"


@pytest.mark.parametrize("revision", [None, "v1", OLD_COMMIT])
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (SILENT, "cannot be reached"),
        (CLOSED, "cannot be reached"),
        (403, "answers 403 Forbidden"),
        (429, "answers 429 Too Many Requests"),
        (503, "answers 503 Service Unavailable"),
        (599, "answers 599"),
    ],
)
def test_a_hub_that_gives_no_answer_is_asked_once_and_not_waited_for(
    hub: StubHub,
    silent: str,
    monkeypatch: pytest.MonkeyPatch,
    revision: str | None,
    status: int,
    said: str,
) -> None:
    """A commit needs no name to be looked up, but the package asks for its files."""
    folder = download("model", "org/tiny", revision)
    (folder.parents[1] / "trees" / f"{folder.name}.json").unlink()
    endpoint = {SILENT: silent, CLOSED: "http://127.0.0.1:9"}.get(status, hub.url)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: pytest.fail("it tries again"))
    hub.failing, hub.asked = status, []
    assert download("model", "org/tiny", revision) == folder
    assert f"and {endpoint} {said}; download it elsewhere" in refusal("org/other", revision).message
    assert len(hub.asked) == (2 if status > 0 else 0)


WITH_DRAFT = {"speculative_algorithm": "eagle", "speculative_draft_model_path": "org/draft", "tokenizer": "org/tiny"}
DRAFT = {"config.json": b"{}", "model.safetensors": b"d"}


def test_a_tokenizer_and_a_draft_may_be_at_a_hub_and_weights_of_the_first_stay_there(
    hub: StubHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.models = {**hub.models, "org/draft": DRAFT}
    typed = config("serve", **WITH_DRAFT)
    for is_offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        found = with_hub_folders(typed)
        texts, draft = Path(found["tokenizer"]), Path(found[DRAFT_OPTION])
        assert has_tokenizer(texts) and (texts / "chat_template.jinja").is_file()
        assert (draft / "model.safetensors").read_bytes() == b"d" and model_name(draft) == "org/draft"
        assert (find_tokenizer(found["tokenizer"]), find_draft(found[DRAFT_OPTION])) == (texts, draft)
        assert found.settings == {**typed.settings, **{name: found.settings[name] for name in NAMED_AT_HUB}}
    assert hub.files_sent() == {name for name in NEEDED if not name.endswith(".safetensors")} | set(DRAFT)

    assert "not whole in the hub's cache (it lacks model-00001-of-00002.safetensors" in refusal("org/tiny").message


def test_each_process_gets_the_folder_of_a_tokenizer_that_has_a_hubs_name(hub: StubHub) -> None:
    gateway = lone_gateway(config("gateway", tokenizer="org/tiny"))
    typed = config("worker", role="unified", gateway="tcp://127.0.0.1:1", tokenizer="org/tiny")
    (worker,) = lone_worker(typed, Console(with_logs=False), "u")
    for spec, kind in ((gateway, GatewaySettings), (worker, WorkerSettings)):
        settings: Any = kind.from_json(spec.command[-1])
        assert Path(settings.tokenizer).name == COMMIT and has_tokenizer(Path(settings.tokenizer))


@pytest.mark.parametrize("draft", [{}, {"speculative_algorithm": "mtp"}], ids=["no algorithm", "mtp"])
def test_a_draft_that_nothing_would_use_is_not_downloaded(hub: StubHub, draft: dict[str, str]) -> None:
    typed = config("serve", speculative_draft_model_path="org/draft", **draft)
    assert with_hub_folders(typed)[DRAFT_OPTION] == "org/draft" and not hub.asked


def test_folders_of_these_names_win(hub: StubHub, tmp_path: Path) -> None:
    for name in ("tiny", "draft"):
        (tmp_path / "org" / name).mkdir(parents=True)
    typed = config("serve", **WITH_DRAFT)
    assert with_hub_folders(typed).settings == typed.settings and not hub.asked


@pytest.mark.parametrize("option", NAMED_AT_HUB)
def test_each_option_says_what_is_wrong_with_its_name(
    hub: StubHub, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    typed = config("serve", **{**WITH_DRAFT, option.replace("-", "_"): "org/none"})
    hub.models = {**hub.models, "org/draft": DRAFT}
    for is_offline, words in (
        (False, f"'org/none' is neither a folder here nor a model at {hub.url}; a private one needs a token"),
        (
            True,
            "'org/none' is no folder here and not whole in the hub's cache, and HF_HUB_OFFLINE forbids to ask a hub",
        ),
    ):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        with pytest.raises(ConfigError) as caught:
            with_hub_folders(typed)
        assert caught.value.message.startswith(f"--{option}: {words}") and caught.value.param == option
        assert "--model" not in caught.value.message
    hub.revisions = {}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ConfigError, match=f"^--{option}: 'org/tiny' has no branch main at {hub.url}$"):
        download(option, "org/tiny")


def half_filled(tmp_path: Path, files: dict[str, bytes]) -> Path:
    """The cache of org/tiny as a package without lists of files leaves it. Returns the snapshot."""
    cache = tmp_path / "cache/models--org--tiny"
    snapshot = cache / "snapshots" / COMMIT
    for name, raw in {f"refs/{b}": COMMIT.encode() for b in ("main", "v1")}.items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(raw)
    (cache / "blobs").mkdir()
    for name, raw in files.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(raw)
    return snapshot


SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
SHARDED = {"config.json": b"{}", INDEX: json.dumps({"weight_map": dict(zip("abc", SHARDS * 2, strict=False))}).encode()}
NO_HUB = [("HF_HUB_OFFLINE", True), ("ENDPOINT", "http://127.0.0.1:9")]


@pytest.mark.parametrize(("setting", "value"), NO_HUB)
@pytest.mark.parametrize("revision", [None, "v1"])
@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        ({"config.json": b"{}"}, "model.safetensors"),
        ({"model.safetensors": b"w"}, "config.json"),
        (SHARDED, ", ".join(SHARDS)),
        (SHARDED | {SHARDS[0]: b"w"}, SHARDS[1]),
        (SHARDED | {"model.safetensors": b"w", SHARDS[1]: b"w"}, SHARDS[0]),
    ],
)
def test_without_a_hub_a_half_filled_cache_is_refused_until_its_files_are_there(
    hub: StubHub,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: dict[str, bytes],
    lacking: str,
    revision: str | None,
    setting: str,
    value: object,
) -> None:
    snapshot = half_filled(tmp_path, files)
    monkeypatch.setattr(constants, setting, value)
    message = refusal("org/tiny", revision).message
    assert f"not whole in the hub's cache (it lacks {lacking}), and" in message
    assert "name its folder with --model" in message and not hub.asked
    for name in lacking.split(", "):
        (snapshot / name).write_bytes(b"{}")
    assert find_model("org/tiny", revision) == snapshot


def test_without_a_hub_a_download_that_has_begun_must_have_ended(
    hub: StubHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    snapshot = half_filled(tmp_path, {"config.json": b"{}", "model.safetensors": b"w"})
    blobs = snapshot.parents[1] / "blobs"
    (blobs / "abc.12.incomplete").write_bytes(b"t")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "(it lacks blobs/abc.12.incomplete)" in refusal("org/tiny").message
    (blobs / "abc").write_bytes(b"tok")  # a later try has ended
    assert find_model("org/tiny") == snapshot


def test_what_a_package_has_compared_with_a_list_needs_no_other_sign(
    hub: StubHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = find_model("org/tiny")
    (folder.parents[1] / "blobs/of-another-revision.incomplete").write_bytes(b"t")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert (folder.parents[1] / "trees").is_dir() and find_model("org/tiny") == folder


def test_the_hub_fills_a_half_filled_cache_and_its_word_is_enough(hub: StubHub, tmp_path: Path) -> None:
    snapshot = half_filled(tmp_path, {"config.json": NEEDED["config.json"]})
    assert find_model("org/tiny") == snapshot and (snapshot / SHARDS[0]).is_file()
    hub.models = {"org/other": {"config.json": b"{}", "pytorch_model.bin": b"w"}}
    assert find_model("org/other").name == COMMIT, "the sentence about formats is the loader's"


@pytest.mark.parametrize(
    "address",
    [
        "http://user:secret@127.0.0.1:9",
        "http://secret@127.0.0.1:9/secret",
        "http://127.0.0.1:9/?token=secret#secret",
        "http://user:se/secret@127.0.0.1:9",
        "http://user:secret?secret@127.0.0.1:9",
        "http://user:sec@secret@127.0.0.1:9",
        "user:secret@127.0.0.1:9",
    ],
)
@pytest.mark.parametrize("is_offline", [False, True])
def test_a_refusal_names_a_hub_without_secrets(
    hub: StubHub, monkeypatch: pytest.MonkeyPatch, address: str, is_offline: bool
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    message = refusal("org/tiny").message
    assert "secret" not in message and "se/" not in message and "user" not in message


@pytest.mark.parametrize("kind", [OSError, ValueError, RuntimeError])
def test_a_reason_is_told_without_signatures(
    hub: StubHub, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind(
            "403 for url 'https://me:secret@cdn.org:8443/blob?X-Sig=secret&a=b#secret'"
            f" after https://[::1]:9/secret?{'secret' * 99} and url: /blob?X-Sig=secret\nsecret"
        )

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    message = refusal("org/tiny").message
    assert message.endswith(": 403 for url 'https://cdn.org:8443 after https://[::1]:9 and url: /blob")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://huggingface.co", "https://huggingface.co"),
        ("http://me:secret@hub.example:8080/sub", "http://hub.example:8080"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("http://me:a/b@hub", "http://..."),
        ("hub.example", "the hub of HF_ENDPOINT"),
    ],
)
def test_the_address_of_a_hub_in_sentences(address: str, shown: str) -> None:
    assert shown_hub(address) == shown


def test_a_cache_that_cannot_be_written(hub: StubHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert refusal("org/tiny").message.startswith(f"--model: cannot download 'org/tiny' from {hub.url}: ")


def test_a_download_that_ends_in_the_middle(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.broken_file = "model-00001-of-00002.safetensors"
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)  # between its own tries
    message = refusal("org/tiny").message
    assert "cannot download 'org/tiny'" in message and hub.broken_file in hub.files_sent()
    hub.broken_file = ""
    assert (find_model("org/tiny") / "model-00001-of-00002.safetensors").read_bytes() == b"w" * 5000


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"HF_ENDPOINT": "http://h:99999"}, {"HF_HUB_ETAG_TIMEOUT": "soon"}], ids=str)
def test_a_variable_that_the_package_refuses_is_one_sentence(wrong: dict[str, str]) -> None:
    command = [sys.executable, "-m", "deploy", "gateway", "--model", "org/other"]
    done = subprocess.run(command, env={**os.environ, **wrong}, capture_output=True, text=True, check=False)
    said = "--model: huggingface_hub refuses an environment variable that begins with HF_: "
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_baton_serves_a_model_of_a_hub(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in STORY.iterdir() if path.is_file()}
    with running_hub(StubHub({"org/story": files}, private="org/story")) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": hub.token}
        done = subprocess.run(
            [sys.executable, "-m", "deploy", "demo", "--model", "org/story", "--revision", "v1", "--max-tokens", "8"],
            env=environment | {"HF_HUB_OFFLINE": "0"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "org/story on " in done.stdout and hub.files_sent() and "Fetching" in done.stderr, "and how far it is"

        lone = subprocess.run(
            [sys.executable, "-m", "deploy", "gateway", "--model", "org/other"],
            env=environment | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert lone.returncode != 0 and "HF_HUB_OFFLINE forbids" in lone.stderr, lone.stderr
