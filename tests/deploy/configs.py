"""A command's options as if they were typed."""

from pathlib import Path

from deploy.layout import ProcessSpec
from deploy.options import OPTIONS, options_for
from runtime.layered_config import Config, resolve
from runtime.settings import WorkerSettings

MODEL = Path("/models/story")


def config(command: str, **flags: str) -> Config:
    typed = {name.replace("_", "-"): text for name, text in flags.items()}
    return resolve(options_for(command), OPTIONS, typed, {}, None)


def settings_of(spec: ProcessSpec) -> WorkerSettings:
    return WorkerSettings.from_json(spec.command[-1])
