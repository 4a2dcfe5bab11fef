"""What the launcher tells reaches the gateway's presence, /health and the metrics."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from gateway.app.launcher_news import LauncherNews
from protocol.messages_gateway import Role
from runtime.supervision import UnitNews
from tests.gateway.conftest import Setting, wait_until

NEWS = [
    UnitNews("decode-0", Role.DECODE, "backing off", 100.0, 130.0, 8),
    UnitNews("prefill-0", Role.PREFILL, "running", 90.0),
]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb"), os.fdopen(write_fd, "wb", closefd=False):
        yield read_fd, write_fd


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
async def test_lines_may_come_in_any_pieces(size: int, pipe: tuple[int, int]) -> None:
    heard: list[UnitNews] = []
    LauncherNews(pipe[0], heard.append).start()
    told = b"".join(news.to_line() for news in NEWS)
    for start in range(0, len(told), size):
        os.write(pipe[1], told[start : start + size])
        await asyncio.sleep(0)
    await wait_until(lambda: len(heard) == 2)
    os.close(pipe[1])
    assert heard == NEWS
    loop = asyncio.get_running_loop()
    await wait_until(lambda: not loop.remove_reader(pipe[0]))


async def test_a_line_without_sense_is_logged_and_the_next_one_is_heard(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[UnitNews] = []
    LauncherNews(pipe[0], heard.append).start()
    os.write(pipe[1], b"nonsense\n" + NEWS[0].to_line())
    await wait_until(lambda: heard == NEWS[:1])
    assert caplog.messages == ["the launcher says what makes no sense"]
    os.close(pipe[1])
    loop = asyncio.get_running_loop()
    await wait_until(lambda: not loop.remove_reader(pipe[0]))


async def test_what_is_no_pipe_is_not_listened_to() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    LauncherNews(nothing, lambda _: None).start()
    assert not asyncio.get_running_loop().remove_reader(nothing)
    os.close(nothing)


async def test_health_and_metrics_say_what_the_launcher_does(setting: Setting) -> None:
    presence, clock = setting.gateway.control.presence, setting.gateway._clock
    await setting.add_pair()
    assert (await setting.client.get("/health")).json() == {"status": "ok"}
    assert not [line for line in await setting.metrics() if line.startswith("baton_supervised_workers{")]

    presence.heard(UnitNews("decode-0", Role.DECODE, "running", 1.0))
    presence.heard(UnitNews("decode-1", Role.DECODE, "given up", 1.0, failures=4, max_restarts=3))
    health = (await setting.client.get("/health")).json()
    assert health == {"status": "ok", "not_running": ["a decode worker is given up after 3 restarts in a row"]}
    metrics = "\n".join(await setting.metrics())
    for state, number in (("running", 1), ("given up", 1), ("starting", 0), ("backing off", 0), ("left", 0)):
        assert f'baton_supervised_workers{{model_name="story",role="decode",state="{state}"}} {number}.0' in metrics
    assert 'role="unified",state=' not in metrics

    await setting.workers[1].stop()
    await wait_until(lambda: setting.gateway.control.membership.missing is not None)
    now = clock.now()
    presence.heard(UnitNews("decode-0", Role.DECODE, "backing off", now, now + 1000.0, 9))
    refused = await setting.client.get("/health")
    assert refused.status_code == 503
    told = refused.json()["error"]["message"]
    assert told.startswith("no decode worker is ready, so no request could be served for ")
    assert "; a decode worker is started again in " in told and " s, restart 9 in a row; " in told
    assert told.endswith("; a decode worker is given up after 3 restarts in a row") and "decode-" not in told
