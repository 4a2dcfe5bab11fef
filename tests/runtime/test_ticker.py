"""A ticker wakes who waits, only while it is on."""

import select

from runtime.ticker import Ticker


def ticks(ticker: Ticker, timeout_s: float) -> bool:
    return bool(select.select([ticker.fd], [], [], timeout_s)[0])


def test_it_ticks_again_and_again_until_it_is_turned_off() -> None:
    ticker = Ticker(0.001)
    assert not ticks(ticker, 0.01)
    ticker.turn(True)
    for _ in range(3):
        assert ticks(ticker, 10.0)
        ticker.clear()
    ticker.turn(False)
    ticker.clear()
    assert not ticks(ticker, 0.01)
    ticker.close()
    ticker.close()
    assert ticker.fd < 0


def test_to_turn_it_on_again_does_not_put_off_the_next_tick() -> None:
    ticker = Ticker(0.005)
    for _ in range(1000):
        ticker.turn(True)
        if ticks(ticker, 0.001):
            break
    assert ticks(ticker, 0)
    ticker.close()
