"""`baton serve` with stand-ins: python drive_serve.py PREFILL_BEHAVIOUR DECODE_BEHAVIOUR [MAX_RESTARTS [HANG_LIMIT]].

The gateway's stand-in behaves as DRIVE_GATEWAY says ("gateway" unless it is set).
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dataclasses import replace

from deploy.console import make_console
from deploy.layout import Plan, ProcessSpec, gateway_spec, rank_fields, worker_spec
from deploy.options import Rules
from deploy.serve import run_plan
from protocol.messages_gateway import Role
from runtime.settings import GatewaySettings, WorkerSettings

STAND_IN = str(Path(__file__).with_name("stand_in.py"))


def as_stand_in(spec: ProcessSpec, behaviour: str) -> ProcessSpec:
    python, *_, settings = spec.command
    return replace(spec, command=(python, STAND_IN, behaviour, "--settings", settings))


def main(prefill: str, decode: str, max_restarts: str = "5", hang_limit: str = "10") -> int:
    behaviours = {"prefill": prefill, "decode": decode}
    workers = tuple(
        WorkerSettings(role=role, gateway="", model="/models/story", **fields)
        for role in (Role.PREFILL, Role.DECODE)
        for fields in rank_fields(f"{role}-0", 1)
    )
    settings = GatewaySettings(port=0, model="/models/story", served_model_name=("story",))
    plan = Plan(
        as_stand_in(gateway_spec(settings), os.environ.get("DRIVE_GATEWAY", "gateway")),
        workers,
        lambda worker: as_stand_in(worker_spec(worker), behaviours[worker.role]),
    )
    console = make_console()
    try:
        rules = Rules(max_restarts=int(max_restarts), hang_limit_s=float(hang_limit))
        return run_plan(plan, console, "story", with_text=True, rules=rules)
    finally:
        console.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
