from dataclasses import fields

import pytest

from deploy.options import COMMANDS, EXAMPLES, OPTIONS, RAY_CONFIG, options_for
from runtime.layered_config import Origin, Setting
from runtime.options import Kind, Option, option_name
from runtime.settings import GatewaySettings, WorkerSettings


@pytest.mark.parametrize("command", [*COMMANDS, RAY_CONFIG])
def test_a_command_has_each_option_once_in_groups_without_gaps(command: str) -> None:
    options = options_for(command)
    names = [option.name for option in options]
    assert len(names) == len(set(names))
    spellings = [spelling for option in options for spelling in (option.name, *option.aliases)]
    assert len(spellings) == len(set(spellings))
    groups = [option.group for option in options]
    assert groups == sorted(groups, key=groups.index)
    assert EXAMPLES[command.partition(" ")[0]].startswith("  baton")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.name}-{option.commands[0]}")
def test_an_option_is_complete(option: Option) -> None:
    assert option.help
    assert set(option.commands) <= {*COMMANDS, RAY_CONFIG}
    assert option.placeholder or option.kind is Kind.SWITCH
    if option.default is not None:
        assert option.from_text(Setting(option, option.default, Origin.DEFAULT).text, "") == option.default


def test_options_of_one_name_are_of_one_kind() -> None:
    kinds = {(option.name, option.kind, option.choices) for option in OPTIONS}
    assert len(kinds) == len({option.name for option in OPTIONS})


def test_every_field_of_a_process_is_an_option_or_is_given_by_the_launcher() -> None:
    """Who adds a field learns where it is made an option."""
    fields_of = {cls: {option_name(field.name) for field in fields(cls)} for cls in (WorkerSettings, GatewaySettings)}
    options = {option.name for option in OPTIONS}
    of_a_rank = {"group", "group-size", "group-rank", "group-epoch", "group-folder"}
    assert fields_of[WorkerSettings] - options == {"fake-model"} | of_a_rank
    assert fields_of[GatewaySettings] - options == {"model-as-typed", "limits"}


def test_the_worker_host_differs_from_the_gateway_host() -> None:
    hosts = {command: next(o for o in options_for(command) if o.name == "host") for command in ("serve", "worker")}
    assert hosts["serve"].default == "127.0.0.1"
    assert hosts["worker"].default is None
