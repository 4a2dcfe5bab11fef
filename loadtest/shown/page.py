"""The page of a report: one HTML file with everything in it, no script, nothing loaded from elsewhere."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import isfinite, nan
from typing import Any

from loadtest.figures.distribution import milliseconds, number
from loadtest.figures.figures import token_gaps
from loadtest.figures.series import series_of
from loadtest.measure import Measured
from loadtest.shown.plots import Line, Plot, cdf
from loadtest.shown.tables import COLUMNS, latency_rows, lines_of

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --page: #fff; --box: #f6f8fa; --rule: #d1d9e0;
  --c0: #0969da; --c1: #cf222e; --c2: #1a7f37; --c3: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --page: #0d1117; --box: #151b23;
  --rule: #3d444d; --c0: #4493f8; --c1: #f85149; --c2: #3fb950; --c3: #ab7df8; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 1200px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid var(--rule); }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .25rem .8rem; text-align: right;
  border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums; } td:first-child, th:first-child {
  text-align: left; } .facts td { text-align: left; overflow-wrap: anywhere; } .refused { color: var(--c1);
  font-weight: 600; } .plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
svg { background: var(--box); border-radius: 8px; width: 100%; } svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-weight: 600; font-size: 14px; } svg .tick, svg .axis { fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: .6; } .line { fill: none; stroke-width: 2; } .none { color: var(--soft); }
polyline.c0 { stroke: var(--c0); } polyline.c1 { stroke: var(--c1); } polyline.c2 { stroke: var(--c2); }
polyline.c3 { stroke: var(--c3); } circle.c0, rect.c0 { fill: var(--c0); } circle.c1, rect.c1 { fill: var(--c1); }
circle.c2, rect.c2 { fill: var(--c2); } circle.c3, rect.c3 { fill: var(--c3); } .dot { opacity: .7; }
code { overflow-wrap: anywhere; } footer { color: var(--soft); margin-top: 2rem; }
"""


def page_of(runs: Sequence[Measured], about: Mapping[str, Any], search: Sequence[str] = ()) -> str:
    """The whole page. `search`: what a sweep has found, as sentences."""
    load = runs[0].load
    title = f"{about['model']}: {load.words()}"
    parts = [f"<h1>{escape(str(about['model']))}</h1><p>{escape(load.words())}</p>"]
    if search:
        parts += ["<h2>Sweep</h2>", *(f"<p>{escape(line)}</p>" for line in search), grid_of(sweep_plots(runs))]
    for index, run in enumerate(runs):
        heading = f"Run {index + 1} of {len(runs)}: {run.load.arrivals.words()}" if len(runs) > 1 else "Figures"
        parts.append(f"<h2>{escape(heading)}</h2>")
        parts += _run(run)
    return document(title, [*parts, "<h2>Environment</h2>", facts(about)])


def document(title: str, parts: Sequence[str], footer: str = "Definitions: docs/bench.md of Baton.") -> str:
    """A whole page with these parts, in the style of all pages."""
    head = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
    )
    return "\n".join([*head, *parts, f"<footer>{footer}</footer></body></html>"])


def grid_of(plots: Sequence[Plot]) -> str:
    """Plots side by side."""
    return "\n".join(["<div class='plots'>", *(f"<div>{plot.svg()}</div>" for plot in plots), "</div>"])


def _run(run: Measured) -> Iterator[str]:
    if run.refusal:
        yield f"<p class='refused'>No figures: {escape(run.refusal)}.</p>"
    if run.progress.why:
        yield f"<p class='refused'>Stopped after {run.progress.now_s:.1f} s: {escape(run.progress.why)}.</p>"
    if not run.refusal:
        yield _latencies(run)
    yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines_of(run)) + "</ul>"
    if run.refusal:
        return
    yield grid_of(plots_of(run))
    if run.counted:
        rows = _rows((name, number(value)) for name, value in run.counted.items())
        yield f"<details><summary>What the server counted meanwhile (/metrics)</summary><table>{rows}</table></details>"


def _latencies(run: Measured) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("ms", *COLUMNS))
    rows = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in latency_rows(run)]
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def plots_of(run: Measured) -> list[Plot]:
    """How latencies are spread, how they went over time, and what throughput they went with."""
    done, looks, unit = run.done, run.progress.looks, run.figures.unit
    over = series_of(run.records, run.progress.now_s)
    in_flight = Line("in flight", [record.at_s for record in looks], [record.in_flight for record in looks])
    seconds = ("s", "ms")
    return [
        _cdf("TTFT", "requests", milliseconds(look.ttft_s for look in done)),
        _cdf("ITL", unit, (token_gaps(done) * 1e3).tolist()),
        _cdf("E2E", "requests", milliseconds(look.e2e_s for look in done)),
        Plot("TTFT over time", *seconds, _two_lines(over.at_s, over.ttft_p50_ms, over.ttft_p99_ms)),
        Plot("ITL over time", *seconds, _two_lines(over.at_s, over.itl_p50_ms, over.itl_p99_ms)),
        Plot("Requests in flight", "s", "requests", [in_flight]),
        Plot("Throughput over time", "s", f"{unit}/s", [Line(f"{unit}/s", over.at_s, over.tokens_per_s)]),
        Plot(
            "Throughput against latency, a dot for each slice of time",
            f"{unit}/s",
            "ITL p50, ms",
            [Line("slice", over.tokens_per_s, over.itl_p50_ms, is_dots=True)],
        ),
    ]


def sweep_plots(runs: Sequence[Measured]) -> list[Plot]:
    """What became of the latencies and of the goodput as the rate grew."""
    seen = sorted((run for run in runs if not run.refusal), key=lambda run: run.figures.requests_per_s)
    through = [run.figures.tokens_per_s for run in seen]
    rates = [run.figures.num_sent / run.figures.window_s for run in seen]

    def p50(name: str) -> list[float]:
        return [distribution.p50 if (distribution := getattr(run.figures, name)) else nan for run in seen]

    shares = [run.figures.good_share if run.figures.good_share is not None else nan for run in seen]
    return [
        Plot(
            "Share that meets the objectives", "requests/s sent", "share", [Line("share", rates, shares, is_dots=True)]
        ),
        Plot("Throughput against TTFT p50", "tokens/s", "ms", [Line("TTFT", through, p50("ttft_ms"), is_dots=True)]),
        Plot("Throughput against ITL p50", "tokens/s", "ms", [Line("ITL", through, p50("itl_ms"), is_dots=True)]),
    ]


def _cdf(name: str, of: str, values: Sequence[float]) -> Plot:
    return Plot(f"{name}: share of {of} that took at most so long", "ms", "share", [cdf(name, values)], log_x=True)


def _two_lines(at_s: Sequence[float], p50: Sequence[float], p99: Sequence[float]) -> list[Line]:
    return [Line("p50", at_s, p50), Line("p99", at_s, p99)]


def facts(about: Mapping[str, Any]) -> str:
    """A table of names and values."""
    return f"<table class='facts'>{_rows(_flat(about))}</table>"


def _rows(cells: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in cells)


def _flat(about: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in about.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} ")
        elif value is not None and not (isinstance(value, float) and not isfinite(value)):
            yield f"{before}{name}".replace("_", " "), str(value)
