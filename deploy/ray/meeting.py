"""Who meets at the gateway's holder: what a worker's holder says of itself, and what it is told. Pure.

    worker's holder --Announcement, each second--> gateway's holder     its public key, versions, model, state
    worker's holder <--Welcome-------------------- gateway's holder     the gateway's address and key, all members' keys

A process that is refused by another because its key is not on the list yet does not ask again. So a worker starts only
when it is `settled`: when all other members have said that their lists have its key.

Both are JSON, so that two versions of Baton understand at least that they differ.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from protocol.errors import ConfigError
from protocol.message import WorkerId
from runtime.settings import Settings

FORGOTTEN_AFTER_S: Final = 600.0  # a member that says nothing; Ray replaces a lost host sooner
AWAITED_FOR_S: Final = 10.0  # a member that says nothing: no other one waits for it any more
GATEWAY_MEMBER: Final = "gateway"


@dataclass(frozen=True, kw_only=True)
class Facts(Settings):
    """What must be the same at a worker as at its gateway."""

    baton: str
    python: str
    ray: str
    model: str  # the folder's path
    fingerprint: str  # of what lies in the folder


@dataclass(frozen=True, kw_only=True)
class Announcement(Settings):
    """Sent by a worker's holder each second. `knows`: the keys on its list, which is from the gateway that has
    `gateway_key`."""

    name: WorkerId
    public_key: str
    node: str
    state: str
    facts: Facts
    gateway_key: str = ""
    knows: tuple[str, ...] = ()
    scales: bool = False  # Serve asks for its figures
    refused: str = ""  # why it keeps the flags that it has


@dataclass(frozen=True, kw_only=True)
class Welcome(Settings):
    """The answer. `keys`: the public keys that may connect, by name. `settled`: the member may start. `refused`: why
    it may not join; it is told nothing else."""

    refused: str = ""
    control: str = ""
    gateway_key: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    settled: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)  # for Serve, of a member that `scales`: scaling.py


_WORDS: Final = {
    "baton": ("Baton", "install the same version on every node"),
    "python": ("Python", "use the same version on every node"),
    "ray": ("Ray", "install the same version on every node"),
    "model": ("args.model", "keep the model in the same folder on every node"),
    "fingerprint": ("the fingerprint of the model's folder", "copy the same folder to every node"),
}


def difference(theirs: Mapping[str, Any], ours: Facts) -> str:
    """The first fact in which a node differs from the gateway's, in one sentence; empty if there is none. The node's
    own holder says it, and adds the node's name."""
    for name, (word, advice) in _WORDS.items():
        got, expected = theirs.get(name), getattr(ours, name)
        if got != expected:
            return f"{word} is {got}, expected {expected} as at the gateway: {advice}"
    return ""


@dataclass
class Members:
    """Those who have announced themselves at this gateway. Times are seconds of one clock."""

    facts: Facts
    own_key: str
    _heard: dict[str, tuple[float, Announcement]] = field(default_factory=dict)

    def answer(
        self, text: str, now: float, control: str, figures: Callable[[str], Mapping[str, float]] = lambda _name: {}
    ) -> Welcome:
        """Notes an announcement, and answers it. `control` is the gateway's address; empty while it has none.
        `figures`: those of a member by its name."""
        if reason := self.hear(text, now):
            return Welcome(refused=reason)
        name = Announcement.from_json(text).name
        return Welcome(
            control=control,
            gateway_key=self.own_key,
            keys=self.keys(),
            settled=self.settled(name, now),
            figures=figures(name),
        )

    def hear(self, text: str, now: float) -> str:
        """Notes an announcement. Returns why it may not join; empty if it may."""
        try:
            raw = json.loads(text)
            if reason := difference(raw["facts"], self.facts):
                return reason
            announcement = Announcement.from_json(text)
        except ConfigError as error:
            return error.message
        except (ValueError, KeyError, TypeError, AttributeError):
            return "what a worker's holder says of itself makes no sense: is another version of Baton on its node?"

        self._heard[announcement.name] = (now, announcement)
        for name in [name for name, (at, _) in self._heard.items() if now - at > FORGOTTEN_AFTER_S]:
            self.forget(name)
        return ""

    def scale(self) -> bool:
        """Whether Serve asks any of them for its figures."""
        return any(member.scales for _, member in self._heard.values())

    def forget(self, name: str) -> None:
        """The member has left."""
        self._heard.pop(name, None)

    def keys(self) -> dict[str, str]:
        """The public keys that may connect, by name."""
        return {GATEWAY_MEMBER: self.own_key} | {name: member.public_key for name, (_, member) in self._heard.items()}

    def settled(self, name: str, now: float) -> bool:
        """Whether every other member has this one's key on its list, if it can still say so."""
        key = self._heard[name][1].public_key
        others = [member for at, member in self._heard.values() if member.name != name and now - at <= AWAITED_FOR_S]
        return all(member.gateway_key == self.own_key and key in member.knows for member in others)

    def told(self, now: float) -> list[Announcement]:
        """What each member has said last. The state of one that says nothing any more is how long."""
        return [
            replace(member, state=f"silent for {now - at:.0f} s") if now - at > AWAITED_FOR_S else member
            for at, member in self._heard.values()
        ]
