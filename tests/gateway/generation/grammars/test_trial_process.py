import json
import signal
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import pytest

from gateway.generation.grammars.refused import GrammarRefused
from gateway.generation.grammars.trial_frames import MAX_WORK_S, framed, read_frame
from gateway.generation.grammars.trial_process import answer, end_first, serve
from gateway.words.request import Grammar

ASKED = Grammar("regex", "a+")
JOB = json.dumps(asdict(ASKED)).encode()


def test_a_timer_of_the_kernel_bounds_the_work_of_each_job_and_of_nothing_else() -> None:
    left_s: list[float] = []

    def tried(asked: Grammar) -> str:
        left_s.append(signal.getitimer(signal.ITIMER_PROF)[0])
        return "text"

    answers = BytesIO()
    serve(tried, BytesIO(2 * framed(JOB)), answers)
    assert len(left_s) == 2 and all(0 < left < MAX_WORK_S + 1 for left in left_s)  # the kernel rounds up
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)

    answers.seek(0)
    assert [read_frame(answers) for _ in range(4)] == [b"", b'{"text": "text"}', b'{"text": "text"}', None]


def test_a_refusal_and_memory_that_runs_out_are_told() -> None:
    def refuses(asked: Grammar) -> GrammarRefused:
        return GrammarRefused("no")

    def grows(asked: Grammar) -> str:
        raise MemoryError

    assert json.loads(answer(JOB, refuses)) == {"refused": "no", "at": ["shape", "source"]}
    told = json.loads(answer(JOB, grows))["refused"]
    assert told == "cannot be followed: it takes more than 1024 MiB to try"


def test_a_score_that_cannot_be_written_is_told_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end_first(tmp_path)  # a folder
    [record] = caplog.records
    assert record.getMessage() == "trials of grammars are not ended first"
    assert f"{tmp_path} cannot be written: Is a directory" in str(vars(record))
    end_first(tmp_path / "score")
    assert (tmp_path / "score").read_text() == "1000" and len(caplog.records) == 1
