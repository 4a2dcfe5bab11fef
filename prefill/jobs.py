"""One request at prefill: its choices, its transfer, and what it tells the gateway and decode."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

from protocol.errors import BatonError
from protocol.logprobs import Logprobs
from protocol.messages_gateway import ChoiceTokens, FirstToken
from protocol.messages_handoff import JobFailed, JobFinishedEarly
from scheduler.planning.launched import Drawn, Launched
from scheduler.planning.req import Req
from transfer.sending.transfer import Destination, SendTransfer
from transfer.states import TransferState, least
from worker.requests import Assigned, Key


@dataclass(eq=False)
class Job(Assigned):
    """The choices are drawn from the prompt's last logits. Only the first one holds memory."""

    destination: Destination
    hidden: bytes = b""  # see LastMessage
    logprobs: tuple[Logprobs, ...] = ()  # of the first tokens, if it asks for them
    transfers: tuple[SendTransfer, ...] = ()  # one for each rank, once it is admitted; none if decode needs no KV

    @property
    def key(self) -> Key:
        """How decode names it: (instance, reservation)."""
        return self.destination.peer.instance, self.destination.reservation

    @property
    def transfer_state(self) -> TransferState:
        """The state on which the ranks of its transfer agree."""
        return least(transfer.state for transfer in self.transfers)

    @property
    def first_token(self) -> FirstToken:
        """The message with the first token of every choice, once these are drawn."""
        choices = tuple(
            ChoiceTokens(
                request_id=req.request_id,
                attempt=req.attempt,
                choice=req.choice,
                seq=req.num_replayed,
                token_ids=(req.outputs[-1],),
                finish=req.finish or "",
                logprobs=logprobs,
            )
            for req, logprobs in zip(self.reqs, self.logprobs or repeat(None), strict=False)
        )
        return FirstToken(choices, tuple(self.stamps), self.num_cached)

    def failed(self, error: BatonError) -> JobFailed:
        """The message that it has failed."""
        return JobFailed(self.destination.reservation, error.code, error.message)

    @property
    def finished_early(self) -> JobFinishedEarly:
        """The message that the first token has ended every choice."""
        first_tokens = tuple(req.outputs[-1] for req in self.reqs)
        return JobFinishedEarly(
            self.destination.reservation, first_tokens, tuple(self.stamps), self.num_cached, self.logprobs
        )


def first_tokens(launched: Launched, drawn: Drawn, job_of: Mapping[Req, Job]) -> dict[Job, list[int]]:
    """The first tokens that a launch has drawn, by job. Each job gets their log-probabilities and hidden state."""
    if launched.hidden:
        ended = [chunk.req for chunk in launched.chunks if chunk.samples]
        for req, hidden in zip(ended, launched.hidden, strict=True):
            if (job := job_of.get(req)) is not None:
                job.hidden = hidden

    firsts: dict[Job, list[int]] = {}
    for req, run in drawn:
        if (job := job_of.get(req)) is not None:
            firsts.setdefault(job, []).extend(run)
            if (logprobs := launched.next_logprobs(req)) is not None:
                job.logprobs += (logprobs,)
    return firsts
