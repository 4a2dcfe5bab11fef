import logging

import pytest

from runtime.log import Refusals, get_log


def test_each_kind_is_counted_and_logged_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(get_log("test"), "frame refused")
    with caplog.at_level(logging.WARNING):
        for index in range(1234):
            refusals.note("size", at=index)
        refusals.note("checksum")
    assert refusals.counts == {"size": 1234, "checksum": 1}
    assert refusals.total == 1235
    fields = [record.__dict__["baton_fields"] for record in caplog.records]
    assert [(each["kind"], each["count"]) for each in fields] == [
        *(("size", 10**power) for power in range(4)),
        ("checksum", 1),
    ]
    assert [each.get("at") for each in fields] == [0, 9, 99, 999, None]
    assert {record.getMessage() for record in caplog.records} == {"frame refused"}
