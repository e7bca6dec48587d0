"""
The six scenes.

Threads wait for each other and for the store, never for a moment to come: a slow machine only takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ... import Lease
from ...liveness import this_process
from .stage import LONG_SECONDS, SHORT_SECONDS, Cue, Stage, Stuck, signature
from .venue import TABLE, Venue
from .victim import Victim


@dataclass(frozen=True)
class Plot:
    """How a scene must have gone, in the words of the store's records."""

    job: str
    owners: tuple[str, ...]
    ends: tuple[str, ...]
    refused: int = 0


@dataclass
class Script:
    """What the records do not have: how each scene must have gone, and the guarded result."""

    plots: list[Plot]
    totals: list[object] | None = None
    expected: list[object] | None = None


def tell(stage: Stage, script: Script) -> None:
    """Play every scene in order, noting in *script* how it must have gone."""
    for scene in (quick, late, crashed, same_name, stale_result, handed_over):
        script.plots.append(scene(stage, script))


def quick(stage: Stage, script: Script) -> Plot:
    """A job that nothing happens to."""
    job = stage.scene("job-A", "A quick success", "worker-1 claims a job, works and completes it. Nothing to see.")

    def worker() -> None:
        lease = stage.claim("worker-1")
        stage.work(0.3)
        stage.complete(lease)

    stage.play(worker)
    return Plot(job, ("worker-1",), ("done",))


def late(stage: Stage, script: Script) -> Plot:
    """A job that takes longer than its lease, and whose first owner wakes up."""
    job = stage.scene(
        "job-B",
        "The late worker",
        "worker-1 freezes past its 1 s lease; worker-2 takes over; worker-1 wakes up.",
    )
    take_over(stage, "worker-1", "worker-2", too_late=stage.complete)
    return Plot(job, ("worker-1", "worker-2"), ("timeout", "done"), refused=1)


def crashed(stage: Stage, script: Script) -> Plot:
    """A job whose worker dies without a word."""
    return _killed_process(stage, stage.venue) if stage.venue.shared else _stopped_thread(stage)


def _stopped_thread(stage: Stage) -> Plot:
    text = "worker-1 stops without a word; when its 1 s lease expires, worker-2 takes over."
    job = stage.scene("job-C", "The crash", text)

    def doomed() -> None:
        stage.claim("worker-1", SHORT_SECONDS)
        stage.say("worker-1 ends here: no completion, no release, no goodbye.")

    stage.play(doomed)
    _recover(stage)
    return Plot(job, ("worker-1", "worker-2"), ("timeout", "done"))


def _killed_process(stage: Stage, venue: Venue) -> Plot:
    # Without /proc, the death of a process cannot be proved, and its lease has to expire.
    provable = this_process() is not None
    text = "worker-1 is a process with a 30 s lease. SIGKILL proves its death: no waiting."
    job = stage.scene("job-C", "The crash", text)
    with Victim(venue, stage.queue, "worker-1", LONG_SECONDS if provable else SHORT_SECONDS) as victim:
        stage.say(f"process {victim.pid} starts as worker-1 …")
        held: list[str] = []
        stage.play(lambda: held.append(victim.claimed()))
        stage.work(0.2)
        stderr = victim.kill()
        if held != [job]:
            raise Stuck(f"process {victim.pid} claimed no job: {stderr.strip() or 'it printed no error'}")
        stage.say(f"process {victim.pid} gets SIGKILL, in the middle of its work.")
        _recover(stage)
    return Plot(job, ("worker-1", "worker-2"), ("recovery" if provable else "timeout", "done"))


def _recover(stage: Stage) -> None:
    def worker() -> None:
        stage.router.reclaim()  # as each worker does once a second
        lease = stage.claim("worker-2")
        stage.work(0.3)
        stage.complete(lease)

    stage.play(worker)


def same_name(stage: Stage, script: Script) -> Plot:
    """A job that goes back to the very worker that lost it."""
    job = stage.scene(
        "job-D",
        "The same worker name: comparing names would let the stale write in",
        "worker-1 gets its own job back; then its old thread wakes with the older epoch.",
    )
    take_over(stage, "worker-1", "worker-1", too_late=stage.complete)
    return Plot(job, ("worker-1", "worker-1"), ("timeout", "done"), refused=1)


def stale_result(stage: Stage, script: Script) -> Plot:
    """A job whose result is written by its new owner, and then again by the old one."""
    shared = stage.venue.shared
    what = "row" if shared else "checkpoint"
    job = stage.scene(
        "job-E",
        "The stale result",
        f"worker-2 takes over and writes a {what}; worker-1 wakes and writes its own.",
    )
    result = RowResult(stage, script) if shared else CheckpointResult(stage, script)

    def too_late(lease: Lease) -> None:
        result.overwrite(lease)
        stage.write(lambda: lease.add("invoice", {"total": 41}))

    take_over(stage, "worker-1", "worker-2", first_write=result.write, too_late=too_late, end=result.end)
    return Plot(job, ("worker-1", "worker-2"), ("timeout", "done"), refused=2)


def handed_over(stage: Stage, script: Script) -> Plot:
    """A job that a supervisor transfers to another owner while its owner is well."""
    job = stage.scene(
        "job-F",
        "The supervisor",
        "agent-a is well, with 30 s to go, when a supervisor gives its job to agent-b.",
    )
    moved, refused = Cue("the supervisor moves the job"), Cue("agent-a is refused")
    drafting = Cue("agent-a has the job")

    def agent_a() -> None:
        lease = stage.claim("agent-a")
        drafting.give()
        moved.wait()
        stage.work(0.3)
        stage.write(lambda: lease.progress(1.0, checkpoint={"draft": "by agent-a"}))
        refused.give()

    def supervisor() -> None:
        drafting.wait()
        stage.work(0.5)
        seen = stage.router.job(job)
        stage.router.transfer(seen, to="agent-b", by="supervisor", note="needs a lawyer", lease_seconds=LONG_SECONDS)
        moved.give()

    def agent_b() -> None:
        moved.wait()
        lease = stage.router.lease(job, owner="agent-b")
        refused.wait()
        stage.work(0.3)
        stage.complete(lease)

    stage.play(agent_a, supervisor, agent_b)
    return Plot(job, ("agent-a", "agent-b"), ("manual", "done"), refused=1)


def take_over(
    stage: Stage,
    first: str,
    second: str,
    *,
    too_late: Callable[[Lease], object],
    first_write: Callable[[Lease], object] | None = None,
    end: Callable[[Lease], object] | None = None,
) -> None:
    """Let *first* freeze with the job until *second* has it, wake and write; then *second* ends the job."""
    claimed, taken, refused = (
        Cue(f"{first} gets the job"),
        Cue(f"{second} takes over"),
        Cue(f"the frozen {first} has written"),
    )

    def frozen() -> None:
        lease = stage.claim(first, SHORT_SECONDS)
        claimed.give()
        taken.wait()
        stage.work(0.3)
        too_late(lease)
        refused.give()

    def successor() -> None:
        claimed.wait()
        lease = stage.claim(second)
        if first_write is not None:
            first_write(lease)
        taken.give()
        refused.wait()
        stage.work(0.3)
        (end or stage.complete)(lease)

    stage.play(frozen, successor)


class CheckpointResult:
    """The guarded result where there is no database to share: the job's own checkpoint."""

    def __init__(self, stage: Stage, script: Script) -> None:
        self._stage, self._script = stage, script
        script.expected = [42]

    def write(self, lease: Lease) -> None:
        """Write as the current owner."""
        self._stage.write(lambda: lease.progress(note="total = 42", checkpoint={"total": 42}))

    def overwrite(self, lease: Lease) -> None:
        """Write as the stale owner."""
        self._stage.write(lambda: lease.progress(note="total = 41", checkpoint={"total": 41}))

    def end(self, lease: Lease) -> None:
        """Complete, and see what the result has become."""
        self._stage.complete(lease)
        checkpoint = self._stage.router.job(lease.job_id).checkpoint or {}
        self._script.totals = [checkpoint.get("total")]
        self._stage.say(f"In the checkpoint, total = {checkpoint.get('total')}.")


class RowResult:
    """The guarded result in a table of the user's own, in the store's database."""

    def __init__(self, stage: Stage, script: Script) -> None:
        self._stage, self._script = stage, script
        script.expected = [42]

    def write(self, lease: Lease) -> None:
        """Write as the current owner."""
        self._stage.write(lambda: self._put(lease, 42))
        self._stage.say("worker-2 commits total = 42 in lease.transaction().")

    def overwrite(self, lease: Lease) -> None:
        """Write as the stale owner."""
        self._stage.write(lambda: self._put(lease, 41))

    def _put(self, lease: Lease, total: int) -> None:
        venue = self._stage.venue
        marks = ", ".join([venue.mark] * 3)
        with lease.transaction() as connection:
            connection.execute(
                f"create table if not exists {venue.table} (job text primary key, total integer, epoch bigint)"
            )
            connection.execute(
                f"insert into {venue.table} values ({marks}) "
                "on conflict (job) do update set total = excluded.total, epoch = excluded.epoch",
                (lease.job_id, total, lease.epoch),
            )

    def end(self, lease: Lease) -> None:
        """See what the result has become, and complete in the same transaction."""
        self._stage.write(lambda: self._look_and_complete(lease))
        for total in self._script.totals or ():
            self._stage.say(f"In {TABLE}, total = {total}.")

    def _look_and_complete(self, lease: Lease) -> None:
        venue = self._stage.venue
        query = f"select total from {venue.table} where job = {venue.mark}"
        with lease.transaction() as connection:
            self._script.totals = [row[0] for row in connection.execute(query, (lease.job_id,)).fetchall()]
            lease.complete(signature(lease), connection=connection)
