import pytest

from protocol.errors import ConfigError
from runtime.process_arguments import read_arguments
from runtime.settings import GatewaySettings

SETTINGS = GatewaySettings(model="/m", served_model_name="story")


def test_settings_and_status_descriptor_are_read() -> None:
    found = read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json(), "--status-fd", "7"])
    assert found.settings == SETTINGS
    assert found.status_fd == 7


def test_the_status_descriptor_may_be_absent() -> None:
    assert read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json()]).status_fd is None


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'role'"):
        read_arguments(GatewaySettings, ["--settings", '{"role": "prefill"}'])
