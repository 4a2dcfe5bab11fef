import pytest

from deploy.layout import worker_spec
from protocol.messages_gateway import Role
from runtime.settings import WorkerSettings
from testkit.roles import role_of


@pytest.mark.parametrize("role", Role)
def test_a_worker_has_the_role_of_its_settings(role: Role) -> None:
    spec = worker_spec(
        WorkerSettings(worker_id="decode-but-not-really", role=role, model="prefill", gateway="tcp://127.0.0.1:1")
    )
    assert role_of(spec.command) == role_of((*spec.command, "--status-fd", "7")) == role.value


@pytest.mark.parametrize(
    "words, expected",
    [
        (("python", "-P", "-m", "gateway", "--settings", "{}"), "gateway"),
        (("python", "-m", "http.server"), "http"),
        (("/usr/bin/raylet", "--decode"), "raylet"),
        ((), ""),
    ],
)
def test_other_programs_have_their_names(words: tuple[str, ...], expected: str) -> None:
    assert role_of(words) == expected
