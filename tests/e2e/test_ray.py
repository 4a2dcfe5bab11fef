"""`baton serve` whose KV travels over Ray."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from tests.e2e.answers import FLAGS, RUNNER, answers_of, draw_prompts, right_or_unavailable
from tests.e2e.baton_process import FAKE, PATIENCE_S, BatonProcess
from tests.processes import command_line
from tests.transfer.backends.ray.ray_cluster import ray_cluster

pytestmark = [pytest.mark.slow, pytest.mark.broad]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster() as address:
        yield address


def porters() -> set[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return {each for each in children if "ray::Porter" in " ".join(command_line(each))}


def test_every_token_is_right_also_after_a_worker_was_killed(cluster: str, fake_folder: Path, tmp_path: Path) -> None:
    prompts = draw_prompts(1, 12)
    argv = [*FLAGS.split(), *"--page-size 8 --transfer-backend ray".split()]
    ours = {"RAY_ADDRESS": cluster}
    with BatonProcess(str(fake_folder), *argv, log=tmp_path / "log", program=FAKE, variables=ours) as baton:
        assert answers_of(baton, prompts, 20) == [RUNNER.expected_tokens(prompt, 20) for prompt in prompts]
        assert {each["id"]: each["transfer"] for each in baton.workers()}["decode-0"] == {"prefill-0": "ray"}
        assert baton.wait_for_rest()
        before = porters()
        assert len(before) == 1
        victim = baton.worker("decode-0")
        victim.kill()
        assert all(right_or_unavailable(baton, prompt) for prompt in prompts[:4])
        assert baton.wait_until(lambda: len(porters()) == 1 and not porters() & before)
        assert baton.wait_for_return("decode-0", victim.pid)
        assert answers_of(baton, prompts[:4], 20) == [RUNNER.expected_tokens(prompt, 20) for prompt in prompts[:4]]
    psutil.wait_procs(porters(), timeout=PATIENCE_S)
    assert porters() == set()
