"""One process of the hunt: threads that act as owners, producers and operators, at random, and report what they saw."""

from __future__ import annotations

import functools
import itertools
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from ...core.children import new_child
from ...core.ids import new_claim_id
from ...core.job import NewJob, Outcome, Progress, Settlement, Status, new_job
from ...core.retry import Retry
from ...core.workers import WorkerReport
from ...errors import Conflict, NoLease, StaleEpoch, UnknownJob
from ...lease import Lease
from ...liveness import this_process
from ...router import Router
from ...store import Renewal
from .effects import Effects, another, draw
from .judge import Accepted, Counted, Ended, Finding, Issued, Paused, PickedUp, Refused, Token
from .party import Held, Orders, Party, Reports, Ticks
from .tables import tables_of

QUEUES = ("fast", "slow", "default")
LOCKS = 6
TASKS = ("", "resize", "send")  # "" for jobs without one
UNIQUES = 8
ENOUGH = 300  # pending jobs, above which no more are added
HELD = 20  # leases of one process: then it claims no more
LEASE_SECONDS = (0.05, 4.0)
_SEND_EVERY_SECONDS = 0.2


def hunt_in(orders: Orders, ticks: Any, waiting: Any, stop: Any, pipe: Connection) -> None:
    """Run the threads of one process until *stop*, and send their reports through *pipe*."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that shows the summary
    reports = Reports(pipe)
    with Router(orders.url, schema=orders.schema, lease_seconds=0.5, trace=orders.number % 4 == 3) as router:
        if orders.number % 2:
            _leave_fenced(router)
        party = Party(orders, router, Ticks(ticks), reports, waiting, stop)
        pipe.send([])  # ready
        threads = [threading.Thread(target=_act, args=[party, n], name=f"hunter-{n}") for n in range(orders.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_SEND_EVERY_SECONDS)
                reports.send()
    reports.send()
    pipe.close()


def _act(party: Party, number: int) -> None:
    """Be one hunter, until the end."""
    hunter = Hunter(party, number)
    try:
        while not party.stop.is_set():
            hunter.once()
    finally:
        hunter.close()


def _leave_fenced(router: Router) -> None:
    """
    Let takeovers of this process leave the transactions of those who lost open, as one that dies right after would.

    Where they are ended within milliseconds, hardly any of them ever gets to ask the fence.
    """
    if hasattr(router.store, "upkeep"):
        router.store.upkeep.end_fenced = lambda epochs: None


class Hunter:
    """One thread."""

    def __init__(self, party: Party, number: int) -> None:
        self._party = party
        self._router = party.router
        self._store = party.router.store
        self._tick = party.tick
        self._say = party.say
        orders = party.orders
        self._name = f"owner-{orders.number}-{number}"
        self._rng = random.Random(f"{orders.seed}/{orders.number}/{number}")
        self._tokens = itertools.count()
        self._tables = tables_of(orders.url, orders.schema)
        self._effects = Effects(self._tables, self._tick, self._say, self._token)
        acts: dict[Callable[[], None], int] = {
            self.claim: 12,
            self.effect: 60,
            self.settle: 4,
            self.renew: 8,
            self.progress: 4,
            self.child: 2,
            self.reclaim: 1,
            self.transfer: 6,
            self.pick_up: 16,
            self.override: 3,
            self.pause_queue: 1,
            self.idle: 2,
        }
        self._acts, self._weights = list(acts), list(acts.values())

    def _token(self) -> str:
        return f"{self._name}/{next(self._tokens)}"

    def close(self) -> None:
        """Let go of the connections."""
        self._effects.close()

    def once(self) -> None:
        """Do one thing. Whatever leaves it is a finding."""
        [act] = self._rng.choices(self._acts, self._weights)
        try:
            act()
        except Exception as error:
            self._say(
                Finding(
                    f"{act.__name__}: {type(error).__name__}: {error}", None, "".join(traceback.format_exception(error))
                )
            )
            time.sleep(0.2)

    # Producers

    def produce(self) -> None:
        """Add some jobs, of all kinds."""
        if self._party.waiting.value > ENOUGH:
            time.sleep(0.005)
            return
        rng = self._rng
        jobs: list[dict[str, Any]] = []
        for _ in range(rng.choice((1, 5, 20, 40))):
            lock = f"lock-{rng.randrange(LOCKS)}" if rng.random() < 0.3 else None
            jobs.append(
                {
                    "id": self._token(),
                    "payload": {"lock": lock},
                    "lock": lock,
                    "task": rng.choice(TASKS) or None,
                    "queue": rng.choice(QUEUES),
                    "priority": rng.randint(-1, 1),
                    "unique": f"unique-{rng.randrange(UNIQUES)}" if rng.random() < 0.05 else None,
                    "delay_seconds": rng.random() * 0.2 if rng.random() < 0.2 else None,
                    "stall_seconds": rng.uniform(0.05, 0.4) if rng.random() < 0.1 else None,
                    "retry": Retry(max_reclaims=rng.choice((1, 20)), max_errors=5, delay_seconds=0.01),
                }
            )
        created = [added.job.id for added in self._router.add_many(jobs) if added.created]
        sent = {job["id"] for job in jobs}
        if not set(created) <= sent:
            self._say(Finding(f"add_many returned jobs as created that were not in the call: {set(created) - sent}"))
        for job_id in created:
            self._say(Token(job_id, "job", job_id, 0, True))
        self._say(Counted("jobs", len(created)))

    # Owners

    def claim(self) -> None:
        """Claim a batch, unless this process holds enough; add jobs if there were too few."""
        rng = self._rng
        if self._party.size() > HELD:
            return
        limit = rng.choice((1, 1, 3, 10))
        known = None if rng.random() < 0.5 else rng.sample(TASKS, rng.randint(1, 2))
        sent = self._tick()
        grants = self._store.claim(
            self._name,
            limit=limit,
            queues=None if rng.random() < 0.7 else rng.sample(QUEUES, rng.randint(1, 2)),
            lease_us=round(rng.uniform(*LEASE_SECONDS) * 1_000_000),
            claim_id=new_claim_id(),
            process=this_process(),
            wait_us=rng.choice((0, 0, 10_000)),
            tasks=known,
        )
        replied = self._tick()
        leases = [Lease(self._store, grant) for grant in grants]
        for lease in leases:
            if known is not None and (lease.task or "") not in known:
                self._say(Finding(f"a claim that knows {known} was granted {lease.task!r}", lease.job_id))
            self._got(lease, sent, replied, "claim")
        if len(leases) < limit:
            self.produce()

    def _got(self, lease: Lease, sent: int, replied: int, verb: str) -> None:
        lock = (lease.payload or {}).get("lock")
        checkpoint = (lease.checkpoint or {}).get("epoch", 0)
        queue = lease.queue if verb == "claim" else None
        self._say(Issued(lease.job_id, lock, lease.epoch, sent, replied, verb, lease.owner, checkpoint, queue))
        self._say(Counted("claims", 1))
        if verb == "transfer" or lease.reason in ("timeout", "stall", "recovery"):
            self._say(Counted("takeovers", 1))
        self._party.take_in(Held(lease, lock))

    def effect(self) -> None:
        """Write a row in a fenced transaction."""
        chosen = self._party.some(self._rng, 1)
        if not chosen:
            self.claim()
        for held in chosen:
            plan = draw(self._rng, self._tables, held.may_release)
            if not self._effects.run(held.lease, held.lock, plan):
                self._party.drop(held)

    def renew(self) -> None:
        """Renew a batch in random order."""
        batch = self._party.some(self._rng, 20)
        seconds = self._rng.choice((None, 20_000, 200_000))
        wishes = [Renewal(held.lease.job_id, held.lease.epoch, seconds) for held in batch]
        self._written("renew", batch, lambda: self._store.renew(wishes))

    def progress(self) -> None:
        """Report progress for a batch in random order, some of it with checkpoints."""
        batch = self._party.some(self._rng, 10)
        keeps = self._rng.random() < 0.5
        reports = [
            Progress(
                held.lease.job_id,
                held.lease.epoch,
                self._rng.random(),
                None,
                f'{{"epoch":{held.lease.epoch}}}' if keeps else None,
            )
            for held in batch
        ]
        self._written("checkpoint" if keeps else "progress", batch, lambda: self._store.progress(reports))

    def settle(self) -> None:
        """Settle a batch in random order, in all ways."""
        batch = self._party.some(self._rng, self._rng.choice((2, 2, 4, 15)))
        plain = self._rng.random() < 0.5
        settlements = [self._settlement(held, plain) for held in batch]
        answers = self._written("settle", batch, lambda: self._store.settle(settlements))
        for held, settlement, refusal in zip(batch, settlements, answers, strict=True):
            self._party.drop(held)
            for job in settlement.then:
                self._say(Token(job.id, "job", held.lease.job_id, held.lease.epoch, refusal is None))
        self._say(Counted("settles", sum(refusal is None for refusal in answers)))

    def _settlement(self, held: Held, plain: bool) -> Settlement:
        lease, rng = held.lease, self._rng
        # No two settlements of a lease have the same words: to repeat one is accepted, whatever has happened since.
        words = self._token()
        way = 0.0 if plain else rng.random()
        if way < 0.6:
            then: tuple[NewJob, ...] = ()
            if not plain and rng.random() < 0.3:
                follow_up = new_job(words, {"lock": held.lock}, lock=held.lock)
                then = (new_child(lease.job_id, follow_up, 1),)
            return Settlement(lease.job_id, lease.epoch, Outcome.COMPLETE, result=f'"{words}"', then=then)
        if way < 0.8 or not held.may_release():
            delay = rng.randrange(1, 50_000)
            return Settlement(lease.job_id, lease.epoch, Outcome.FAIL, error=words, delay_us=delay)
        return Settlement(lease.job_id, lease.epoch, Outcome.RELEASE, delay_us=rng.randrange(1, 100_000))

    def child(self) -> None:
        """Add a child."""
        for held in self._party.some(self._rng, 1):
            token = self._token()
            [refusal] = self._written("add", [held], functools.partial(_added, another(held.lease), token))
            self._say(Token(token, "job", held.lease.job_id, held.lease.epoch, refusal is None))

    def _written(self, verb: str, batch: list[Held], write: Callable[[], Any]) -> list[Any]:
        """Write under the leases of *batch*; say what was accepted and what was refused."""
        if not batch:
            return []
        sent = self._tick()
        answers: list[Any] = write()
        replied = self._tick()
        for held, answer in zip(batch, answers, strict=True):
            lease = held.lease
            if isinstance(answer, StaleEpoch):
                self._say(Refused(lease.job_id, lease.epoch, answer.current, sent, verb, lease.owner))
                self._say(Counted("refusals", 1))
                self._party.drop(held)
                self._doubt(held, answer)
            elif isinstance(answer, UnknownJob):
                self._say(Finding(f"{verb}: {answer}", lease.job_id))
            else:
                self._say(Accepted(lease.job_id, held.lock, lease.epoch, sent, replied, verb, lease.owner))
                if verb == "settle":
                    self._say(Ended(lease.job_id, held.lock, lease.epoch, replied, verb))
        return answers

    def _doubt(self, held: Held, refusal: StaleEpoch) -> None:
        """An epoch that was refused is refused for ever."""
        if self._rng.random() < 0.2:
            with suppress(StaleEpoch):
                held.lease.check()
                self._say(Finding(f"refused, though its epoch is current: {refusal}", held.lease.job_id))

    # Operators, and time

    def reclaim(self) -> None:
        """Take back what expired."""
        ended = self._router.reclaim()
        replied = self._tick()
        for one in ended:
            self._say(Ended(one.job_id, None, one.epoch, replied, "reclaim"))

    def transfer(self) -> None:
        """Take a running job from its owner."""
        job_id = self._party.known(self._rng)
        if job_id is None:
            return
        job = self._router.job(job_id)
        if job.status is not Status.RUNNING:
            return
        to = self._name if self._rng.random() < 0.3 else self._party.recipient(self._rng)
        seconds = self._rng.uniform(0.05, 0.5 if to == self._name else 2.0)
        sent = self._tick()
        try:
            lease = self._router.transfer(job, to=to, by="hunt", lease_seconds=seconds)
        except (StaleEpoch, Conflict):
            return  # it has moved, or has ended
        replied = self._tick()
        if lease.owner == self._name:
            self._got(lease, sent, replied, "transfer")
        else:  # its owner, a thread or a worker of some process, may pick it up
            lock = (lease.payload or {}).get("lock")
            checkpoint = (lease.checkpoint or {}).get("epoch", 0)
            self._say(Issued(job_id, lock, lease.epoch, sent, replied, "transfer", lease.owner, checkpoint))
            self._say(Counted("takeovers", 1))

    def pick_up(self) -> None:
        """
        Pick up what was transferred to this process's worker, or to this thread.

        The threads of a process share the worker's name: of two that accept the same transfer, one gets it.
        """
        name = self._party.worker
        if self._rng.random() < 0.2:
            report = WorkerReport(name, self._party.given_name, this_process(), None, (), 1, 0, 0)
            self._store.report(report)
        owner = name if self._rng.random() < 0.7 else self._name
        transfers = self._store.transfers(owner)
        if not transfers:
            return
        if owner == name:
            grants = self._store.accept(owner, transfers, claim_id=new_claim_id(), process=this_process())
            if self._rng.random() < 0.1 and self._store.accept(owner, transfers, claim_id=new_claim_id()):
                self._say(Finding("a transfer was accepted twice, under two claim ids"))
        else:
            grants = []
            for job_id, _ in transfers:
                with suppress(NoLease):
                    grants.append(self._store.lease(job_id, owner))
        for grant in grants:
            self._say(PickedUp(grant.spec.id, grant.epoch, grant.claim_id))
            lease = Lease(self._store, grant)
            self._party.take_in(Held(lease, (lease.payload or {}).get("lock")))
        self._say(Counted("pick-ups", len(grants)))

    def override(self) -> None:
        """Cancel a job, complete it by hand, requeue or replay it."""
        job_id = self._party.known(self._rng)
        if job_id is None:
            return
        job = self._router.job(job_id)
        verbs = {Status.PENDING: ("cancel", "complete"), Status.RUNNING: ("cancel", "complete", "requeue")}
        verb = self._rng.choice(verbs.get(job.status, ("replay",)))
        sent = self._tick()
        try:
            moved = getattr(self._router, verb)(job, by="hunt")
        except (StaleEpoch, Conflict):
            return
        replied = self._tick()
        # Its key is not this epoch's: a pending job holds none.
        self._say(Issued(job_id, None, moved.epoch, sent, replied, verb, None, 2**62))
        self._say(Ended(job_id, None, moved.epoch, replied, verb))
        self._say(Counted("overrides", 1))
        if job.status is Status.RUNNING:
            self._say(Counted("takeovers", 1))

    def pause_queue(self) -> None:
        """Pause a queue, and resume it soon, unless another hunter has done so."""
        queue = self._rng.choice(QUEUES)
        sent = self._tick()
        self._router.pause(queue, by="hunt")
        self._say(Paused(queue, sent, self._tick(), "pause"))
        try:
            time.sleep(self._rng.random() * 0.02)
        finally:
            sent = self._tick()
            self._router.resume(queue, by="hunt")
            self._say(Paused(queue, sent, self._tick(), "resume"))
        self._say(Counted("pauses", 1))

    def idle(self) -> None:
        """Do nothing, so that leases expire."""
        time.sleep(self._rng.random() * 0.3)


def _added(lease: Lease, token: str) -> list[StaleEpoch | None]:
    try:
        lease.add(token, {"token": token})
    except StaleEpoch as refusal:
        return [refusal]
    return [None]
