"""`baton config`: every value and its origin, as a table or as JSON."""

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime.layered_config import Config, Origin, Setting
from runtime.options import Value, as_shown

PIPE_WIDTH = 10_000  # columns where there is no terminal
_STYLE = {Origin.FLAG: "bold green", Origin.ENVIRONMENT: "bold cyan", Origin.FILE: "bold yellow"}


def as_json(config: Config) -> str:
    """A JSON object: option -> {value, origin, place}."""
    report = {
        name: {"value": _plain(setting), "origin": setting.origin.value, "place": setting.place or None}
        for name, setting in config.settings.items()
    }
    return json.dumps(report, indent=2)


def print_table(config: Config, console: Console) -> None:
    """Prints the table, in the groups of the help."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("option", "value", "origin"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "option")

    group = ""
    for setting in config.settings.values():
        if setting.option.group != group:
            if group:
                table.add_row()
            group = setting.option.group
            table.add_row(Text(group, style="dim italic"))
        table.add_row(*_row(setting))

    console.print(table)


def _row(setting: Setting) -> tuple[Text, Text, Text]:
    style = _STYLE.get(setting.origin, "")
    origin = setting.origin.value + (f" {setting.place}" if setting.place else "")
    return (
        Text(f"  {setting.option.name}"),
        Text(show(setting), style=style or ("dim" if setting.value is None else "")),
        Text(origin, style=style or "dim"),
    )


def show(setting: Setting) -> str:
    """The value. For an unset value, its meaning in parentheses."""
    if setting.value is None:
        return f"({setting.option.unset or f'required by baton {setting.option.commands[0]}'})"
    return as_shown(setting.value)


def _plain(setting: Setting) -> Value:
    return setting.text if isinstance(setting.value, tuple) else setting.value
