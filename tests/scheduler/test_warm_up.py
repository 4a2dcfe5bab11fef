"""Warming up: the runner computes a chunk and a decode, on padding only, before anything is launched."""

import pytest

from model.fake import FakeRunner
from model.inputs import ModelInput
from protocol.errors import InternalError
from scheduler.boot import open_streams
from scheduler.engine import Engine
from scheduler.streams import Stream
from scheduler.streams_host import InlineStream
from tests.scheduler.building import CPU, make_engine


def engine_of(seen: list[ModelInput], forward: Stream, page_size: int = 4) -> Engine:
    return make_engine(
        forward, runner=FakeRunner(vocab_size=97, context_length=64, before_forward=seen.append), page_size=page_size
    )


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_chunk_and_a_decode_run_on_page_0_only(page_size: int) -> None:
    seen: list[ModelInput] = []
    forward, _ = open_streams(CPU, lambda: None)
    engine = engine_of(seen, forward, page_size)
    for layer in range(engine.kv.layout.num_layers):
        engine.kv.layer(layer).fill_(7.0)
    engine.warm_up()
    assert [(inp.extend_lens, inp.num_decodes) for inp in seen] == [((1,), 0), ((), 1)]
    for inp in seen:
        assert int(inp.slots_T.max()) < page_size and not inp.page_table_BP.any()
    for layer in range(engine.kv.layout.num_layers):
        assert (engine.kv.layer(layer)[1:] == 7.0).all()
        assert (engine.kv.layer(layer)[0] == 0.0).all()
    assert engine.pages.num_free == engine.pages.num_pages - 1 and not engine.in_flight
    engine.close()


def test_a_first_forward_that_fails_is_an_error_before_ready() -> None:
    def fail(inp: ModelInput) -> None:
        raise RuntimeError("no kernel image")

    forward, _ = open_streams(CPU, lambda: None)
    engine = make_engine(forward, runner=FakeRunner(vocab_size=97, context_length=64, before_forward=fail))
    with pytest.raises(InternalError, match=r"first forward .* no kernel image"):
        engine.warm_up()
    engine.close()


def test_it_comes_before_the_first_launch_only() -> None:
    engine = engine_of([], InlineStream())
    engine.num_launches = 1
    with pytest.raises(AssertionError, match="warming up"):
        engine.warm_up()
