from dataclasses import replace

from protocol.messages_gateway import Role
from protocol.worker_facts import KvPages
from testkit.fake_worker import STATS, FakeWorker


async def test_it_tells_the_stats_that_it_is_given() -> None:
    stats = replace(STATS, kv_pages=KvPages(total=9, free=9))
    worker = FakeWorker(Role.UNIFIED, "tcp://127.0.0.1:1", "u", stats=stats)
    assert worker.registration().stats == worker.stats == stats
    await worker.stop()
