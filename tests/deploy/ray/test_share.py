import pytest

from deploy.ray.share import Share, with_share
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("share", "ranks", "flags"),
    [
        (Share(1, 0, 8, 0), 1, {"threads": "1", "workers-on-host": "8"}),
        (Share(3, 0, 8, 0), 1, {"threads": "3", "workers-on-host": "2"}),
        (Share(4, 0, 8, 0), 2, {"threads": "2", "workers-on-host": "4"}),
        (Share(0.5, 0, 2, 0), 1, {"threads": "1", "workers-on-host": "4"}),
        (Share(2, 1, 64, 8), 1, {"threads": "2", "workers-on-host": "8", "workers-on-gpu": "1"}),
        (Share(8, 4, 64, 8), 4, {"threads": "2", "workers-on-host": "8", "workers-on-gpu": "1"}),
        (Share(8, 2, 64, 8), 4, {"threads": "2", "workers-on-host": "16", "workers-on-gpu": "2"}),
        (Share(0, 1, 64, 8), 1, {"threads": "1", "workers-on-host": "8", "workers-on-gpu": "1"}),
    ],
)
def test_threads_and_memory_follow_from_the_claim(share: Share, ranks: int, flags: dict[str, str]) -> None:
    share.check("Decode")
    assert share.flags(ranks) == flags


def test_what_the_user_says_is_left_alone() -> None:
    assert with_share({"workers_on_host": 1}, Share(2, 0, 8, 0), 1) == {"threads": "2"}


@pytest.mark.parametrize(
    ("share", "said"), [(Share(0, 0, 8, 8), "num_cpus 0 and num_gpus 0"), (Share(1, 0.5, 8, 8), "0.5")]
)
def test_a_claim_that_is_none_or_half_a_gpu_is_refused(share: Share, said: str) -> None:
    with pytest.raises(ConfigError, match=f"ray_actor_options of Decode: got .*{said}"):
        share.check("Decode")
