"""Whether the ranks of a group still go on together: which is silent, late or stuck. Pure: as one of them sees it.

    | what it sees of a rank                              | after        | then                                |
    |-----------------------------------------------------|--------------|-------------------------------------|
    | it has never beaten                                 | JOIN_S       | GroupBroken: it does not serve      |
    | it has beaten, and is silent                        | SILENCE_S    | GroupBroken: it is silent           |
    | others wait for its row, and it runs no launch      | ANNOUNCE_S   | GroupBroken: it announces no step   |
    | others wait for its row, and it runs a launch       | never        | what it runs has a deadline          |
    | this rank waits in one and the same collective      | COLLECTIVE_S | GroupBroken: who is not in it        |
    | so do all others, or all replay one graph           | TOGETHER_S   | GroupBroken: so have all others      |
    | its device waits, no other rank can end that        | STUCK_S      | GroupBroken: who is not in it        |
    | this process looks later than LATE_S after its last | at once      | every count begins again             |

No other rank can end it: the device of each waits as well, or has gone past this step. A device that computes a long
prompt is in no collective meanwhile, so the last count does not begin.
A process that was paused or starved has read nothing meanwhile, so it blames nobody for that time. A rank is silent
while it queues kernels faster than its device takes them. But where this rank's device goes from collective to
collective, the devices of all ranks do: then the silence begins again.
"""

from collections.abc import Sequence
from typing import Final

from protocol.errors import GroupBroken
from protocol.messages_group import RankBeat

JOIN_S: Final = 300.0  # for starting, loading a model and warming up, beside the other ranks of the host
SILENCE_S: Final = 1.75  # with four looks a second, a silent rank is noticed within 2 s
ANNOUNCE_S: Final = 10.0  # a rank that runs nothing plans within milliseconds
COLLECTIVE_S: Final = 30.0  # the slowest rank computes less than a layer meanwhile
TOGETHER_S: Final = 10.0  # 256 rows that share a prefix of 128k tokens of an 8B model take 1.6 s of an H100
STUCK_S: Final = 2.0  # what ranks give one another takes milliseconds, once all have come
LATE_S: Final = 1.0  # between two looks, of which there are several a second


class GroupWatch:
    """What rank `rank` of `size` has heard of the others. `now` is in seconds of one clock."""

    def __init__(self, rank: int, size: int, now: float) -> None:
        self._rank = rank
        self._others = tuple(other for other in range(size) if other != rank)
        self._beats: dict[int, RankBeat] = {}  # the last one of each other rank
        self._heard_at = dict.fromkeys(self._others, now)
        self._looked_at = now
        self._late_since: dict[tuple[int, int], float] = {}  # by (rank, step): others wait for it, and it runs nothing
        self._waits_since: dict[tuple[int, str], float] = {}  # by (step, collective) in which this rank waits
        self._still_since: dict[tuple[RankBeat, ...], float] = {}  # by what all ranks say, while this rank waits
        self._left = (0, "")  # the collective in which the device of this rank was last

    def heard(self, beat: RankBeat, now: float) -> None:
        """Another rank lives."""
        self._beats[beat.rank], self._heard_at[beat.rank] = beat, now

    def all_rest(self, step: int) -> bool:
        """Whether all others have said that they rest behind `step`, the last one of this rank."""
        beats = [self._beats.get(rank) for rank in self._others]
        return all(beat is not None and beat.rests and beat.step == step for beat in beats)

    def look(self, own: RankBeat, step: int, missing: Sequence[int], now: float) -> None:
        """Call it several times a second, when all that has arrived was read. GroupBroken names the rank at fault.

        `own`: what this rank tells the others. `missing`: who has not announced `step`, for which somebody waits.
        """
        was_paused, self._looked_at = now - self._looked_at > LATE_S, now
        if was_paused:
            self._heard_at = dict.fromkeys(self._others, now)
            self._late_since.clear()
            self._waits_since.clear()
            self._still_since.clear()

        self._note_progress(own, now)
        self._check_silence(now)
        self._check_rows(own, step, missing, now)
        self._check_collective(own, now)

    def _note_progress(self, own: RankBeat, now: float) -> None:
        """This rank's device is in another collective than before: all ranks were in the one before."""
        at = (own.running, own.doing)
        if own.waits and at != self._left:
            self._left = at
            self._heard_at |= dict.fromkeys(self._beats, now)

    def _check_silence(self, now: float) -> None:
        for rank, heard_at in self._heard_at.items():
            silence_s = now - heard_at
            if rank in self._beats and silence_s >= SILENCE_S:
                raise GroupBroken(f"rank {rank} has been silent for {silence_s:.1f} s")
            if rank not in self._beats and silence_s >= JOIN_S:
                raise GroupBroken(f"rank {rank} has not begun to serve within {silence_s:.0f} s")

    def _check_rows(self, own: RankBeat, step: int, missing: Sequence[int], now: float) -> None:
        beats = {**self._beats, self._rank: own}
        late = [(rank, step) for rank in missing if rank in beats and not beats[rank].running]
        self._late_since = {rank: self._late_since.get(rank, now) for rank in late}
        for (rank, _), since in self._late_since.items():
            if now - since >= ANNOUNCE_S:
                reason = f"rank {rank} has not announced step {step} for {now - since:.0f} s"
                raise GroupBroken(f"{reason}, although it runs no launch")

    def _check_collective(self, own: RankBeat, now: float) -> None:
        at = (own.running, own.doing)
        all_say = (own, *[self._beats[rank] for rank in self._others if rank in self._beats])
        self._waits_since = {at: self._waits_since.get(at, now)} if all(at) else {}
        self._still_since = {all_say: self._still_since.get(all_say, now)} if all(at) else {}
        waited_s, still_s = now - self._waits_since.get(at, now), now - self._still_since.get(all_say, now)
        if waited_s >= COLLECTIVE_S or still_s >= self._patience_s(own):
            who = f"rank {self._rank} has been in {own.doing} for {waited_s:.0f} s"
            raise GroupBroken(f"{who}; {self._elsewhere(own)}")

    def _patience_s(self, own: RankBeat) -> float:
        """How long all ranks may say the same while this one waits."""
        if len(self._beats) < len(self._others):
            return COLLECTIVE_S
        if own.waits and not any(_may_come(beat, own) for beat in self._beats.values()):
            return STUCK_S
        places = {(beat.running, beat.doing) for beat in (own, *self._beats.values())}
        return TOGETHER_S if len(places) == 1 else COLLECTIVE_S

    def _elsewhere(self, own: RankBeat) -> str:
        """Says what each rank does that is not in this rank's collective."""
        others = [self._beats[rank] for rank in self._others if rank in self._beats]
        elsewhere = [_said(beat) for beat in others if (beat.running, beat.doing) != (own.running, own.doing)]
        return ", ".join(elsewhere) or "so have all others"


def _may_come(beat: RankBeat, own: RankBeat) -> bool:
    """Whether another rank may still enter the collective in which this one waits: it has not gone past this step, and
    does not wait elsewhere."""
    is_past = beat.running > own.running or (not beat.running and beat.step >= own.running)
    return not beat.waits and not is_past


def _said(beat: RankBeat) -> str:
    if not beat.running:
        return f"rank {beat.rank} runs no launch after step {beat.step}"
    return f"rank {beat.rank} is in {beat.doing or f'no collective of step {beat.running}'}"
