import pytest

from deploy.ray.arguments import Arguments, read_arguments
from protocol.errors import ConfigError
from protocol.messages_gateway import Role


def test_without_a_word_it_is_a_pair_of_the_bundled_model() -> None:
    arguments = read_arguments({})
    assert (arguments.model, arguments.roles) == (None, (Role.PREFILL, Role.DECODE))
    assert arguments.deployments == ("Gateway", "Prefill", "Decode")


def test_they_travel_to_the_replicas_as_json() -> None:
    arguments = read_arguments({"model": "/models/story", "roles": ["unified"], "control_port": 7000, "drain_s": 5})
    assert Arguments.from_json(arguments.to_json()) == arguments


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"modell": "x"}, "args: unknown key 'modell', expected one of model, revision, roles, control_port, drain_s"),
        ({"roles": ["prefill"]}, "args.roles: got prefill, expected decode too"),
        ({"roles": ["decode", "unified"]}, "args.roles: got decode, unified, expected prefill too"),
        ({"roles": ["unified", "unified"]}, "args.roles: got unified, unified, expected each role once"),
        ({"roles": ["prefil"]}, "args.roles: got 'prefil', expected 'prefill', 'decode' or 'unified'"),
        ({"roles": []}, "args.roles: got '[]', expected at least 1 item"),
        ({"drain_s": 0}, "args.drain_s: got '0', expected greater than or equal to 1"),
        ({"control_port": 70000}, "args.control_port: got '70000'"),
        ({"model": 5}, "args.model: got '5', expected a valid string"),
        ({"model": ""}, "args.model: got '', expected at least 1 character"),
    ],
)
def test_what_is_wrong_is_named(written: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_arguments(written)
    assert raised.value.message.startswith(said)
