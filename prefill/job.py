"""One job on a prefill worker: the request, its transfer and its progress."""

from dataclasses import dataclass, field

from protocol.messages_gateway import ChoiceTokens, FirstToken
from protocol.messages_handoff import JobFinishedEarly
from transfer.sending.transfer import Target
from transfer.states import Transfer
from worker.assigned import Assigned


@dataclass(eq=False)
class Job(Assigned):
    """The choices are drawn from the prompt's last logits. Only the first one holds memory."""

    target: Target
    transfer: Transfer = field(default_factory=Transfer)

    @property
    def sends_kv(self) -> bool:
        """Whether decode needs the KV. It does not if the first token is the only one."""
        return self.assign.num_left > 1

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
            )
            for req in self.reqs
        )
        return FirstToken(choices, tuple(self.stamps))

    @property
    def finished_early(self) -> JobFinishedEarly:
        """The message that the first token has ended every choice."""
        first_tokens = tuple(req.outputs[-1] for req in self.reqs)
        return JobFinishedEarly(self.target.reservation, first_tokens, tuple(self.stamps))
