from typing import Any

from deploy.ray.status_table import Seen, one_line, status_lines, table

PAGES = {"free": 10, "cached": 5, "total": 20}
HOLDERS = [
    {"name": "gateway-g", "node": "10.0.0.5", "state": "serving"},
    {"name": "prefill-p", "node": "10.0.0.6", "state": "serving"},
    {"name": "decode-d", "node": "10.0.0.7", "state": "mending"},
]


def worker(name: str) -> dict[str, Any]:
    return {"id": name, "running": 1, "waiting": 2, "kv_pages": PAGES}


def seen(*workers: str, **others: Any) -> Seen:
    deployments = {"Prefill": ("HEALTHY", {"RUNNING": 1, "STOPPING": 0}, "")}
    return Seen("baton", "RUNNING", deployments, HOLDERS, "http://10.0.0.5:8000", [*map(worker, workers)], **others)


def test_each_process_has_one_row() -> None:
    rows = table(seen("prefill-p", "decode-d.0", "decode-d.1", "stranger"))
    assert rows[1:] == [
        ("gateway-g", "10.0.0.5", "serving", "", "", "", ""),
        ("prefill-p", "10.0.0.6", "serving", "joined", "1", "2", "15 of 20"),
        ("decode-d.0", "10.0.0.7", "mending", "joined", "1", "2", "15 of 20"),
        ("decode-d.1", "10.0.0.7", "mending", "joined", "1", "2", "15 of 20"),
        ("stranger", "?", "no holder", "joined", "1", "2", "15 of 20"),
    ]


def test_a_worker_that_has_not_joined_is_seen() -> None:
    assert table(seen("prefill-p"))[3] == ("decode-d", "10.0.0.7", "mending", "", "", "", "")


def test_it_ends_with_a_command() -> None:
    lines = status_lines(seen("prefill-p", model="story"))
    assert lines[:2] == ["baton: RUNNING", "  Prefill: healthy, 1 running"]
    assert lines[-2] == "Clients talk to http://10.0.0.5:8000. Try:"
    assert lines[-1].startswith("curl -N -s http://10.0.0.5:8000/v1/completions") and '"story"' in lines[-1]


def test_a_command_without_a_name_for_the_model_has_none() -> None:
    assert '"model"' not in status_lines(seen("prefill-p"))[-1]


def test_what_does_not_answer_is_told() -> None:
    lines = status_lines(seen(no_workers="answers 401: the gateway has an --api-key-file"))
    assert "http://10.0.0.5:8000/workers: answers 401: the gateway has an --api-key-file" in lines
    nothing = status_lines(Seen("baton", "DEPLOYING", {"Decode": ("UPDATING", {}, "")}))
    assert nothing == ["baton: DEPLOYING", "  Decode: updating, no replica"]


def test_of_a_trace_the_sentence_is_shown() -> None:
    trace = "The deployment failed to start 3 times.\nTraceback:\n  File x\nRuntimeError: node a: no model\n  more"
    assert one_line(trace) == "node a: no model"
    assert one_line("Traceback:\n  File x\nKeyError: 3") == "KeyError: 3"
    slow = "Deployment 'Decode' has 2 replicas that took more than 30s.\nThis may be caused by a slow __init__.\n"
    assert one_line(slow) == " ".join(slow.splitlines())
    assert one_line("") == ""


def test_flags_that_were_refused_are_told_once_for_each_holder() -> None:
    refused = [{**HOLDERS[0], "refused": "user_config of Gateway: unknown key 'prot'"}, {**HOLDERS[1], "refused": ""}]
    lines = status_lines(Seen("baton", "RUNNING", {}, refused))
    assert [line for line in lines if "keeps" in line] == [
        "gateway-g keeps the flags that it has: user_config of Gateway: unknown key 'prot'"
    ]
