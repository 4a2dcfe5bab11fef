import json
from dataclasses import replace

import pytest

from deploy.ray.meeting import AWAITED_FOR_S, FORGOTTEN_AFTER_S, Announcement, Facts, Members, Welcome

FACTS = Facts(baton="1.0", python="3.11.7", ray="2.60.0", model="/models/story", fingerprint="abc")
PREFILL = Announcement(name="prefill-a", public_key="p", node="10.0.0.7", state="waiting", facts=FACTS)
DECODE = replace(PREFILL, name="decode-b", public_key="d")


@pytest.fixture
def members() -> Members:
    return Members(FACTS, "g")


def test_members_know_one_another_by_their_keys(members: Members) -> None:
    assert members.hear(PREFILL.to_json(), 0.0) == members.hear(DECODE.to_json(), 1.0) == ""
    assert members.keys() == {"gateway": "g", "prefill-a": "p", "decode-b": "d"}
    members.forget("prefill-a")
    assert members.keys() == {"gateway": "g", "decode-b": "d"}


def test_who_says_nothing_for_long_is_forgotten_and_may_come_back(members: Members) -> None:
    members.hear(PREFILL.to_json(), 0.0)
    members.hear(DECODE.to_json(), FORGOTTEN_AFTER_S)
    assert set(members.keys()) == {"gateway", "prefill-a", "decode-b"}
    members.hear(DECODE.to_json(), FORGOTTEN_AFTER_S + 1)
    assert set(members.keys()) == {"gateway", "decode-b"}
    members.hear(PREFILL.to_json(), FORGOTTEN_AFTER_S + 2)
    assert set(members.keys()) == {"gateway", "decode-b", "prefill-a"}


def test_what_a_member_says_last_counts(members: Members) -> None:
    members.hear(PREFILL.to_json(), 0.0)
    members.hear(replace(PREFILL, state="serving").to_json(), 1.0)
    assert [member.state for member in members.told(1.0 + AWAITED_FOR_S)] == ["serving"]


def test_a_member_that_says_nothing_is_silent(members: Members) -> None:
    members.hear(replace(PREFILL, state="serving").to_json(), 5.0)
    members.hear(replace(DECODE, state="serving").to_json(), 80.0)
    assert [member.state for member in members.told(80.0)] == ["silent for 75 s", "serving"]
    members.hear(replace(PREFILL, state="mending").to_json(), 81.0)
    assert [member.state for member in members.told(81.0)] == ["mending", "serving"]


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("baton", "0.9", "Baton is 0.9, expected 1.0 as at the gateway: install the same version"),
        ("python", "3.12.1", "Python is 3.12.1, expected 3.11.7"),
        ("ray", "2.61.0", "Ray is 2.61.0, expected 2.60.0"),
        ("model", "/other", "args.model is /other, expected /models/story"),
        ("fingerprint", "x", "the fingerprint of the model's folder is x, expected abc"),
    ],
)
def test_a_node_that_differs_is_refused_in_one_sentence(fact: str, value: str, said: str, members: Members) -> None:
    text = replace(PREFILL, facts=replace(FACTS, **{fact: value})).to_json()
    assert members.hear(text, 0.0).startswith(said)
    assert members.keys() == {"gateway": "g"}


def test_another_version_may_say_other_things() -> None:
    raw = json.loads(PREFILL.to_json())
    newer = {**raw, "colour": "red", "facts": {**raw["facts"], "baton": "2.0"}}
    assert "Baton is 2.0, expected 1.0" in Members(FACTS, "g").hear(json.dumps(newer), 0.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"node": 1}', '{"node": "n", "facts": 3}', "null"])
def test_nonsense_is_refused(text: str) -> None:
    members = Members(FACTS, "g")
    assert "makes no sense" in members.hear(text, 0.0)
    assert members.told(0.0) == []


def said_by(member: Announcement, *knows: str, gateway_key: str = "g") -> str:
    return replace(member, gateway_key=gateway_key, knows=knows).to_json()


def test_a_member_may_start_when_the_others_know_it(members: Members) -> None:
    assert members.answer(said_by(PREFILL), 0.0, "").settled, "there is no other"
    assert not members.answer(said_by(DECODE), 0.1, "").settled, "the first has not asked since"
    told = members.answer(said_by(PREFILL, "g", "p"), 1.0, "")
    assert set(told.keys.values()) == {"g", "p", "d"}
    assert not members.answer(said_by(DECODE), 1.1, "").settled, "it was told, and may not have listened yet"
    members.answer(said_by(PREFILL, "g", "p", "d"), 2.0, "")
    assert members.answer(said_by(DECODE), 2.1, "").settled


def test_a_list_of_another_gateway_does_not_count(members: Members) -> None:
    """It is about to be replaced by a list of this one, on which others may still be missing."""
    members.answer(said_by(PREFILL, "p", "d", gateway_key="before"), 0.0, "")
    assert not members.answer(said_by(DECODE), 0.1, "").settled


def test_nobody_waits_long_for_a_member_that_says_nothing(members: Members) -> None:
    members.answer(said_by(PREFILL), 0.0, "")
    assert not members.answer(said_by(DECODE), AWAITED_FOR_S, "").settled
    assert members.answer(said_by(DECODE), AWAITED_FOR_S + 0.1, "").settled
    assert "p" in members.keys().values(), "it may come back"


def test_an_answer_tells_the_address_or_why_not(members: Members) -> None:
    assert members.answer(PREFILL.to_json(), 0.0, "tcp://10.0.0.5:7000").control == "tcp://10.0.0.5:7000"
    refused = members.answer(replace(PREFILL, facts=replace(FACTS, ray="3")).to_json(), 0.0, "tcp://10.0.0.5:7000")
    assert "Ray is 3" in refused.refused and (refused.control, dict(refused.keys)) == ("", {})


def test_a_welcome_travels_as_json() -> None:
    welcome = Welcome(control="tcp://10.0.0.5:7000", gateway_key="g", keys={"gateway": "g"})
    assert Welcome.from_json(welcome.to_json()) == welcome
    assert Welcome.from_json(Welcome(refused="no").to_json()).control == ""


def test_a_member_that_serve_asks_is_told_its_own_figures() -> None:
    members = Members(FACTS, "g")
    members.hear(DECODE.to_json(), 0.0)
    assert not members.scale()
    figures = {"prefill-a": {"kv": 0.5}, "decode-b": {"kv": 0.25}}
    told = members.answer(replace(PREFILL, scales=True).to_json(), 1.0, "", figures.__getitem__)
    assert Welcome.from_json(told.to_json()).figures == {"kv": 0.5}
    assert members.scale()
