"""What a worker does when it is told to forget what it has cached."""

from typing import Any

from protocol.messages_gateway import CacheFlushed, FlushCache, Register, ToGateway, Welcome
from tests.worker.conftest import Bench


def test_a_flush_is_answered_with_its_number_once_the_cache_is_empty(context: Any) -> None:
    answers: list[tuple[ToGateway, int]] = []

    def play(bench: Bench, arrived: list[ToGateway]) -> None:
        bench.clock.advance(0.05)
        if any(isinstance(message, Register) for message in arrived):
            bench.send(Welcome(1))
            bench.send(FlushCache(7))
            bench.send(FlushCache(8))
        answers.extend((each, bench.core.book._flushes) for each in arrived if isinstance(each, CacheFlushed))
        if len(answers) == 2:
            bench.stop()

    bench = Bench(context, play)
    bench.loop.run()
    bench.close()
    assert [answer for answer, _ in answers] == [CacheFlushed(7), CacheFlushed(8)]
    assert bench.core.book._flushes == 2 and all(num_flushes for _, num_flushes in answers)
