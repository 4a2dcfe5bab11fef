import os

import pytest

from protocol.errors import ConfigError
from runtime.settings import GatewaySettings, read_arguments

SETTINGS = GatewaySettings(model="/m", served_model_name=("story",))


def test_settings_and_status_descriptor_are_read() -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd), os.fdopen(write_fd):
        found = read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json(), "--status-fd", str(write_fd)])
    assert found == (SETTINGS, write_fd)


@pytest.mark.parametrize("number", ["-1", "999999", str(2**70)])
def test_a_descriptor_that_is_not_open_is_refused(number: str) -> None:
    with pytest.raises(ConfigError, match=f"--status-fd: got {number}, expected an open descriptor"):
        read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json(), f"--status-fd={number}"])


def test_the_status_descriptor_may_be_absent() -> None:
    assert read_arguments(GatewaySettings, ["--settings", SETTINGS.to_json()]) == (SETTINGS, None)


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'role'"):
        read_arguments(GatewaySettings, ["--settings", '{"role": "prefill"}'])
