"""The running batch of a decode or unified worker: requests join it, and finished ones leave before a launch."""

from scheduler.schedule_batch import ScheduleBatch


class Running:
    """At most one ScheduleBatch; None when no request decodes."""

    def __init__(self) -> None:
        self.batch: ScheduleBatch | None = None

    @property
    def num_going_on(self) -> int:
        """Choices that still decode. Ended choices stay in the batch until the next launch is chosen."""
        return 0 if self.batch is None else sum(req.finish is None for req in self.batch.reqs)

    def join(self, batch: ScheduleBatch) -> None:
        """Adds `batch`, which decodes from the next launch on."""
        if self.batch is None:
            self.batch = batch
        else:
            self.batch.merge(batch)

    def for_next_launch(self) -> ScheduleBatch | None:
        """The batch without requests that have finished or whose last output is in flight."""
        if self.batch is None:
            return None
        keep = [
            index
            for index, req in enumerate(self.batch.reqs)
            if req.finish is None and req.num_sampled < req.sampling.max_tokens
        ]
        if not keep:
            self.batch = None
            return None
        self.batch.filter(keep)
        return self.batch
