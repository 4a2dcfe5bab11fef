"""Whether a launch has kept as many proposals as the fake draft gets right: a wrong input of the draft costs some."""

import random
from collections.abc import Sequence
from typing import Final

from torch.utils._python_dispatch import _disable_current_modes

from scheduler.plan import Owner
from scheduler.planning.launched import Over
from scheduler.planning.planner import Planner
from scheduler.planning.req import Req
from tests.doubles.hash_model import FakeRunner

REST_BEGINS: Final = 0.05  # how likely a launch begins a rest of the draft
REST_ENDS: Final = 0.2


class Proposals:
    """Looks at each run that a planner takes."""

    def __init__(
        self, planner: Planner, runner: FakeRunner, varied: int | None = None, *, idle: bool = False, rests: bool = True
    ) -> None:
        """`varied`: launches propose 0 to num_steps tokens, drawn with this seed, and with `rests` the draft rests now
        and then, as an adaptive policy may have it. `idle`: those without rows propose some, too."""
        self.num_checked = 0
        self.num_kept = 0
        self._runner, self._drawn, self._poll = runner, planner.results.drawn, planner.poll
        self._planner, self._speculation = planner, planner.speculation
        self._num_steps = 0  # of the launch whose runs are taken
        self.num_rests = 0
        self._before_rest = 0  # the newest launch before the draft last began to rest
        self._ticket = 0  # of the launch whose runs are taken
        vars(planner.results)["drawn"], vars(planner)["poll"] = self._seen, self._polled
        if varied is not None:
            rng, shape = random.Random(varied), planner.speculation.shape
            steps = (0, shape.num_steps) if shape.is_tree else range(shape.num_steps + 1)

            def next_steps(num_rows: int, num_drafting: int, num_prompt_tokens: int) -> int:
                if rests and rng.random() < (REST_ENDS if self._speculation.rests else REST_BEGINS):
                    self._rest_or_wake()
                return rng.choice(steps) if (num_rows or idle) and not self._speculation.rests else 0

            vars(planner.speculation)["next_steps"] = next_steps

    def _rest_or_wake(self) -> None:
        self._speculation.rests = not self._speculation.rests
        if self._speculation.rests:
            self.num_rests += 1
            self._before_rest = self._planner.kv_manager.newest_ticket

    def _polled(self) -> list[Over]:
        over = self._poll()
        for launched, _ in over:
            self._num_steps, self._ticket = launched.num_steps, launched.ticket
        return over

    def _seen(self, owners: Sequence[Owner], runs: Sequence[tuple[int, ...]]) -> list[tuple[Req, tuple[int, ...]]]:
        found = self._drawn(owners, runs)
        with _disable_current_modes():  # looking is no access
            for req, run in found:
                self._check(req, run)
        return found

    def _check(self, req: Req, run: tuple[int, ...]) -> None:
        """A proposal that is kept was right, and the first that is not kept was wrong. Nobody knows it of hot rows, of
        rows with logit rules, and of rows that may not end yet: where a token is banned, draft and target take others,
        which may be the same.

        The first token of a prompt has no proposals, and one that comes back from host memory has none for a step.
        """
        num_known, params = len(req.outputs) - self._planner.spills.num_redrawn(req), req.sampling
        if not run or num_known == req.num_replayed:
            return
        if not req.held.has_draft and self._ticket <= self._before_rest:
            return  # it may have had a draft in that launch
        if not req.held.has_draft:
            assert len(run) == 1, f"{req.request_id}/{req.choice} keeps proposals, and may have none"
            return
        context = (*req.prompt_ids, *req.outputs[req.num_replayed : num_known])
        if self._speculation.shape.is_tree and self._num_steps:
            self._check_tree(req, run, context)
            return
        kept = run[: min(len(run), params.max_tokens - num_known)]
        luck = self._runner.expected_luck((*context, *kept))[len(context) - 1 :]
        what = f"{req.request_id}/{req.choice} keeps {len(run) - 1} proposals behind {len(context)} tokens: {luck}"

        was_away = req.num_resumed == num_known
        assert len(run) <= self._num_steps + 1, f"{what}, of {self._num_steps}"
        is_open = params.temperature > 1 or num_known < params.min_tokens or params.rules is not None
        if len(run) <= self._num_steps and len(kept) == len(run):
            assert is_open or was_away or not luck[len(run) - 1], what
        assert is_open or all(luck[: len(kept) - 1]), what
        assert not (was_away and len(run) > 1), what
        self.num_checked += 1
        self.num_kept += len(run) - 1

    def _check_tree(self, req: Req, run: tuple[int, ...], context: tuple[int, ...]) -> None:
        """What is kept is the path that the draws take, as long as it is in the tree. This holds for hot rows, too."""
        room, tree = req.longest - len(context) + 1, self._speculation.shape
        if room <= 0:  # it has ended
            return
        shape = tree.topk, tree.num_steps, tree.num_nodes
        was_away = req.num_resumed == len(req.outputs)
        wanted = 0 if was_away else self._runner.expected_tree(context, room, *shape).num_kept(run, room)
        what = f"{req.request_id}/{req.choice} keeps {len(run) - 1} nodes behind {len(context)} tokens, not {wanted}"
        assert len(run) - 1 == wanted, what
        self.num_checked += 1
        self.num_kept += wanted
