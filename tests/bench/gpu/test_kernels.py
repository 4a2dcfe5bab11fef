"""Kernels by time and kind, and idle times, of events that are made up: streams overlap, steps differ."""

import random

import pytest

from bench.gpu.kernels import (
    KINDS,
    NAME_CHARS,
    OTHER,
    Event,
    Period,
    Total,
    busy_us,
    by_kind,
    by_name,
    device_events,
    kind_of,
    periods,
    short,
)

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
ADD += "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float)"
ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, 4> >(float)"


def test_only_events_on_the_device_count_in_the_order_of_their_start() -> None:
    trace = {
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "b", "ts": 20.5, "dur": 2, "args": {"stream": 7}},
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 10, "dur": 1.5},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 5, "dur": 9},
            {"ph": "X", "cat": "gpu_user_annotation", "name": "a step", "ts": 0, "dur": 99},
            {"ph": "M", "name": "process_name"},
            {"ph": "i", "cat": "kernel", "name": "an instant", "ts": 1},
        ]
    }
    assert device_events(trace) == [Event("Memcpy HtoD", 10.0, 1.5), Event("b", 20.5, 2.0)]
    assert [event.name for event in device_events(trace, ("cuda_runtime",))] == ["cudaGraphLaunch"]
    assert device_events({"traceEvents": []}) == []


@pytest.mark.parametrize("seed", range(30))
def test_busy_and_idle_times_are_those_of_a_clock_that_looks_at_each_microsecond(seed: int) -> None:
    rng = random.Random(seed)
    ticks = [rng.randrange(50, 300) for _ in range(3)]
    starts = [0, *(sum(ticks[: index + 1]) for index in range(3))]
    events = [Event("head", float(start), 3.0) for start in starts]
    while len(events) < 30:  # of several streams, some of them across the start of a step
        events.append(Event(f"k{len(events) % 4}", float(rng.randrange(starts[-1])), float(rng.randrange(1, 20))))
    events.sort(key=lambda event: event.start_us)
    covered = {tick for event in events for tick in range(int(event.start_us), int(event.end_us))}
    assert busy_us(events) == len(covered)

    cycles = periods(events, 4)
    assert len(cycles) == 3
    for period, start, length in zip(cycles, starts, ticks, strict=False):
        inside = [tick in covered for tick in range(start, start + length)]
        runs = "".join("x" if is_busy else "." for is_busy in inside).split("x")
        assert (period.span_us, period.busy_us, period.idle_us) == (length, sum(inside), length - sum(inside))
        assert period.gap_us == max(map(len, runs))


def test_a_step_begins_at_the_longest_kernel_that_runs_once_in_each() -> None:
    step = [("layer", 0.0, 5.0), ("layer", 5.0, 5.0), ("head", 12.0, 20.0), ("draw", 33.0, 1.0)]
    events = [Event(name, 40.0 * index + start, us) for index in range(3) for name, start, us in step]
    assert periods(events, 3) == [Period(40.0, 31.0, 6.0, "layer"), Period(40.0, 31.0, 6.0, "layer")]
    assert periods(events, 3)[0].idle_us == 9.0


def test_steps_that_cannot_be_told_apart_have_no_periods() -> None:
    events = [Event("layer", float(start), 0.5) for start in range(10)]
    assert periods(events, 3) == periods([], 3) == periods(events[:1], 1) == []
    assert len(periods(events, 10)) == 9


def test_events_are_summed_by_name_and_by_kind() -> None:
    events = [Event("_place", 0.0, 1.0), Event("_gated", 1.0, 2.0), Event("_place", 3.0, 4.0), Event("thing", 7.0, 6.0)]
    assert by_name(events) == [Total("thing", 1, 6.0), Total("_place", 2, 5.0), Total("_gated", 1, 2.0)]
    assert by_kind(events) == [Total("norms and passes", 3, 7.0), Total(OTHER, 1, 6.0)]
    assert by_name([]) == by_kind([]) == []


@pytest.mark.parametrize(
    "name, kind",
    [
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(cublasLt::Params)", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute", "products"),
        ("_attend_splits", "attention"),
        ("_gate_of_experts", "products"),
        ("_place", "norms and passes"),
        (NORM, "norms and passes"),
        (ADD, "norms and passes"),
        (ARGMAX, "sampling"),
        ("void (anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)", "sampling"),
        ("Memcpy DtoH (Device -> Pinned)", "copies and bookkeeping"),
        ("void at::native::index_elementwise_kernel<128, 4>(int)", "copies and bookkeeping"),
        ("triton_never_seen", OTHER),
        ("void a_kernel(long, at::native::gemm)", OTHER),  # parameters tell nothing
    ],
)
def test_the_kind_is_told_from_the_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind
    assert kind in {OTHER, *(known for known, _ in KINDS)}


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("_attend_splits", "_attend_splits"),
        (ADD, "vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16>, array<cha..."),
        (NORM, "vectorized_layer_norm_kernel<BFloat16, float, true>"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        ("nvjet_" + "x" * 100, "nvjet_" + "x" * (NAME_CHARS - 9) + "..."),
        ("aten::linear", "aten::linear"),
        ("", ""),
    ],
)
def test_a_name_is_shortened_to_what_tells_it_apart(name: str, wanted: str) -> None:
    assert short(name) == wanted
    assert len(short(name)) <= NAME_CHARS
