"""The flags of `baton verify`, and errors that name what is wrong."""

import json
from pathlib import Path

import pytest

from loadtest.verify.bounds import Bounds
from loadtest.verify.flags import (
    bounds_of,
    extra_of,
    num_asks,
    read_calibration,
    verify_parser,
    vocab_of,
    write_calibration,
)  # fmt: skip
from loadtest.verify.ties import Noise
from protocol.errors import ConfigError

URL = "http://127.0.0.1:1"
NOISES = {"repeat": Noise(0.125, 0.06, 100)}


def test_defaults_are_safe() -> None:
    asked = verify_parser().parse_args([URL])
    assert bounds_of(asked) == Bounds() == Bounds(300, 150_000, 2.0, 4, 600.0, 30.0)
    assert extra_of(asked) == () and vocab_of(asked) == 256 and num_asks(asked) == 8


@pytest.mark.parametrize(
    "words, says",
    [
        ("", "the following arguments are required: URL"),
        (f"{URL} --requests 3", "--requests: got '3', expected an integer of at least 8"),
        (f"{URL} --rate 0", "--rate: got '0'"),
        (f"{URL} --churn x", "--churn: got 'x'"),
        (f"{URL} --only fault", "--only: got 'fault', expected one of load"),
        (f"{URL} --model /nowhere", "--model: cannot read the vocabulary of '/nowhere'"),
        (f"{URL} --minuts 3", "unrecognized arguments: --minuts 3"),
    ],
)
def test_a_bad_call_names_the_flag(words: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        called(words)
    assert says in raised.value.message


def called(words: str) -> None:
    asked = verify_parser().parse_args(words.split())
    extra_of(asked)
    vocab_of(asked)


@pytest.mark.parametrize("command", ["", "kill '"])
def test_a_fault_must_be_a_command(command: str) -> None:
    with pytest.raises(ConfigError, match="--fault: "):
        extra_of(verify_parser().parse_args([URL, "--fault", command]))


@pytest.mark.parametrize("requests, number", [(8, 2), (20, 2), (50, 4), (300, 8), (9000, 8)])
def test_a_small_run_learns_little(requests: int, number: int) -> None:
    assert num_asks(verify_parser().parse_args([URL, "--requests", str(requests)])) == number


def test_a_folder_tells_its_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 307}))
    assert vocab_of(verify_parser().parse_args([URL, "--model", str(tmp_path)])) == 307


def test_a_calibration_comes_back_for_the_same_model_only(tmp_path: Path) -> None:
    path = tmp_path / "near-tie.json"
    assert read_calibration(None, "m", ["repeat"]) is None is read_calibration(path, "m", ["repeat"])
    write_calibration(path, "m", NOISES)
    assert read_calibration(path, "m", ["repeat"]) == NOISES
    with pytest.raises(ConfigError, match="expected 'other' and repeat; name another file"):
        read_calibration(path, "other", ["repeat"])
    with pytest.raises(ConfigError, match="expected 'm' and repeat, folder"):
        read_calibration(path, "m", ["repeat", "folder"])
    path.write_text("[]")
    with pytest.raises(ConfigError, match="--calibration: "):
        read_calibration(path, "m", ["repeat"])
