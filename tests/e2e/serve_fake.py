"""`baton serve` whose workers serve the model of hashes: python serve_fake.py FOLDER [flags of baton serve].

FOLDER holds a config.json and no tokenizer. Everything but the workers' `fake_model` setting is as in `baton serve`,
and FAKE_DECODE_PAGE_SIZE, where the environment has it, is the page size of the decode workers alone. Where it has
FAKE_RELAY, workers dial that endpoint in place of the gateway's, which is written to the file FAKE_CONTROL; with
FAKE_WORKER, that program starts them: python FAKE_WORKER ROOM --settings JSON.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dataclasses import replace

from deploy.cli import find_config, parse
from deploy.console import make_console
from deploy.layout import Plan, ProcessSpec, serve_plan
from deploy.machine import available_cpus, count_cores, read_cpus
from deploy.options import Rules
from deploy.serve import run_plan
from protocol.messages_gateway import Role
from runtime.settings import WorkerSettings


def main(folder: str, flags: list[str]) -> int:
    config = find_config(parse(["serve", "--model", folder, *flags], "test"), os.environ)
    cpus = read_cpus(config["cpus"], available_cpus())
    plan = serve_plan(config, Path(folder), "fake", count_cores(), cpus)
    fakes = tuple(replace(settings, fake_model=True) for settings in plan.worker_settings)
    if page_size := os.environ.get("FAKE_DECODE_PAGE_SIZE"):
        fakes = tuple(replace(each, page_size=int(page_size)) if each.role is Role.DECODE else each for each in fakes)
    plan = replace(plan, worker_settings=fakes)
    if relay := os.environ.get("FAKE_RELAY"):
        plan = through(relay, Path(os.environ["FAKE_CONTROL"]), plan)
    console = make_console()
    try:
        return run_plan(plan, console, "fake", with_text=False, rules=config.make(Rules))
    finally:
        console.close()


def through(relay: str, control: Path, plan: Plan) -> Plan:
    """The plan with a relay between the workers and the gateway."""

    def make_worker(settings: WorkerSettings) -> ProcessSpec:
        control.write_text(settings.gateway)
        spec = plan.make_worker(replace(settings, gateway=relay))
        if program := os.environ.get("FAKE_WORKER"):
            spec = replace(spec, command=(sys.executable, "-P", program, *spec.command[3:]))
        return spec

    return replace(plan, make_worker=make_worker)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
