"""Which draft mode an executor has: the one place that asks. A fourth mode is a file beside these and a line here."""

from functools import partial

from model.draft import Draft
from scheduler.draft_shape import DraftShape
from scheduler.execution.device import Device
from scheduler.execution.launches import Launches, MakeLaunches, PlainLaunches
from scheduler.speculation.chain import Chain
from scheduler.speculation.draft_launches import DraftLaunches
from scheduler.speculation.layers import Layers
from scheduler.speculation.mode import DraftParts
from scheduler.speculation.one_layer import OneLayer, TreeLayer
from scheduler.speculation.quiet import Quiet
from scheduler.speculation.tree import Tree
from scheduler.speculation.unwritten import Unwritten


def launches_for(draft: Draft | None, shape: DraftShape) -> MakeLaunches:
    """How an executor launches plans: without a draft, or with one that proposes in this shape."""
    return PlainLaunches if draft is None else partial(_with_draft, draft, shape)


def _with_draft(draft: Draft, shape: DraftShape, device: Device) -> Launches:
    parts = DraftParts(device, draft, Unwritten(device.future_map))
    if draft.group.lookahead > 1:
        return DraftLaunches(parts, Layers(parts, proposes=True), Layers(parts, proposes=False))
    if shape.is_tree:
        tree_layer = TreeLayer(parts, shape.topk)
        return DraftLaunches(parts, Tree(parts, tree_layer, shape), Quiet(parts, tree_layer))
    layer = OneLayer(parts)
    return DraftLaunches(parts, Chain(parts, layer), Quiet(parts, layer))
