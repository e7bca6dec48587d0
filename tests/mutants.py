"""
Mutants: edits that make leasehold wrong, each with the tests that must notice.

Each edit is made in a copy of the package, never in the work tree, and the named tests run on that copy. First all of
them run on an unchanged copy: a test that is red anyway proves nothing.

    python tests/mutants.py                 every mutant, and a table of verdicts
    python tests/mutants.py --only NAME     this one; may be repeated
    python tests/mutants.py --list          the names, and what is wrong with each

Exit code 1 if a mutant survives, if its tests hang, or if an edit no longer applies. tests/test_mutants.py, which is
part of every run, sees that each edit still applies and that each named test exists.

Long on purpose: it is a list, one entry for each edit, and a reader looks for one name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parent.parent
PACKAGE = TOP / "src" / "leasehold"
LIMIT_SECONDS = 600  # of the tests of one mutant; only one that hangs takes so long

_SQL = "stores/postgres/functions/"
_BESIDE = "tests/postgres/test_beside.py::"
_POSTGRES = "tests/contract/test_postgres.py::TestPostgresStore::"
_SQLITE = "tests/contract/test_sqlite.py::TestSqliteStore::"
_SNAPSHOTS = "tests/postgres/test_snapshots.py::"
_LOST = "tests/postgres/test_lost_commits.py::"
_ORDER = "tests/postgres/test_lock_order.py::"
_RETENTION = "tests/postgres/test_retention.py::"
_PICKING_UP = "tests/postgres/test_picking_up.py::"
_OVER = _SNAPSHOTS + "test_after_a_settlement_at_repeatable_read_the_lease_is_over"


class Edit(NamedTuple):
    """One change: *text*, which the file has exactly once, is replaced."""

    file: str  # in the package
    text: str
    replacement: str


class Mutant(NamedTuple):
    """What is wrong with it, how it is made, and which tests must fail."""

    name: str
    wrong: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


MUTANTS = (
    # PostgreSQL: owners
    Mutant(
        "complete-epoch",
        "A batch of plain completions does not compare the epoch.",
        (Edit(_SQL + "06_settling.sql", "WHERE seq = j.seq AND epoch = s.epoch AND epoch > j.epoch OFFSET 0",
              "WHERE seq = j.seq AND epoch > j.epoch OFFSET 0"),),
        (_POSTGRES + "test_c3_each_completion_of_a_batch_is_compared",),
    ),
    Mutant(
        "complete-ended",
        "A plain completion passes after a REPEATABLE READ settlement.",
        (Edit(_SQL + "06_settling.sql", "WHERE seq = j.seq AND epoch = s.epoch AND epoch > j.epoch OFFSET 0",
              "WHERE seq = j.seq AND epoch = s.epoch OFFSET 0"),
         Edit(_SQL + "06_settling.sql", "FROM ended AS e WHERE j.ctid = e.job AND j.epoch < e.epoch",
              "FROM ended AS e WHERE j.ctid = e.job")),
        (_SNAPSHOTS + "test_after_a_settlement_at_repeatable_read_a_batch_passes_over_that_lease",),
    ),
    Mutant(
        "complete-one-ended",
        "A completion alone passes after a REPEATABLE READ settlement.",
        (Edit(_SQL + "06_settling.sql", "leasehold.jobs WHERE id = p_ids[1] AND epoch < p_epochs[1])",
              "leasehold.jobs WHERE id = p_ids[1])"),
         Edit(_SQL + "06_settling.sql", "    WHERE j.seq = l.seq AND j.epoch < l.epoch\n    RETURNING j.seq, j.unique_key",
              "    WHERE j.seq = l.seq\n    RETURNING j.seq, j.unique_key")),
        (_OVER,),
    ),
    Mutant(
        "complete-one-waited",
        "A completion that waited for a REPEATABLE READ settlement of its lease passes.",
        (Edit(_SQL + "06_settling.sql", "    WHERE j.seq = l.seq AND j.epoch < l.epoch\n    RETURNING j.seq, j.unique_key",
              "    WHERE j.seq = l.seq\n    RETURNING j.seq, j.unique_key"),),
        (_SNAPSHOTS + "test_a_completion_that_waits_for_a_settlement_at_repeatable_read_is_refused_after_it",),
    ),
    Mutant(
        "renew-waited-epoch",
        "A renewal that had to wait for a lock does not compare the epoch.",
        (Edit(_SQL + "05_owning.sql", "WHERE seq = r.seq AND epoch = r.epoch AND epoch > r.job_epoch FOR NO KEY UPDATE\n",
              "WHERE seq = r.seq AND epoch > r.job_epoch FOR NO KEY UPDATE\n"),),
        (_BESIDE + "test_a_renewal_that_had_to_wait_does_not_renew_the_next_owner",),
    ),
    Mutant(
        "renew-ended",
        "A renewal passes after a REPEATABLE READ settlement.",
        (Edit(_SQL + "05_owning.sql", "AND epoch > r.job_epoch FOR NO KEY UPDATE SKIP LOCKED",
              "FOR NO KEY UPDATE SKIP LOCKED"),),
        (_OVER,),
    ),
    Mutant(
        "progress-ended",
        "Progress passes after a REPEATABLE READ settlement.",
        (Edit(_SQL + "05_owning.sql",
              "WHERE l.seq = (SELECT seq FROM leasehold.jobs WHERE id = r.id AND epoch < r.epoch) AND l.epoch = r.epoch",
              "WHERE l.seq = (SELECT seq FROM leasehold.jobs WHERE id = r.id) AND l.epoch = r.epoch"),),
        (_OVER,),
    ),
    Mutant(
        "lock-lease-ended",
        "Children and effects pass after a REPEATABLE READ settlement.",
        (Edit(_SQL + "01_shared.sql", "RETURN (SELECT seq FROM leasehold.jobs WHERE seq = v_seq AND epoch < p_epoch);",
              "RETURN v_seq;"),),
        (_OVER,),
    ),
    Mutant(
        "sweep-ended",
        "A sweep takes back a job that was settled at REPEATABLE READ.",
        (Edit(_SQL + "04_reclaiming.sql", "IF j.seq IS NULL OR l.epoch <= j.epoch THEN\n        RETURN NULL;",
              "IF j.seq IS NULL THEN\n        RETURN NULL;"),),
        (_SNAPSHOTS + "test_a_sweep_takes_nothing_back_that_was_settled_at_repeatable_read",),
    ),
    Mutant(
        "children-unlocked",
        "A child is added after a takeover: the epoch is compared, and the lease is not locked.",
        (Edit(_SQL + "05_owning.sql", "IF leasehold.lock_lease(p_id, p_epoch, true) IS NOT NULL THEN",
              "IF leasehold.is_current(p_id, p_epoch) THEN"),),
        (_BESIDE + "test_a_verb_that_meets_a_takeover_waits_for_it_and_is_refused",),
    ),
    Mutant(
        "effect-shared",
        "Two callers under one epoch both get a fresh effect.",
        (Edit(_SQL + "05_owning.sql",
              "v_seq := leasehold.lock_lease(p_id, p_epoch, false);\n    IF v_seq IS NULL THEN\n        refusal :=",
              "v_seq := leasehold.lock_lease(p_id, p_epoch, true);\n    IF v_seq IS NULL THEN\n        refusal :="),),
        (_BESIDE + "test_of_two_callers_under_one_epoch_one_gets_a_fresh_effect",),
    ),
    Mutant(
        "fenced-always",
        "Every takeover is told that a fenced transaction is open, and keeps none from beginning.",
        (Edit(_SQL + "01_shared.sql",
              "    IF pg_try_advisory_xact_lock(leasehold.fence_of(p_epoch)) THEN\n        RETURN false;\n    END IF;\n", ""),),
        ("tests/postgres/test_fence_blocks.py::test_a_fence_in_the_middle_of_a_takeover_waits_for_its_outcome",),
    ),
    # PostgreSQL: claims
    Mutant(
        "fast-claim-id",
        "The fast path of a claim drops the claim id.",
        (Edit(_SQL + "04_claiming_next.sql", "p_owner, j.reason, p_claim_id, v_process,",
              "p_owner, j.reason, NULL, v_process,"),),
        (_POSTGRES + "test_c18_every_path_of_a_claim_keeps_what_it_was_given",),
    ),
    Mutant(
        "fast-claim-process",
        "The fast path of a claim drops the process.",
        (Edit(_SQL + "04_claiming_next.sql", "p_owner, j.reason, p_claim_id, v_process,",
              "p_owner, j.reason, p_claim_id, NULL,"),),
        (_POSTGRES + "test_c37_every_path_of_a_claim_records_the_process",),
    ),
    Mutant(
        "fast-claim-stall",
        "The fast path of a claim drops the stall deadline.",
        (Edit(_SQL + "04_claiming_next.sql", "v_now + j.stall_us, j.stall_us, v_now\n", "NULL, j.stall_us, v_now\n"),),
        (_POSTGRES + "test_c36_every_path_of_a_claim_sets_the_stall_deadline",),
    ),
    # PostgreSQL: operators
    Mutant(
        "override-before-claim",
        "An operator who saw the job before its claim can cancel or complete it.",
        (Edit(_SQL + "07_moving.sql",
              "coalesce(l.epoch, j.epoch) <> p_epoch THEN\n"
              "        v_answer.answer := leasehold.refusal(p_id, p_epoch, p_verb,",
              "p_epoch NOT IN (coalesce(l.epoch, j.epoch), j.epoch) THEN\n"
              "        v_answer.answer := leasehold.refusal(p_id, p_epoch, p_verb,"),),
        (_POSTGRES + "test_c31_an_operator_who_saw_the_job_before_its_claim_is_refused",),
    ),
    Mutant(
        "transfer-before-claim",
        "An operator who saw the job before its claim can transfer it.",
        (Edit(_SQL + "07_moving.sql",
              "coalesce(l.epoch, j.epoch) <> p_epoch THEN\n"
              "        v_answer.answer := leasehold.refusal(p_id, p_epoch, 'transfer',",
              "p_epoch NOT IN (coalesce(l.epoch, j.epoch), j.epoch) THEN\n"
              "        v_answer.answer := leasehold.refusal(p_id, p_epoch, 'transfer',"),),
        (_POSTGRES + "test_c31_an_operator_who_saw_the_job_before_its_claim_is_refused",),
    ),
    Mutant(
        "operator-looks-once",
        "Operators do not see a claim that commits beside them: they look once.",
        (Edit(_SQL + "07_moving.sql", "            RAISE EXCEPTION USING ERRCODE = 'LH008', MESSAGE = 'job moved';",
              "            EXIT;"),),
        (_BESIDE + "test_an_operator_who_saw_a_pending_job_meets_the_claim_beside_it",),
    ),
    Mutant(
        "operator-unlocked",
        "Operators do not see a claim that commits beside them: they do not lock the row by which the job waits.",
        (Edit(_SQL + "07_moving.sql",
              "AND seq = j.seq FOR UPDATE;\n                EXIT WHEN FOUND;\n                PERFORM FROM leasehold.scheduled",
              "AND seq = j.seq;\n                EXIT WHEN FOUND;\n                PERFORM FROM leasehold.scheduled"),),
        (_BESIDE + "test_an_operator_who_saw_a_pending_job_meets_the_claim_beside_it",),
    ),
    Mutant(
        "transfer-no-key",
        "A transfer does not take the lock of the job's key.",
        (Edit(_SQL + "07_moving.sql", "    IF v_lock IS NOT NULL THEN\n        PERFORM pg_advisory_xact_lock",
              "    IF false THEN\n        PERFORM pg_advisory_xact_lock"),),
        (_BESIDE + "test_a_transfer_waits_for_a_claim_that_decides_about_its_key",),
    ),
    Mutant(
        "transfer-early-epoch",
        "A transfer draws its epoch before it holds the key.",
        (Edit(_SQL + "07_moving.sql", "    SELECT lock INTO v_lock FROM leasehold.jobs WHERE id = p_id;\n",
              "    v_epoch := nextval('leasehold.epochs');\n    SELECT lock INTO v_lock FROM leasehold.jobs WHERE id = p_id;\n"),
         Edit(_SQL + "07_moving.sql", "j.seq, nextval('leasehold.epochs'), v_to.owner,", "j.seq, v_epoch, v_to.owner,")),
        (_BESIDE + "test_a_transfer_draws_its_epoch_once_it_holds_the_key",),
    ),
    Mutant(
        "woken-then-cancelled",
        "A job stays parked after the woken one before it was cancelled.",
        (Edit(_SQL + "07_moving.sql", "IF j.status = 'unfinished' AND j.lock IS NOT NULL THEN",
              "IF l.seq IS NOT NULL AND j.lock IS NOT NULL THEN"),),
        (_POSTGRES + "test_c28_a_woken_job_that_leaves_before_its_claim_wakes_the_next",),
    ),
    # Jobs behind tasks
    Mutant(
        "pass-over-keeps-key",
        "A job that is parked behind its task keeps those behind its lock key waiting.",
        (Edit(_SQL + "04_parking.sql", "            INSERT INTO leasehold.freed (lock) SELECT unnest(v_locks);\n", ""),),
        (_POSTGRES + "test_c57_behind_a_free_key_the_known_jobs_come_although_the_first_is_unknown",),
    ),
    Mutant(
        "pass-over-out-of-order",
        "What a job that is parked behind its task lets go comes behind the floors of the same claim.",
        (Edit(_SQL + "04_claiming.sql", "                v_known := '{}';\n                v_ranks := NULL;\n", ""),),
        (_POSTGRES + "test_c57_a_known_job_behind_a_key_keeps_its_place_among_the_others",
         _POSTGRES + "test_c57_the_next_behind_the_key_comes_whatever_was_claimed_before"),
    ),
    Mutant(
        "fast-claim-unknown",
        "The fast path of a claim grants a job whose task the claimer does not know.",
        (Edit(_SQL + "04_claiming_next.sql", "IF p_tasks IS NULL OR coalesce(j.task, '') = ANY (p_tasks) THEN", "IF true THEN"),),
        (_POSTGRES + "test_c58_one_at_a_time_in_order_whatever_was_claimed_before",),
    ),
    Mutant(
        "fast-claim-passes-lanes",
        "The fast path of a claim does not see what is parked behind tasks that it knows.",
        (Edit(_SQL + "04_claiming_next.sql", "        AND (NOT EXISTS (SELECT FROM leasehold.parked WHERE kind = 'task')\n",
              "        AND (true\n"),),
        (_POSTGRES + "test_c58_the_fast_path_sees_what_is_parked",),
    ),
    Mutant(
        "lanes-of-paused",
        "A claim takes jobs of a paused queue from behind their task.",
        (Edit(_SQL + "04_parking.sql", "v_queue = ANY (p_paused) OR v_queue <> ALL (p_queues)", "v_queue <> ALL (p_queues)"),),
        (_POSTGRES + "test_c58_a_paused_queue_keeps_what_is_parked",),
    ),
    Mutant(
        "late-in-a-lane",
        "A job that is being claimed from behind its task is cancelled as late.",
        (Edit(_SQL + "04_reclaiming.sql", "CONTINUE WHEN v_over OR NOT leasehold.leave(j);",
              "PERFORM leasehold.leave(j);\n        CONTINUE WHEN v_over;"),),
        ("tests/postgres/test_late_starts.py::test_what_somebody_has_just_taken_is_not_cancelled",),
    ),
    Mutant(
        "sqlite-pass-over-keeps-key",
        "On SQLite, a job that is parked behind its task keeps those behind its lock key waiting.",
        (Edit("stores/sqlite/claiming.py", "        yield from owning.wake(session, lock, queue)\n", "        pass\n"),),
        (_SQLITE + "test_c57_behind_a_free_key_the_known_jobs_come_although_the_first_is_unknown",),
    ),
    # PostgreSQL: the other paths of a verb
    Mutant(
        "add-alike-stall",
        "Several jobs that are added alike lose their stall deadline.",
        (Edit(_SQL + "03_adding.sql", "v_wish.lease_us, v_wish.stall_us, v_wish.parent", "v_wish.lease_us, NULL, v_wish.parent"),),
        (_POSTGRES + "test_c10_every_path_of_an_add_keeps_all_that_is_asked_for",),
    ),
    Mutant(
        "add-unlike-lease",
        "Jobs that are added with others unlike them lose the length of their lease.",
        (Edit(_SQL + "03_adding.sql", "coalesce(run_at, p_now + delay), lock, lease_us, stall_us,",
              "coalesce(run_at, p_now + delay), lock, NULL::bigint, stall_us,"),),
        (_POSTGRES + "test_c10_every_path_of_an_add_keeps_all_that_is_asked_for",),
    ),
    Mutant(
        "add-joined-priority",
        "A job that is added in a caller's transaction loses its priority.",
        (Edit("stores/postgres/transactions.py", "as_json(wishes(jobs)), SAVEPOINT,",
              "as_json([{**wish, 'priority': 0} for wish in wishes(jobs)]), SAVEPOINT,"),),
        (_POSTGRES + "test_c42_an_add_keeps_all_that_is_asked_for",),
    ),
    Mutant(
        "fast-claim-length",
        "The fast path of a claim forgets the length of lease that the job asks for.",
        (Edit(_SQL + "04_claiming_next.sql", "v_lasts := coalesce(p_lease_us, j.lease_us, p_default_us);",
              "v_lasts := coalesce(p_lease_us, p_default_us);"),),
        (_POSTGRES + "test_c15_every_path_of_a_claim_grants_the_length_that_counts",),
    ),
    Mutant(
        "fast-claim-history",
        "The fast path of a claim drops the attempt, the errors and the checkpoint.",
        (Edit(_SQL + "04_claiming_next.sql", "CASE WHEN j.others IS NOT NULL THEN ARRAY[j.others] END", "NULL::text[]"),),
        (_POSTGRES + "test_c16_every_path_of_a_claim_hands_over_what_is_kept_of_the_job",),
    ),
    Mutant(
        "renew-twice",
        "Of two renewals of one lease in one call, the earlier counts.",
        (Edit(_SQL + "05_owning.sql", "ORDER BY place, ord DESC", "ORDER BY place, ord"),),
        (_POSTGRES + "test_c20_every_path_of_a_renewal_moves_its_deadline_and_nothing_else",),
    ),
    Mutant(
        "progress-order",
        "Of two reports of one lease in one call, the earlier counts.",
        (Edit(_SQL + "05_owning.sql", "WITH ORDINALITY AS r(id, epoch, fraction, note, checkpoint, ord)\n",
              "WITH ORDINALITY AS r(id, epoch, fraction, note, checkpoint, ord) ORDER BY ord DESC\n"),),
        (_POSTGRES + "test_c21_every_path_of_a_report_keeps_it_and_holds_off_the_stall",),
    ),
    Mutant(
        "progress-note-joined",
        "A note that was reported in a transaction hides every later one.",
        (Edit(_SQL + "05_owning.sql", "note = CASE WHEN r.note IS NULL THEN c.note END\n", "note = c.note\n"),),
        (_POSTGRES + "test_c46_the_later_report_counts",),
    ),
    Mutant(
        "complete-uniques",
        "Of a batch of plain completions only the first gives its unique key back.",
        (Edit(_SQL + "06_settling.sql", "WHERE unique_key = ANY (v_uniques) AND seq = ANY (v_seqs);",
              "WHERE unique_key = v_uniques[1] AND seq = v_seqs[1];"),),
        (_POSTGRES + "test_c24_every_path_of_a_settlement_ends_its_lease_alike",),
    ),
    Mutant(
        "joined-delay",
        "A settlement in a caller's transaction forgets its delay.",
        (Edit(_SQL + "08_fences.sql", "s.outcome, s.result, s.error, s.retry, s.delay, s.fingerprint, s.followed_by, true,",
              "s.outcome, s.result, s.error, s.retry, 0, s.fingerprint, s.followed_by, true,"),),
        (_POSTGRES + "test_c42_a_settlement_does_what_it_does_outside",),
    ),
    Mutant(
        "complete-waited",
        "A plain completion that waited for a renewal is taken for done.",
        (Edit("stores/postgres/owning.py", "left = [number for number in left if number + 1 not in done]", "left = []"),),
        (_BESIDE + "test_a_batch_of_completions_that_had_to_wait_for_a_renewal_is_done",),
    ),
    Mutant(
        "batch-waits",
        "A batch waits as a whole for the one row of it that is locked.",
        (Edit("stores/postgres/owning.py", "BATCH_PATIENCE_MS if parts and len(items) > 1 else PATIENCE_MS",
              "PATIENCE_MS"),),
        (_BESIDE + "test_of_a_batch_only_what_collides_waits",),
    ),
    Mutant(
        "pause-fast-claim",
        "The fast path of a claim takes from a paused queue.",
        (
            Edit(
                _SQL + "04_claiming_next.sql",
                "SELECT NOT EXISTS (SELECT FROM leasehold.queues WHERE name = v_queue AND paused_at IS NOT NULL)\n",
                "SELECT true\n",
            ),
        ),
        (_POSTGRES + "test_c49_a_claim_takes_nothing_from_a_paused_queue",),
    ),
    Mutant(
        "pause-fast-claim-unseen",
        "The fast path of a claim does not look whether its queue is paused.",
        (Edit(_SQL + "04_claiming_next.sql", "        OR EXISTS (SELECT FROM leasehold.queues WHERE paused_at IS NOT NULL)\n", ""),),
        (_POSTGRES + "test_c49_a_claim_takes_nothing_from_a_paused_queue",),
    ),
    Mutant(
        "fast-claim-lanes-unseen",
        "The fast path of a claim does not look whether anything is parked behind a task.",
        (Edit(_SQL + "04_claiming_next.sql", "        EXISTS (SELECT FROM leasehold.parked WHERE kind = 'task')\n        OR", "       "),),
        (_POSTGRES + "test_c58_the_fast_path_sees_what_is_parked",),
    ),
    Mutant(
        "pause-floor",
        "A claim takes from a paused queue of which its client keeps a floor.",
        (Edit(_SQL + "04_claiming.sql", "            CONTINUE WHEN p_floor_queues[v_at] = ANY (v_paused);\n", ""),),
        (_POSTGRES + "test_c49_a_claim_takes_nothing_from_a_paused_queue",),
    ),
    Mutant(
        "pause-waits",
        "A claim that waits on SQLite takes the write lock again and again beside a paused queue.",
        (Edit("stores/sqlite/reading.py", "(yield one(session.sql.queues))} - paused\n", "(yield one(session.sql.queues))}\n"),),
        ("tests/sqlite/test_pausing.py::test_a_claim_that_waits_beside_a_paused_queue_is_not_busy",),
    ),
    Mutant(
        "operator-meets-owner",
        "An operator does not wait for the settlement of the owner beside it.",
        (Edit(_SQL + "07_moving.sql", "WHERE y.id = p_id FOR UPDATE OF x;", "WHERE y.id = p_id;"),
         Edit(_SQL + "07_moving.sql", "FROM leasehold.jobs AS x WHERE x.id = p_id FOR UPDATE;",
              "FROM leasehold.jobs AS x WHERE x.id = p_id;")),
        (_BESIDE + "test_an_operator_who_saw_a_running_job_meets_the_settlement_beside_it",),
    ),
    Mutant(
        "replayed-twice",
        "Two replays at the same moment are both done.",
        (Edit(_SQL + "07_moving.sql", "FROM leasehold.jobs AS x WHERE x.id = p_id FOR UPDATE;",
              "FROM leasehold.jobs AS x WHERE x.id = p_id;"),),
        (_BESIDE + "test_of_two_replays_of_one_job_one_is_done",),
    ),
    Mutant(
        "advanced-twice",
        "Two claims that find another server advance the epochs one after the other.",
        (Edit(_SQL + "02_epochs.sql", "    IF v_known THEN\n", "    IF false THEN\n"),),
        (_BESIDE + "test_of_two_claims_that_find_another_server_one_advances_the_epochs",),
    ),
    Mutant(
        "operator-ended",
        "Operators take what a REPEATABLE READ settlement left for a lease.",
        (Edit(_SQL + "07_moving.sql", "ON y.seq = x.seq AND y.epoch < x.epoch\n            WHERE y.id = p_id FOR UPDATE OF x",
              "ON y.seq = x.seq\n            WHERE y.id = p_id FOR UPDATE OF x"),
         Edit(_SQL + "07_moving.sql", "EXIT WHEN l.epoch > j.epoch OR", "EXIT WHEN l.seq IS NOT NULL OR")),
        (_SNAPSHOTS + "test_after_a_settlement_at_repeatable_read_operators_find_the_job_as_it_is",),
    ),
    Mutant(
        "requeue-settled",
        "A job that its owner has just released is requeued again.",
        (Edit(_SQL + "07_moving.sql", "        OR p_verb = 'requeue' AND l.seq IS NULL\n", ""),),
        (_BESIDE + "test_an_operator_who_saw_a_running_job_meets_the_settlement_beside_it",
         _SNAPSHOTS + "test_after_a_settlement_at_repeatable_read_operators_find_the_job_as_it_is"),
    ),
    Mutant(
        "transfer-ended-key",
        "A transfer stumbles over the key of a lease that a REPEATABLE READ settlement has ended.",
        (Edit(_SQL + "07_moving.sql", "        DELETE FROM leasehold.leases WHERE lock = j.lock;\n", ""),),
        (_SNAPSHOTS + "test_a_key_that_was_freed_at_repeatable_read_can_be_taken_at_once",),
    ),
    # PostgreSQL: lost sessions, and the order of locks
    Mutant(
        "joined-last",
        "Of several transactions of a lease, only the last is looked at when one of them was lost.",
        (Edit("lease/record.py", "[one for one in joined if one.is_lost()] or joined", "joined[-1:]"),),
        (_LOST + "test_a_refusal_is_found_beside_a_later_transaction_that_has_committed",),
    ),
    Mutant(
        "joined-any",
        "One lost transaction that was rolled back is taken for all of them.",
        (Edit("lease/record.py", "and all(verbs.is_rolled_back", "and any(verbs.is_rolled_back"),),
        (_LOST + "test_a_lost_commit_is_not_refused_because_of_another_session_that_was_ended",),
    ),
    Mutant(
        "hold-keeps-job",
        "An operator who has missed a claim waits for its lease with the row of the job in hand.",
        (
            Edit(
                _SQL + "07_moving.sql",
                "RAISE EXCEPTION USING ERRCODE = 'LH008', MESSAGE = 'job moved';",
                "NULL;",
            ),
        ),
        (_ORDER + "test_an_operator_who_saw_no_lease_lets_go_of_the_job_before_it_waits_for_one",),
    ),
    Mutant(
        "late-waits",
        "A claim that cancels a late job waits for another claim that moves it.",
        (
            Edit(
                _SQL + "07_moving.sql",
                "leasehold.scheduled WHERE run_at = j.run_at AND seq = j.seq FOR UPDATE SKIP LOCKED",
                "leasehold.scheduled WHERE run_at = j.run_at AND seq = j.seq FOR UPDATE",
            ),
        ),
        (_ORDER + "test_a_claim_does_not_wait_for_who_moves_a_late_job",),
    ),
    Mutant(
        "process-two-looks",
        "A process is forgotten by a look that is older than its first lease.",
        (
            Edit(
                _SQL + "07_pruning.sql",
                "    DELETE FROM leasehold.processes WHERE ctid = ANY (ARRAY(\n        SELECT p.ctid",
                "    PERFORM set_config('leasehold.held', coalesce((SELECT array_agg(DISTINCT process)::text\n"
                "        FROM leasehold.leases WHERE process IS NOT NULL), '{}'), true);\n"
                "    DELETE FROM leasehold.processes WHERE ctid = ANY (ARRAY(\n        SELECT p.ctid",
            ),
            Edit(
                _SQL + "07_pruning.sql",
                "ARRAY(SELECT DISTINCT l.process FROM leasehold.leases AS l WHERE l.process IS NOT NULL)",
                "current_setting('leasehold.held')::bigint[]",
            ),
        ),
        (_RETENTION + "test_a_process_that_claims_its_first_job_during_a_prune_is_kept",),
    ),
    Mutant(
        "process-of-worker",
        "The process of an idle worker is forgotten while that may be claiming.",
        (
            Edit(
                _SQL + "07_pruning.sql",
                "SELECT w.process::jsonb FROM leasehold.workers AS w WHERE w.process IS NOT NULL",
                "SELECT NULL::jsonb WHERE false",
            ),
        ),
        (_RETENTION + "test_the_process_of_a_worker_that_reports_is_kept",),
    ),
    # PostgreSQL: epochs and upkeep
    Mutant(
        "epochs-setval",
        "The next epoch is set with `setval`, which does not keep others from drawing: epochs are issued twice.",
        (Edit(_SQL + "02_epochs.sql", "    ALTER SEQUENCE leasehold.epochs NO CYCLE;\n", ""),
         Edit(_SQL + "02_epochs.sql",
              "EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', 'leasehold.epochs'::regclass, v_next);",
              "PERFORM setval('leasehold.epochs', v_next, false);")),
        (_BESIDE + "test_no_epoch_is_drawn_while_the_next_one_is_set",),
    ),
    Mutant(
        "prune-replayed",
        "A prune removes a job that was replayed meanwhile.",
        (Edit(_SQL + "07_pruning.sql", "WHERE seq = ANY (v_seqs) AND status <> 'unfinished' AND NOT narrow AND finished_at < v_before",
              "WHERE seq = ANY (v_seqs)"),),
        (_BESIDE + "test_a_prune_leaves_a_job_that_was_replayed_after_it_looked",),
    ),
    Mutant(
        "recovery-forgets",
        "Recovery forgets a process one of whose leases was locked.",
        (Edit(_SQL + "04_reclaiming.sql",
              "WHERE p.id = ANY (p_gone) AND NOT EXISTS (SELECT FROM leasehold.leases WHERE process = p.id);",
              "WHERE p.id = ANY (p_gone);"),),
        (_BESIDE + "test_recovery_remembers_a_process_one_of_whose_leases_was_locked",),
    ),
    # SQLite
    Mutant(
        "sqlite-batch-process",
        "A batch claim drops the process.",
        (Edit("stores/sqlite/claiming.py", "first_epoch, owner, reason, claim_id, number, now,",
              "first_epoch, owner, reason, claim_id, None, now,"),),
        (_SQLITE + "test_c37_every_path_of_a_claim_records_the_process",),
    ),
    Mutant(
        "sqlite-batch-claim-id",
        "A batch claim drops the claim id.",
        (Edit("stores/sqlite/claiming.py", "first_epoch, owner, reason, claim_id, number, now,",
              "first_epoch, owner, reason, None, number, now,"),),
        (_SQLITE + "test_c18_every_path_of_a_claim_keeps_what_it_was_given",),
    ),
    Mutant(
        "sqlite-unlike-process",
        "A claim of jobs that are not alike drops the process.",
        (Edit("stores/sqlite/claiming.py", "_lease_row(row[2], row[3], grant, number)",
              "_lease_row(row[2], row[3], grant, None if len(taken) > 1 else number)"),),
        (_SQLITE + "test_c37_every_path_of_a_claim_records_the_process",),
    ),
    Mutant(
        "sqlite-batch-takes-more",
        "A batch claim deletes the rows of jobs that it does not take.",
        (Edit("stores/sqlite/claiming.py", "len(gone) > 1 and len(gone) == len(first) and", "len(gone) > 1 and"),),
        (_SQLITE + "test_c14_parked_jobs_hold_up_nobody",),
    ),
    Mutant(
        "sqlite-one-result",
        "Two completions in one batch get one result.",
        (Edit("stores/sqlite/owning.py", "if len({row[:2] for row in rows}) == 1:", "if len(rows) > 1:"),),
        (_SQLITE + "test_c24_each_completion_of_a_batch_keeps_its_own_result",),
    ),
    Mutant(
        "sqlite-unlike-length",
        "Of several jobs that are claimed together, all get the lease of the last.",
        (Edit("stores/sqlite/claiming.py", "kinds == {(reason, lasts, None, None)}:",
              "{kind[2:] for kind in kinds} == {(None, None)}:"),),
        (_SQLITE + "test_c15_every_path_of_a_claim_grants_the_length_that_counts",),
    ),
    Mutant(
        "sqlite-batch-keys",
        "Of a batch of completions only the first frees its lock key.",
        (Edit("stores/sqlite/owning.py", "        if row[4] is not None:\n            yield from wake(session, row[4])\n        if session.trace:\n"
              "            yield from session.record(now, \"completed\"",
              "        if row is completed[0][1] and row[4] is not None:\n            yield from wake(session, row[4])\n        if session.trace:\n"
              "            yield from session.record(now, \"completed\""),),
        (_SQLITE + "test_c24_every_path_of_a_settlement_ends_its_lease_alike",),
    ),
    Mutant(
        "sqlite-early-clock",
        "The clock is read before the write lock is held.",
        (Edit("stores/sqlite/database.py",
              'connection.execute("BEGIN IMMEDIATE")\n            '
              "value = drive(connection, session.begin(program(session, self._clock.now(), *args, **options)))",
              "now = self._clock.now()\n            "
              'connection.execute("BEGIN IMMEDIATE")\n            '
              "value = drive(connection, session.begin(program(session, now, *args, **options)))"),),
        ("tests/sqlite/test_write_lock.py::test_a_lease_begins_when_the_write_lock_is_held",),
    ),
    Mutant(
        "sqlite-refusal-joins",
        "A refusal in a caller's transaction is recorded in it, and rolled back with it.",
        (Edit("stores/sqlite/programs.py", "if self.defers and kind in _REFUSALS:", "if False:"),),
        ("tests/traps/test_sqlite_traps.py::test_trap_16_a_refusal_in_a_callers_transaction_is_recorded_apart",),
    ),
    Mutant(
        "sqlite-lost-record",
        "A pending record of a refusal is lost with the transaction that was to record it.",
        (Edit("stores/sqlite/programs.py",
              "        self.recorded = len(self.deferred)\n"
              "        yield many(self.sql.insert_event, [self.deferred[i] for i in range(self.recorded)])\n",
              "        yield many(self.sql.insert_event, [self.deferred.popleft() for _ in range(len(self.deferred))])\n"),),
        ("tests/sqlite/test_write_lock.py::test_a_pending_refusal_outlives_a_transaction_that_fails",),
    ),
    # Worker and recovery
    Mutant(
        "slow-claim",
        "The deadline of a slow claim runs from its reply.",
        (Edit("worker/run.py", "self.deadline_us = sent_us + lasts if now - sent_us <= lasts - third else now + third",
              "self.deadline_us = now + lasts"),),
        ("tests/worker/test_renewing.py::test_the_deadline_of_a_slow_claim_runs_from_its_sending",),
    ),
    Mutant(
        "thread-run-again",
        "A thread that ended well past its deadline, and whose job nobody took, is run again.",
        (Edit("worker/runner.py", "elif run.waits or run.task.kind is not Kind.THREAD:", "elif True:"),),
        ("tests/worker/test_renewing.py::"
         "test_trap_19_nobody_acknowledges_until_the_deadline_and_the_handler_is_told",),
    ),
    Mutant(
        "gone-eperm",
        "A process of another user (EPERM) counts as gone.",
        (Edit("liveness.py", "        pass  # it exists and belongs to another user\n", "        return True\n"),),
        ("tests/core/test_liveness.py::test_a_process_of_another_user_is_not_gone",),
    ),
    Mutant(
        "gone-main-thread",
        "A process whose main thread has ended counts as gone.",
        (Edit("liveness.py", '(status in "ZX" and _threads(process.pid) <= 1)', 'status in "ZX"'),),
        ("tests/core/test_liveness.py::test_a_process_whose_main_thread_has_ended_is_not_gone",),
    ),
    # Transfers, and their pick-up
    Mutant(
        "lease-unmarked",
        "On PostgreSQL, a lease that its owner asks for is not picked up.",
        (Edit("stores/postgres/claiming.py", "if not picked_up:\n", "if False:\n"),),
        (_POSTGRES + "test_c61_its_owner_picks_a_transfer_up",),
    ),
    Mutant(
        "sqlite-lease-unmarked",
        "On SQLite, a lease that its owner asks for is not picked up.",
        (Edit("stores/sqlite/store.py", "if not picked_up and not is_inside(self.database.key):", "if False:"),),
        (_SQLITE + "test_c61_its_owner_picks_a_transfer_up",),
    ),
    Mutant(
        "unmarked-reclaim",
        "On PostgreSQL, an expiry before the pick-up counts a reclaim.",
        (Edit(_SQL + "04_reclaiming.sql", "reclaims = j.reclaims + l.picked_up::integer", "reclaims = j.reclaims + 1"),),
        (_POSTGRES + "test_c36_a_transfer_that_was_not_picked_up_counts_no_reclaim",),
    ),
    Mutant(
        "sqlite-unmarked-reclaim",
        "In memory and on SQLite, an expiry before the pick-up counts a reclaim.",
        (Edit("core/lifecycle.py", "    if not picked_up:\n", "    if False:\n"),),
        (_SQLITE + "test_c36_a_transfer_that_was_not_picked_up_counts_no_reclaim",),
    ),
    Mutant(
        "accept-owner",
        "On PostgreSQL, a transfer is accepted under another owner's name.",
        (Edit(_SQL + "10_workers.sql", "AND owner = p_owner AND (NOT picked_up", "AND (NOT picked_up"),),
        (_POSTGRES + "test_c62_a_wrong_name_or_epoch_is_left_out",),
    ),
    Mutant(
        "accept-epoch",
        "On PostgreSQL, a transfer is accepted under an epoch that has ended.",
        (Edit(_SQL + "10_workers.sql", "WHERE seq = t.seq AND epoch = t.epoch AND owner", "WHERE seq = t.seq AND owner"),
         Edit(_SQL + "10_workers.sql", "WHERE g.id = t.id AND g.epoch = t.epoch;", "WHERE g.id = t.id;")),
        (_POSTGRES + "test_c62_what_has_moved_since_is_left_out",),
    ),
    Mutant(
        "accept-twice",
        "Two threads of one worker's name both accept a transfer.",
        (Edit(_SQL + "10_workers.sql", " AND (NOT picked_up OR claim_id = p_claim_id);", ";"),),
        (_PICKING_UP + "test_of_two_accepts_the_later_one_waits_for_the_first",),
    ),
    Mutant(
        "sqlite-accept-stale",
        "On SQLite, a transfer is accepted under a stale name or epoch.",
        (Edit("stores/sqlite/moving.py", "if (held.lease_epoch, held.owner) != (epoch, owner):",
              "if held.lease_epoch is None:"),),
        (_SQLITE + "test_c62_a_wrong_name_or_epoch_is_left_out",),
    ),
    Mutant(
        "retire-at-once",
        "A worker retires beside a transfer to it, and does not find it.",
        (Edit(_SQL + "07_moving.sql", "WHERE name = p_to AND leasehold.is_alive(seen_at, p_now) FOR KEY SHARE;",
              "WHERE name = p_to AND leasehold.is_alive(seen_at, p_now);"),),
        (_PICKING_UP + "test_a_worker_that_retires_waits_for_a_transfer_to_it",),
    ),
    Mutant(
        "transfer-goes-back",
        "A full worker hands back what was transferred to it, as it does what it has claimed ahead.",
        (Edit("worker/run.py", "        return self.state is WAITING and not self.transferred\n",
              "        return self.state is WAITING\n"),),
        ("tests/worker/test_presence.py::test_a_full_worker_keeps_what_is_transferred_to_it_until_a_slot_is_free",),
    ),
    Mutant(
        "report-wakes-claims",
        "On SQLite, a claim that waits takes the write lock whenever another process commits.",
        (Edit("stores/sqlite/store.py", "                if ready:\n                    return True\n",
              "                return True\n"),),
        ("tests/sqlite/test_workers.py::test_a_report_makes_no_waiting_claim_write",),
    ),
)  # fmt: skip  # an edit reads best with its two texts below each other


class Verdict(NamedTuple):
    """How the tests of a mutant ended: the first that failed, or why none did."""

    killed: bool
    by: str
    seconds: float


def applied(edits: tuple[Edit, ...], package: Path) -> list[str]:
    """Make *edits* in a copy of the package; return a sentence for each that does not apply."""
    problems = []
    for file, text, replacement in edits:
        path = package / file
        found = path.read_text().count(text) if path.exists() else 0
        if found != 1:
            problems.append(f"{file} has the text of this edit {found} times instead of once: {text.strip()[:80]!r}")
            continue
        path.write_text(path.read_text().replace(text, replacement))
    return problems


def tried(edits: tuple[Edit, ...], tests: list[str]) -> Verdict:
    """Run *tests* on a copy of the package that has *edits*."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="leasehold-mutant-") as folder:
        package = Path(folder) / "leasehold"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        if problems := applied(edits, package):
            return Verdict(False, "; ".join(problems), 0)
        seen = _python(folder, "-c", "import leasehold; print(leasehold.__file__)").stdout.strip()
        if Path(seen).parent != package:
            return Verdict(False, f"the tests would import {seen}, and not the copy", 0)
        try:
            run = _python(folder, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests)
        except subprocess.TimeoutExpired:
            return Verdict(False, f"its tests hang: no end after {LIMIT_SECONDS} s", time.monotonic() - began)
    seconds = time.monotonic() - began
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.M)
    if run.returncode == 1 and failed:
        return Verdict(True, failed[1].partition("::")[2], seconds)
    if run.returncode == 0:
        skipped = " (some were skipped)" if " skipped" in run.stdout else ""
        return Verdict(False, f"survived{skipped}", seconds)
    return Verdict(False, f"pytest exited with {run.returncode}: {run.stdout[-300:]}{run.stderr[-300:]}", seconds)


def _python(folder: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-P", *args],
        cwd=TOP,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def main(args: list[str] | None = None, table: tuple[Mutant, ...] = MUTANTS) -> int:
    """Try those mutants of *table* that were asked for, print the verdicts, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Apply known wrong edits to a copy of leasehold, and see that the named tests fail.",
        epilog="Exit code 1 if a mutant survives, if its tests hang, or if an edit no longer applies.",
    )
    parser.add_argument("--list", action="store_true", help="print the names and what is wrong with each, and exit")
    parser.add_argument("--only", action="append", metavar="NAME", help="try this mutant; may be repeated")
    asked = parser.parse_args(args)
    known = {mutant.name: mutant for mutant in table}
    if asked.list:
        for mutant in table:
            print(f"{mutant.name:22}  {mutant.wrong}")
        return 0
    if unknown := [name for name in asked.only or () if name not in known]:
        parser.error(f"no mutant is named {unknown[0]!r}; see --list")
    mutants = [known[name] for name in asked.only or known]
    row = "{:22}  {:8}  {:>7}  {}"
    print(row.format("mutant", "verdict", "seconds", "killed by"), flush=True)
    unchanged = tried((), sorted({test for mutant in mutants for test in mutant.tests}))
    green = unchanged.by == "survived"
    print(row.format("(none)", "green" if green else "RED", f"{unchanged.seconds:.1f}", "" if green else unchanged.by))
    alive = 0
    for mutant in mutants:
        verdict = tried(mutant.edits, list(mutant.tests))
        alive += not verdict.killed
        shown = "killed" if verdict.killed else "SURVIVED"
        print(row.format(mutant.name, shown, f"{verdict.seconds:.1f}", verdict.by), flush=True)
    print(f"{len(mutants) - alive} of {len(mutants)} killed")
    return int(alive > 0 or not green)


if __name__ == "__main__":
    sys.exit(main())
