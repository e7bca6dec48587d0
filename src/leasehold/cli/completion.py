"""`leasehold completion`, and what the store knows that completes a word: ids, queues, owners, tasks."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from .. import Router

VARIABLE = "_LEASEHOLD_COMPLETE"  # as click derives it from the name of the command
_SHELLS = ("bash", "zsh", "fish")
_LIMIT = 50
_WAIT_SECONDS = 1.5  # a shell waits for this long at most; a store that does not answer completes nothing

# A zsh without a configuration of its own has not loaded its completion: without this, `compdef` would not be found.
_FIRST = {"zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }\n"}

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """
    Print the script that completes commands, options, ids, queues and owners in a shell.

    Ids, queues, owners and tasks come from the store that --store, LEASEHOLD_STORE or leasehold.toml names. If it does
    not answer within a moment, they are not completed.

    \b
    Examples:
      eval "$(leasehold completion bash)"        in ~/.bashrc
      eval "$(leasehold completion zsh)"         in ~/.zshrc
      leasehold completion fish | source         in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    # Not `kind.source()`: for bash it starts one to compare versions, and prints a warning where there is none.
    script = kind(context.find_root().command, {}, "leasehold", VARIABLE)
    click.echo(_FIRST.get(shell, "") + script.source_template % script.source_vars())
    return 0


def job_ids(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an id: the newest jobs, or those whose ids begin like this, each with its status and task."""

    def found(router: Router) -> list[CompletionItem]:
        jobs = router.search(id_prefix=incomplete or None, newest=not incomplete, limit=_LIMIT).jobs
        return [CompletionItem(job.id, help=" ".join(filter(None, (job.status.value, job.task)))) for job in jobs]

    return _asked(context, found)


def queue_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a queue: those that are paused or have unfinished jobs."""
    return _asked(context, lambda router: _beginning((queue.name for queue in router.queues()), incomplete))


def owner_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an owner: the workers that have reported, and those who hold jobs."""

    def found(router: Router) -> list[CompletionItem]:
        running = router.search(status="running", limit=_LIMIT).jobs
        names = {worker.name for worker in router.workers()} | {job.owner for job in running if job.owner}
        return _beginning(names, incomplete)

    return _asked(context, found)


def task_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a task: those that workers know."""

    def found(router: Router) -> list[CompletionItem]:
        return _beginning({task for worker in router.workers() for task in worker.tasks}, incomplete)

    return _asked(context, found)


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(set(names)) if name.startswith(incomplete)][:_LIMIT]


def _asked(context: click.Context, ask: Callable[[Router], list[CompletionItem]]) -> list[CompletionItem]:
    """Ask the store, for a moment; whatever goes wrong, nothing is printed and nothing is completed."""
    answers: list[CompletionItem] = []

    def run() -> None:
        try:
            with closing(_router(context)) as router:
                answers.extend(ask(router))
        except BaseException:  # an error in the middle of a command line helps no reader
            answers.clear()

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    thread = threading.Thread(target=run, name="leasehold-completion", daemon=True)
    thread.start()
    thread.join(_WAIT_SECONDS)
    return [] if thread.is_alive() else answers


def _router(context: click.Context) -> Router:
    from .target import find  # on use: it has options that are completed by this module

    named: dict[str, Any] = {}
    each: click.Context | None = context
    while each is not None:  # `leasehold queues --store URL pause NAME`: the group has the option
        named = {**each.params, **{name: value for name, value in named.items() if value is not None}}
        each = each.parent
    return find(named.get("url"), named.get("profile"), named.get("schema")).open()
