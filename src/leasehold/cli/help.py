"""How help is laid out: as wide as the terminal up to a limit, and with every word."""

from __future__ import annotations

import difflib
import inspect

import click

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_ANY_LENGTH = 10_000


# What other tools call it.
_OTHERS = {
    "retry": "replay",
    "rerun": "replay",
    "list": "jobs",
    "lst": "jobs",
    "claim": "worker",
    "doc": "doctor",
    "health": "doctor",
    "restart": "replay",
    "unlock": "requeue",
    "steal": "transfer",
    "stop": "queues pause",
    "top": "workers --watch",
    "help": "--help",
    "ls": "jobs",
    "failed": "jobs --status failed",
    "get": "show",
    "describe": "show",
    "info": "show",
    "why": "explain",
    "log": "history",
    "logs": "events",
    "queue": "queues",
    "pause": "queues pause",
    "resume": "queues resume",
    "delete": "cancel",
    "kill": "cancel",
    "abort": "cancel",
    "reassign": "transfer",
    "move": "transfer",
    "release": "requeue",
    "enqueue": "add",
    "push": "add",
    "purge": "prune",
    "run": "worker",
    "work": "worker",
    "migrate": "store migrate",
    "check": "store check",
    "status": "queues",
    "stats": "store stats",
}


def examples_first(command: click.Command) -> None:
    """Put the examples of a command, and of all below it, behind the first sentence of its help."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    first = next((number for number, text in enumerate(paragraphs) if text.startswith("\b\nExample")), None)
    if first is not None:
        last = first + 1
        while last < len(paragraphs) and paragraphs[last].startswith("\b\n") and "Exit codes:" not in paragraphs[last]:
            last += 1
        shown = paragraphs[first:last]
        command.help = "\n\n".join([paragraphs[0], *shown, *paragraphs[1:first], *paragraphs[last:]])
    if isinstance(command, click.Group):
        for each in command.commands.values():
            examples_first(each)


class Group(click.Group):
    """A group of commands whose list wraps long descriptions, where click would cut them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with; name the one that was meant where another word is used for it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = _OTHERS.get(args[0]) if ctx.parent is None else None
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            meant = meant or (near[0] if near else None)
            if meant is None:
                raise
            raise click.UsageError(
                f"No such command {args[0]!r}. Did you mean `{ctx.command_path} {meant}`?", ctx
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the first sentence of its help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_ANY_LENGTH)) for name, each in commands if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
