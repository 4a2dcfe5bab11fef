"""The page that shows deployments side by side: their streams' ITL over time and as a distribution, and their TTFT."""

from collections.abc import Sequence
from html import escape

from loadtest.figures.distribution import milliseconds
from loadtest.figures.figures import token_gaps
from loadtest.figures.series import series_of
from loadtest.measure import Measured
from loadtest.shown.page import document, grid_of
from loadtest.shown.plots import Line, Plot, cdf
from loadtest.shown.tables import lines_of


def picture_of(served: Sequence[tuple[str, Sequence[Measured]]]) -> str:
    """`served`: the arguments of each deployment, and its runs. The last run of each is shown."""
    shown = [(letter, serve, runs[-1]) for letter, (serve, runs) in zip("ABCDEFGH", served, strict=False)]
    legend = "".join(f"<li>{letter}: baton serve {escape(serve)}</li>" for letter, serve, _ in shown)
    facts = "".join(
        f"<h2>{letter}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines_of(run))}</ul>"
        for letter, _, run in shown
    )
    load = escape(shown[0][2].load.words()) if shown else ""
    plots = grid_of(plots_of([(letter, run) for letter, _, run in shown]))
    return document("Side by side", ["<h1>Side by side</h1>", f"<p>{load}</p><ul>{legend}</ul>", plots, facts])


def plots_of(shown: Sequence[tuple[str, Measured]]) -> list[Plot]:
    """A line for each deployment whose figures count."""
    over, spread, first = [], [], []
    for letter, run in shown:
        if run.refusal:
            continue
        series = series_of(run.records, run.progress.now_s)
        over.append(Line(letter, series.at_s, series.itl_p99_ms))
        spread.append(cdf(letter, (token_gaps(run.done) * 1e3).tolist()))
        first.append(cdf(letter, milliseconds(record.ttft_s for record in run.done)))
    return [
        Plot("ITL p99 over time", "s", "ms", over),
        Plot("ITL, cumulative", "ms", "share", spread, log_x=True),
        Plot("TTFT, cumulative", "ms", "share", first, log_x=True),
    ]
