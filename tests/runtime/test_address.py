import socket

import pytest

from protocol.errors import ConfigError
from runtime.address import is_loopback, listen, refuse_exposed, split_endpoint


@pytest.mark.parametrize(
    "endpoint, found",
    [
        ("tcp://h:1", ("h", 1)),
        ("tcp://[::1]:7000", ("::1", 7000)),
        ("tcp://[fe80::1%eth0]:7000", ("fe80::1%eth0", 7000)),
        ("tcp://0.0.0.0:0", ("0.0.0.0", 0)),
        ("tcp://*:5", ("*", 5)),
        ("tcp://my-host_1.example.org:65535", ("my-host_1.example.org", 65535)),
    ],
)
def test_endpoints(endpoint: str, found: tuple[str, int]) -> None:
    assert split_endpoint(endpoint, "control") == found


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "h:1", "tcp://h", "tcp://:1", "http://h:1", "tcp://h:x", "tcp://h:70000", "tcp://h:-1", "tcp://h:+1"),
        *("tcp://h:1/", "tcp://h:1 ", " tcp://h:1", "tcp://h h:1", "tcp://h\n:1", "tcp://h:1\n", "tcp://h:\u0661"),
        "tcp://::1:5",
        *("tcp://[h]:5", "tcp://[::1]", "tcp://u@h:5", "TCP://h:1", "tcp://h:000001", f"tcp://{'h' * 900}"),
    ],
)  # fmt: skip
def test_wrong_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_endpoint(endpoint, "--control")
    assert caught.value.message.startswith("--control: got ")
    assert "expected tcp://HOST:PORT" in caught.value.message
    assert caught.value.message.isprintable() and len(caught.value.message) < 200
    assert caught.value.param == "control"


def test_a_listening_socket_takes_connections() -> None:
    with listen("127.0.0.1", 0, 5) as server, socket.create_connection(server.getsockname(), timeout=10) as client:
        assert client.getpeername() == server.getsockname()


def test_what_is_in_use_is_named() -> None:
    with listen("127.0.0.1", 0, 5) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port: {port} on 127\.0\.0\.1 is in use by another process"):
            listen("127.0.0.1", port, 5)


@pytest.mark.parametrize("host", ["", "no..dots", "a" * 300, "999.0.0.1", "192.0.2.1", "\ud800"])
def test_a_host_that_is_not_this_machine(host: str) -> None:
    with pytest.raises(ConfigError, match="host: ") as caught:
        listen(host, 0, 5)
    assert caught.value.param == "host" and len(caught.value.message) < 300


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)
    refuse_exposed(host, "--host", has_keys=False, trust_network=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.6", "*", "eth0", "no such host", "", "fe80::1%lo", "\ud800"])
def test_what_others_reach_needs_keys_or_a_word(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError) as caught:
        refuse_exposed(host, "--control", has_keys=False, trust_network=False)
    assert caught.value.message.startswith(f"--control: {host!r} can be reached from other machines")
    assert all(way in caught.value.message for way in ("--keys DIR", "--trust-network", "127.0.0.1"))
    refuse_exposed(host, "--control", has_keys=True, trust_network=False)
    refuse_exposed(host, "--control", has_keys=False, trust_network=True)
