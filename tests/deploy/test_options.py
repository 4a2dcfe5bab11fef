import pytest

from deploy.options import COMMANDS, EXAMPLES, OPTIONS, options_for
from runtime.layered_config import Kind


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_each_option_once_in_groups_without_gaps(command: str) -> None:
    options = options_for(command)
    names = [option.name for option in options]
    assert len(names) == len(set(names))
    spellings = [each for option in options for each in (option.name, *option.aliases)]
    assert len(spellings) == len(set(spellings))
    groups = [option.group for option in options]
    assert groups == sorted(groups, key=groups.index)
    assert EXAMPLES[command].startswith("  baton")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.name}-{option.commands[0]}")
def test_an_option_is_complete(option: object) -> None:
    found = next(each for each in OPTIONS if each is option)
    assert found.help
    assert set(found.commands) <= set(COMMANDS)
    assert found.default is not None or found.unset
    assert found.metavar or found.kind is Kind.SWITCH
    if found.default is not None:
        wanted = {Kind.INTEGER: int, Kind.SWITCH: bool}.get(found.kind, str)
        assert type(found.default) is wanted
        assert not found.choices or found.default in found.choices


def test_options_of_one_name_are_of_one_kind() -> None:
    kinds = {(option.name, option.kind, option.choices) for option in OPTIONS}
    assert len(kinds) == len({option.name for option in OPTIONS})


def test_the_worker_host_differs_from_the_gateway_host() -> None:
    hosts = {command: next(o for o in options_for(command) if o.name == "host") for command in ("serve", "worker")}
    assert hosts["serve"].default == "127.0.0.1"
    assert hosts["worker"].default is None
