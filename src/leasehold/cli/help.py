"""How help is laid out: as wide as the terminal up to a limit, and with every word."""

from __future__ import annotations

import click

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_ANY_LENGTH = 10_000


class Group(click.Group):
    """A group of commands whose list wraps long descriptions, where click would cut them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the first sentence of its help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_ANY_LENGTH)) for name, each in commands if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
