import pytest

from deploy.options import options_for
from deploy.ray.flags import decided, free_flags, read_flags
from protocol.errors import ConfigError


def test_a_deployment_takes_the_flags_of_its_command() -> None:
    assert read_flags("Decode", {"page-size": 32, "threads": 2})["page-size"] == 32
    assert read_flags("Decode", {"page_size": 32})["page-size"] == 32
    assert read_flags("Gateway", {"served-model-name": ["a", "b"]})["served-model-name"] == ("a", "b")
    assert read_flags("Gateway", None)["port"] == 8000


@pytest.mark.parametrize(("deployment", "command"), [("Gateway", "gateway"), ("Prefill", "worker")])
def test_every_flag_is_free_or_decided_elsewhere(deployment: str, command: str) -> None:
    names = {option.name for option in options_for(command)}
    assert {*free_flags(deployment), *decided(command)} == names
    assert not set(free_flags(deployment)) & set(decided(command))


def test_what_the_holder_gives_wins() -> None:
    assert read_flags("Gateway", {"port": 9000}, {"host": "10.0.0.5"})["host"] == "10.0.0.5"


@pytest.mark.parametrize(
    ("deployment", "written", "said"),
    [
        ("Prefill", {"page-sise": 3}, "user_config of Prefill: unknown key 'page-sise', did you mean 'page-size'?"),
        ("Prefill", {"port": 8000}, "user_config of Prefill: unknown key 'port'"),
        ("Prefill", {"page-size": "16"}, "page-size in user_config of Prefill: got '16' (a string), expected"),
        ("Decode", {"gpus": "0"}, "user_config of Decode: gpus is not set there: Ray gives GPUs"),
        ("Decode", {"worker_id": "x"}, "user_config of Decode: worker-id is not set there"),
        ("Gateway", {"keys": "x"}, "user_config of Gateway: keys is not set there: each process makes"),
        ("Gateway", {"port": 99999}, "port in user_config of Gateway: got 99999, expected an integer from 0 to 65535"),
    ],
)
def test_what_is_wrong_is_named(deployment: str, written: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_flags(deployment, written)
    assert raised.value.message.startswith(said)
