"""The display of a run while it lasts."""

from loadtest.drive.events import Heard
from loadtest.drive.run import Progress
from loadtest.shown.live import LiveTable
from tests.loadtest.reports import measured, printed


def shown(table: LiveTable, progress: Progress) -> str:
    return printed(table.table(progress))


def test_rates_are_those_of_the_last_seconds_and_count_running_answers() -> None:
    table, progress = LiveTable("run 1 of 1"), Progress()
    assert "0 sent, 0 in flight, 0 ended" in shown(table, progress)

    heard = Heard(0.0)
    heard.tokens_so_far = 30
    progress.active.add(heard)
    progress.num_sent, progress.now_s, progress.num_tokens = 41, 2.0, 170
    progress.records += measured().records
    text = shown(table, progress)
    assert "41 sent, 1 in flight, 40 ended" in text and "100 tokens/s, 20 requests/s" in text
    assert "p50 200, p90 200 ms" in text and "1, last: <full>" in text
