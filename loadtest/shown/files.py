"""The files of a report: report.json, requests.jsonl, figures.csv, report.html.

report.json holds what `baton bench compare` reads. A refused run has no figures in it, and `valid` is false.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from loadtest.figures.figures import LATENCIES
from loadtest.figures.intervals import COMPARED, RATES, Run
from loadtest.figures.record import Record
from loadtest.measure import Measured
from protocol.errors import ConfigError, brief

FORM = 1  # of report.json
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p999", "least", "most", "count")


def report_json(runs: Sequence[Measured], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report."""
    load = runs[0].load
    refusals = [run.refusal for run in runs if run.refusal]
    return {
        "baton_bench": FORM,
        "valid": not refusals,
        "why_not": refusals,
        "environment": about,
        "load": {"words": load.words(), "slos": load.slos, "seed": load.seed},
        "runs": [_run_json(run) for run in runs],
    }


def _run_json(run: Measured) -> dict[str, Any]:
    stopped = {"after_s": run.progress.stopped_s, "why": run.progress.why} if run.progress.why else None
    return {
        "load": run.load.words(),
        "figures": None if run.refusal else run.figures.to_json(),
        "long_prompts": run.beside.to_json() if run.beside and not run.refusal else None,
        "refusal": run.refusal,
        "warning": run.own.warning(run.figures),
        "stopped": stopped,
        "client": asdict(run.own),
        "exactness": asdict(run.exactness) if run.exactness else None,
        "server_counted": dict(run.counted),
        "requests": None if run.refusal else columns_of(run),
    }


def columns_of(run: Measured) -> dict[str, list[float | None]]:
    """The times of each request that was sent in the window and ended well."""
    done = run.done
    return {f"{name}_ms": [_ms(getattr(record, f"{name}_s")) for record in done] for name in COMPARED}


def request_lines(runs: Sequence[Measured]) -> Iterator[bytes]:
    """A line for each request, with the moment of each event."""
    for number, run in enumerate(runs):
        for record in run.records:
            yield orjson.dumps({"run": number, **_request_json(record)}) + b"\n"


def _request_json(record: Record) -> dict[str, Any]:
    return {
        "conversation": record.conversation, "turn": record.turn, "ending": record.ending, "error": record.error,
        "due_s": record.due_s, "sent_s": record.sent_s, "end_s": record.end_s, "ttft_ms": _ms(record.ttft_s),
        "tpot_ms": _ms(record.tpot_s), "gap_ms": _ms(record.gap_s), "e2e_ms": _ms(record.e2e_s),
        "num_prompt": record.num_prompt, "num_cached": record.num_cached, "num_tokens": record.num_tokens,
        "counted_by": record.counting, "arrivals_s": [round(at, 6) for at in record.arrivals],
        "counts": list(record.counts),
    }  # fmt: skip


def figures_csv(runs: Sequence[Measured]) -> str:
    """A row for each figure and statistic of each run that has figures."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["run", "figure", "statistic", "value"])
    for number, run in enumerate(runs):
        if run.refusal:
            continue
        figures = run.figures
        for name in (*LATENCIES, "tokens_per_s_per_user"):
            if (figure := getattr(figures, name)) is not None:
                values = [(statistic, getattr(figure, statistic)) for statistic in _STATISTICS]
                rows.writerows([number, name, statistic, value] for statistic, value in values if value is not None)
        for name in (*RATES, "good_share", "fairness", "cached_share"):
            if (value := getattr(figures, name)) is not None:
                rows.writerow([number, name, "value", value])
        rows.writerows([number, "requests", ending, count] for ending, count in figures.endings.items())
    return text.getvalue()


def write_report(folder: Path, runs: Sequence[Measured], report: Mapping[str, Any], page: str) -> None:
    """Writes the four files. ConfigError if the folder cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "requests.jsonl").open("wb") as file:
            file.writelines(request_lines(runs))
        (folder / "figures.csv").write_text(figures_csv(runs))
        (folder / "report.html").write_text(page)
        (folder / "report.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {brief(str(folder))}: {error.strerror}", param="out") from error


def read_report(path: str) -> tuple[list[Run], dict[str, list[float]]]:
    """The requests of each run, and its rates, of a report.json or the folder that has it. ConfigError says what is
    wrong with it."""
    file = Path(path).expanduser()
    file = file / "report.json" if file.is_dir() else file
    try:
        report = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"compare: cannot read {brief(str(file))}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"compare: {brief(str(file))} is not JSON: {error}") from error

    if not isinstance(report, dict) or report.get("baton_bench") != FORM:
        raise ConfigError(f"compare: {brief(str(file))} is no report of baton bench in form {FORM}")
    if not report["valid"]:
        raise ConfigError(f"compare: {brief(str(file))} has no figures: {report['why_not'][0]}")
    rates = {
        name: [run["figures"][name] for run in report["runs"] if run["figures"][name] is not None] for name in RATES
    }
    return [run["requests"] for run in report["runs"]], rates


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value * 1e3, 4)
