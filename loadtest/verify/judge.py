"""The verdict on one answer: beside a known answer to the same request, and beside what scoring says of it. Pure.

    exact, tied       the known answer; or another one from a near tie on, which scoring judges further
    error, cut, left  a refusal; the connection ended for a known cause; the client left. Tokens until then were right
    wrong             another token or finish, or a log-probability too far from what it must be
    truncated, hung   no end, or one that comes too early; no end in time
    usage             the counts of tokens are not those of the answer
    stream-differs    the tokens were computed right, and came to the client in another way
    foreign           a part of another request's prompt or answer (canary.py finds it)
    suspect           beyond the near tie, and not beyond twice that; one place alone: beyond twice and not four times
    leaked            the server is not at rest when nobody asks (books.py)
    cannot-judge      nothing tells whether the answer is right

`tau` is the near tie (ties.py). None: answers must be exact. The soak judges by this, too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from loadtest.verify.answers import Answer, Choice, Heard, Token, Top, shared

WHOLE_STATUSES = (200, 0)  # 0: the connection broke just after the end


class Verdict(StrEnum):
    """The verdict on a request. The module's docstring lists them."""

    EXACT = "exact"
    TIED = "tied"
    ERROR = "error"
    CUT = "cut"
    LEFT = "left"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    HUNG = "hung"
    USAGE = "usage"
    STREAM_DIFFERS = "stream-differs"
    FOREIGN = "foreign"
    SUSPECT = "suspect"
    LEAKED = "leaked"
    CANNOT_JUDGE = "cannot-judge"


DEFECTS = (
    Verdict.WRONG, Verdict.TRUNCATED, Verdict.HUNG, Verdict.LEAKED, Verdict.USAGE, Verdict.STREAM_DIFFERS,
    Verdict.FOREIGN,
)  # fmt: skip
UNCLEAR = (Verdict.SUSPECT, Verdict.CANNOT_JUDGE)


@dataclass(frozen=True)
class Judged:
    """A verdict, and why. `place`: the first token in question. `margin`: by how much, in natural logarithms."""

    verdict: Verdict
    why: str = ""
    choice: int = 0
    place: int | None = None
    margin: float | None = None


@dataclass(frozen=True)
class Place:
    """What scoring says of one token of an answer: its log-probability and the largest one there."""

    logprob: float
    largest: float


def judge(
    heard: Heard, known: Answer, tau: float | None = None, *, may_stop: bool = False, is_excused: bool = False
) -> Judged:
    """The verdict on an answer whose right one is `known`. `may_stop`: the model may end an answer early, so an end may
    be one side of a near tie. `is_excused`: the connection may have ended for a cause that the caller knows."""
    if heard.malformed:
        return Judged(Verdict.WRONG, heard.malformed)
    answer = heard.answer()
    if strangers := [index for index in answer if index not in known]:
        return Judged(Verdict.WRONG, f"a choice {strangers[0]} that nobody asked for")

    if heard.left:  # who leaves has asked for more tokens than the known answer may have had
        answer = {index: _until(choice, known[index]) for index, choice in answer.items()}
    judged = [_compare(index, choice, known[index], tau, may_stop) for index, choice in answer.items()]
    worst = _worst(judged)
    if heard.done:
        worst = _at_its_end(heard, known, worst, tau if may_stop else None)
    if not heard.done and worst.verdict in (Verdict.EXACT, Verdict.TIED, Verdict.CANNOT_JUDGE):
        return _without_end(heard, is_excused=is_excused)
    if worst.verdict is not Verdict.EXACT:
        return worst
    told = f"status {heard.status}, got {_words(answer)} of {_words(known)}"
    return worst if heard.status in WHOLE_STATUSES else Judged(Verdict.WRONG, told)


def judge_alone(heard: Heard, max_tokens: int, *, may_stop: bool, is_excused: bool = False) -> Judged:
    """The verdict on an answer of which only its end is known. `may_stop`: the model may end it early."""
    judged = judge(heard, heard.answer(), is_excused=is_excused)
    if not heard.done or judged.verdict not in (Verdict.EXACT, Verdict.USAGE):
        return judged
    for number, choice in heard.answer().items():
        if len(choice.tokens) > max_tokens:
            verdict = Verdict.STREAM_DIFFERS if heard.is_stream else Verdict.WRONG
            return Judged(verdict, f"{len(choice.tokens)} tokens of {max_tokens}; {judged.why}", number, max_tokens)
        is_whole = len(choice.tokens) >= max_tokens or (may_stop and choice.finish == "stop")
        if not choice.finish or not is_whole:
            told = f"{len(choice.tokens)} tokens of {max_tokens}, and {choice.finish or 'no finish'!r}"
            return Judged(Verdict.TRUNCATED, told, number, len(choice.tokens))
    return judged if heard.tokens else Judged(Verdict.TRUNCATED, "an answer without tokens")


def judge_scored(choice: Choice, scored: Sequence[Place], tau: float, *, is_greedy: bool, has_drift: bool) -> Judged:
    """The verdict on an answer by what scoring says of each of its tokens. `has_drift`: the server's claimed
    log-probabilities are those of scoring, so that the two must agree."""
    margins, drifts = [], []
    for index, score in enumerate(scored[: len(choice.tokens)]):
        if is_greedy:
            margin = score.largest - score.logprob
            told = f"scored alone, token {index} is {margin:.4f} below the likeliest one"
            margins.append(_judged_by(margin, tau, index, told))
        if has_drift and choice.has_logprobs:
            drift = abs(choice.logprobs[index] - score.logprob)
            told = f"the log-probability of token {index} was {choice.logprobs[index]:.4f}, alone {score.logprob:.4f}"
            drifts.append(_judged_by(drift, tau, index, told))
    return _worst([_not_alone(margins, tau), _not_alone(drifts, tau)])


def after_scoring(judged: Judged, scored: Sequence[Judged], *, is_known: bool) -> Judged:
    """The verdict on an answer in question, by what each oracle that scores says of it. If all find it right, it parted
    from the known one at a near tie. `is_known`: there is a known one."""
    if bad := [by_score for by_score in scored if by_score.verdict is not Verdict.EXACT]:
        return _worst(bad)
    if scored:
        return replace(judged, verdict=Verdict.TIED) if is_known else Judged(Verdict.EXACT)
    return judged if is_known else Judged(Verdict.CANNOT_JUDGE, "no oracle scored it")


def margin_between(known: Choice, choice: Choice, index: int) -> float:
    """By how much each of two answers prefers its own token where they part. The larger one; nan: not told."""
    if not (index < len(known.tops) and index < len(choice.tops)):
        return math.nan
    one, other = known.tokens[index], choice.tokens[index]
    return max(_lead(known.tops[index], one, other), _lead(choice.tops[index], other, one))


_WEIGHT = {
    verdict: weight
    for weight, verdict in enumerate((Verdict.EXACT, Verdict.TIED, Verdict.CANNOT_JUDGE, Verdict.SUSPECT,
                                      Verdict.STREAM_DIFFERS, Verdict.TRUNCATED, Verdict.WRONG))
}  # fmt: skip


def _worst(judgements: Sequence[Judged]) -> Judged:
    """The worst verdict; of several the first."""
    return max(judgements, key=lambda judged: _WEIGHT[judged.verdict], default=Judged(Verdict.EXACT))


def _not_alone(judgements: Sequence[Judged], tau: float) -> Judged:
    """The worst verdict on the places of one answer. Noise has a long tail, a margin has the noise of two tokens, and
    damaged KV shows in all that follows: one place alone may be twice as far off."""
    bad = [judged for judged in judgements if judged.verdict is not Verdict.EXACT]
    if len(bad) != 1 or bad[0].margin is None:
        return _worst(bad)
    judged = _judged_by(bad[0].margin / 2, tau, bad[0].place or 0, bad[0].why, bad[0].choice)
    return replace(bad[0], verdict=Verdict.TIED if judged.verdict is Verdict.EXACT else judged.verdict)


def _worse(one: Judged, other: Judged) -> Judged:
    """The worse one; of two with the same verdict the first."""
    return other if _WEIGHT[other.verdict] > _WEIGHT[one.verdict] else one


def _judged_by(distance: float, tau: float, index: int, told: str, choice: int = 0) -> Judged:
    """A distance is fine within `tau`, suspect within twice that. nan is not fine."""
    if distance <= tau:
        return Judged(Verdict.EXACT)
    verdict = Verdict.SUSPECT if distance <= 2 * tau else Verdict.WRONG
    return Judged(verdict, told, choice, index, distance)


def _until(choice: Choice, known: Choice) -> Choice:
    """What can be compared of a choice that may go on behind a known end that its length has set."""
    return choice.before(len(known.tokens)) if known.finish == "length" else choice


def _compare(number: int, choice: Choice, known: Choice, tau: float | None, may_stop: bool) -> Judged:
    """One choice, ended or not, beside the known one. What follows a near tie is not compared."""
    first = shared(choice.tokens, known.tokens)
    before = Judged(Verdict.EXACT)
    if tau is not None and choice.has_logprobs and known.has_logprobs:
        before = _not_alone([_told_alike(number, choice, known, index, tau) for index in range(first)], tau)
    if first == len(choice.tokens):
        return before
    if first == len(known.tokens):
        told = f"it goes on behind the known end: {_words({0: choice})} of {_words({0: known})}"
        is_tied = may_stop and known.finish == "stop" and _is_near_tie(choice.tops[first : first + 1], tau)
        return _worse(before, Judged(Verdict.TIED if is_tied else Verdict.WRONG, told, number, first))

    told = f"token {first} is {choice.tokens[first]!r}, known {known.tokens[first]!r}"
    margin = margin_between(known, choice, first)
    if tau is None:
        return Judged(Verdict.WRONG, told, number, first)
    if math.isnan(margin):
        return _worse(before, Judged(Verdict.CANNOT_JUDGE, f"{told}; no log-probabilities", number, first))
    if margin <= tau:
        return _worse(before, Judged(Verdict.TIED, told, number, first, margin))
    judged = _judged_by(margin, tau, first, f"{told}, and one of the two leads by {margin:.4f}", number)
    return _worse(before, _not_alone([judged], tau))


def _told_alike(number: int, choice: Choice, known: Choice, index: int, tau: float) -> Judged:
    """One token that both have, with the log-probabilities that they tell, and its place in its own list."""
    drift = abs(choice.logprobs[index] - known.logprobs[index])
    told = f"the log-probability of token {index} is {choice.logprobs[index]:.4f}, known {known.logprobs[index]:.4f}"
    judged = _judged_by(drift, tau, index, told, number)
    lead = max(choice.tops[index].values(), default=math.nan) - choice.logprobs[index]
    told = f"its own list has a token {lead:.4f} above token {index}"
    return _worse(judged, _judged_by(lead, tau, index, told, number))


def _at_its_end(heard: Heard, known: Answer, worst: Judged, tau: float | None) -> Judged:
    """What only an answer that has ended tells: its ends, its usage, whether its text and its tokens go together. `tau`
    is None if no answer may end early."""
    answer = heard.answer()
    for number, right in known.items():
        choice = answer.get(number, Choice(()))
        end = len(choice.tokens)
        if end < len(right.tokens) and shared(choice.tokens, right.tokens) == end:
            told = f"{end} tokens and {choice.finish or 'no finish'!r}, known {len(right.tokens)}"
            is_tied = choice.finish == "stop" and _is_near_tie(right.tops[end : end + 1], tau)
            worst = _worse(worst, Judged(Verdict.TIED if is_tied else Verdict.TRUNCATED, told, number, end))
        elif choice.tokens == right.tokens and choice.finish != right.finish:
            told = f"it ends with {choice.finish or 'no finish'!r}, known {right.finish!r}"
            worst = _worse(worst, Judged(Verdict.WRONG if choice.finish else Verdict.TRUNCATED, told, number, end))
        elif choice.tokens == right.tokens and choice.text != right.text and choice.text and right.text:
            told = f"the same tokens have another text: {choice.text!r}, known {right.text!r}"
            worst = _worse(worst, Judged(Verdict.STREAM_DIFFERS, told, number))
    return _by_usage(heard, known, worst)


def _by_usage(heard: Heard, known: Answer, worst: Judged) -> Judged:
    """Usage counts what the server computed. If that is right and the tokens are not, the stream damaged them."""
    counted, prompt = heard.usage.get("completion_tokens"), heard.usage.get("prompt_tokens")
    is_told = isinstance(counted, int) and all(
        isinstance(token, int) for tokens in heard.tokens.values() for token in tokens
    )
    if not is_told:
        return worst
    due = sum(len(choice.tokens) for choice in known.values())
    told = f"usage counts {counted} tokens, {heard.num_tokens} came, {due} are known"
    if worst.verdict in (Verdict.EXACT, Verdict.TIED):
        total = heard.usage.get("total_tokens")
        if counted != heard.num_tokens or (total is not None and total != (prompt or 0) + counted):
            return Judged(Verdict.USAGE, f"{told}; in all {total}")
        return worst

    said, right = ({index: choice.tokens for index, choice in answer.items()} for answer in (heard.answer(), known))
    is_damaged = (
        heard.is_stream and said != right and (counted == due != heard.num_tokens or _sorted(said) == _sorted(right))
    )
    if is_damaged and worst.verdict in (Verdict.WRONG, Verdict.SUSPECT, Verdict.CANNOT_JUDGE):
        return Judged(Verdict.STREAM_DIFFERS, f"{worst.why}; {told}", worst.choice, worst.place, worst.margin)
    return worst


def _without_end(heard: Heard, *, is_excused: bool) -> Judged:
    """An answer that has not ended, and whose tokens so far are right."""
    told = f"status {heard.status}, broken {heard.broken!r}, {heard.num_tokens} tokens came"
    if heard.error is not None:
        return Judged(Verdict.ERROR, f"status {heard.status}: {heard.error}")
    if heard.left:
        return Judged(Verdict.LEFT)
    if heard.broken and is_excused:
        return Judged(Verdict.CUT)
    return Judged(Verdict.HUNG if heard.is_late else Verdict.TRUNCATED, told)


def _lead(top: Top, first: Token, second: Token) -> float:
    """How far `first` is above `second`, which is infinitely far if it is not listed."""
    return top.get(first, -math.inf) - top[second] if second in top else math.inf


def _is_near_tie(tops: Sequence[Top], tau: float | None) -> bool:
    """Whether the two likeliest tokens of the first list are that near: one of them may be an end that is not told."""
    likeliest = sorted(tops[0].values(), reverse=True)[:2] if tops else []
    return tau is not None and len(likeliest) == 2 and likeliest[0] - likeliest[1] <= tau


def _sorted(tokens: Mapping[int, Sequence[Token]]) -> Mapping[int, list[str]]:
    return {index: sorted(map(str, token)) for index, token in tokens.items()}


def _words(answer: Answer) -> str:
    return str({index: (choice.tokens, choice.finish) for index, choice in answer.items()})
