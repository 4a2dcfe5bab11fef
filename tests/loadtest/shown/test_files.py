"""The files of a report, and what a comparison reads of them."""

import csv
import json
from pathlib import Path

import pytest

from loadtest.shown.files import figures_csv, read_report, report_json, write_report
from protocol.errors import ConfigError
from tests.loadtest.reports import ABOUT, measured


def test_a_report_is_written_and_read_again(tmp_path: Path) -> None:
    runs = [measured(), measured(2.0)]
    write_report(tmp_path / "new" / "one", runs, report_json(runs, ABOUT), "<html>")
    folder = tmp_path / "new" / "one"
    assert sorted(path.name for path in folder.iterdir()) == [
        "figures.csv",
        "report.html",
        "report.json",
        "requests.jsonl",
    ]

    report = json.loads((folder / "report.json").read_text())
    assert report["valid"] and report["environment"] == ABOUT and len(report["runs"]) == 2
    assert report["runs"][0]["figures"]["ttft_ms"]["p50"] == pytest.approx(200)
    assert report["runs"][0]["server_counted"] == {"x_total": 2.0}

    for path in (folder, folder / "report.json"):
        columns, rates = read_report(str(path))
        assert [len(run["ttft_ms"]) for run in columns] == [38, 38] and columns[1]["ttft_ms"][0] == pytest.approx(400)
        assert rates["tokens_per_s"] == pytest.approx([191 / 4.5, 190 / 4.5]) and len(rates["goodput_per_s"]) == 2


def test_each_request_has_a_line_with_its_tokens(tmp_path: Path) -> None:
    runs = [measured()]
    write_report(tmp_path, runs, report_json(runs, ABOUT), "")
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert lines[1]["arrivals_s"] == pytest.approx([0.3, 0.35, 0.4, 0.45, 0.5]) and lines[1]["counts"] == [1] * 5
    assert [line["ending"] for line in lines[38:]] == ["failed", "unfinished"] and lines[38]["error"] == "<full>"


def test_the_table_has_a_row_for_each_figure() -> None:
    rows = list(csv.reader(figures_csv([measured(), measured(refusal="busy")]).splitlines()))
    assert rows[0] == ["run", "figure", "statistic", "value"] and {row[0] for row in rows[1:]} == {"0"}
    shown = {(row[1], row[2]): float(row[3]) for row in rows[1:]}
    assert shown["ttft_ms", "p50"] == pytest.approx(200) and shown["requests", "unfinished"] == 1


def test_refused_figures_are_nowhere_and_cannot_be_compared(tmp_path: Path) -> None:
    runs = [measured(refusal="this client was the bottleneck")]
    report = report_json(runs, ABOUT)
    assert (report["valid"], report["runs"][0]["figures"], report["runs"][0]["requests"]) == (False, None, None)
    write_report(tmp_path, runs, report, "")
    with pytest.raises(ConfigError, match=r"has no figures: this client was the bottleneck$"):
        read_report(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is not JSON"), ("[]", "is no report"), ('{"baton_bench": 0}', "form 1")]
)
def test_what_is_no_report_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_report(str(tmp_path))


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--out: cannot write to "):
        write_report(tmp_path / "file", [], {}, "")
