-- Every statement of the SQLite store but the schema, by name. Comments are stripped before use, and the tables are
-- qualified as main's. {spec} stands for the columns of `rows.SpecRow`, as j's.
--
-- Long on purpose: it is a list in which each statement is found by its name.

-- name: lock
-- Take the file's only write lock, and learn what holds for the store. As the first statement in a caller's
-- transaction this must be a write: a SELECT opens no transaction in Python's default mode, and compares nothing at COMMIT.
UPDATE leasehold_store SET schema_version = schema_version WHERE one = 1
RETURNING schema_version, id, last_epoch;

-- name: installed
SELECT count(*) FROM main.sqlite_master WHERE type = 'table' AND name = 'leasehold_store';

-- name: version
SELECT schema_version FROM leasehold_store;

-- name: set_version
UPDATE leasehold_store SET schema_version = ?;

-- name: create_store
INSERT INTO leasehold_store (one, schema_version, id, last_epoch) VALUES (1, ?, ?, ?);

-- name: last_epoch
SELECT last_epoch FROM leasehold_store;

-- name: set_last_epoch
UPDATE leasehold_store SET last_epoch = ? WHERE one = 1;

-- name: store_id
SELECT id FROM leasehold_store;


-- name: known_ids
SELECT id FROM leasehold_jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: known_unique
SELECT unique_key, id FROM leasehold_jobs
WHERE unique_key IN (SELECT value FROM json_each(?)) AND unique_key IS NOT NULL AND status = 'unfinished';

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM leasehold_jobs;

-- name: insert_job
INSERT INTO leasehold_jobs (
    seq, id, chosen, task, queue, priority, run_at, lock, unique_key, lease_us, stall_us, start_within_us, parent, max_errors, max_reclaims, options,
    meta, payload, created_at, updated_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_ready
INSERT INTO leasehold_ready (queue, rank, run_at, seq) VALUES (?, ?, ?, ?);

-- name: delete_ready
DELETE FROM leasehold_ready WHERE queue = ? AND rank = ? AND run_at = ? AND seq = ?;

-- name: delete_first_ready
-- The same for the first of a queue, up to one of them. Without it, a claim and completion of 100 is 1.08 times as many
-- instructions (valgrind --tool=cachegrind, claim(limit=100) and settle).
DELETE FROM leasehold_ready WHERE queue = ? AND (rank, run_at, seq) <= (?, ?, ?);

-- name: insert_scheduled
INSERT INTO leasehold_scheduled (run_at, seq, queue) VALUES (?, ?, ?);

-- name: delete_scheduled
DELETE FROM leasehold_scheduled WHERE run_at = ? AND seq = ?;

-- name: insert_start
INSERT INTO leasehold_starts (start_by, seq) VALUES (?, ?);

-- name: late
-- The jobs to be looked at, and whether they were never claimed. The seq of one that was pruned may be another job's now.
SELECT s.start_by, s.seq, j.id, s.start_by = j.run_at + j.start_within_us AND j.epoch = 0 AND j.status = 'unfinished' AND l.seq IS NULL
FROM leasehold_starts AS s LEFT JOIN leasehold_jobs AS j ON j.seq = s.seq LEFT JOIN leasehold_leases AS l ON l.seq = s.seq
WHERE s.start_by <= ?
ORDER BY s.start_by, s.seq LIMIT ?;

-- name: not_started
UPDATE leasehold_jobs SET last_error = ? WHERE seq = ?;

-- name: delete_start
DELETE FROM leasehold_starts WHERE start_by = ? AND seq = ?;

-- name: insert_parked
INSERT INTO leasehold_parked (kind, behind, queue, rank, run_at, seq, parked_by) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: delete_parked
DELETE FROM leasehold_parked WHERE kind = ? AND behind = ? AND queue = ? AND rank = ? AND run_at = ? AND seq = ?;


-- name: look
-- What a claim looks at first, in one statement. A seek each, whatever the number of jobs.
SELECT min(coalesce((SELECT min(expires_at) FROM leasehold_leases), 4611686018427387904),  -- clock.FAR
           coalesce((SELECT min(stalls_at) FROM leasehold_leases WHERE stalls_at IS NOT NULL), 4611686018427387904),
           coalesce((SELECT min(start_by) FROM leasehold_starts), 4611686018427387904),
           coalesce((SELECT min(run_at) FROM leasehold_scheduled), 4611686018427387904)),
       (SELECT min(queue) FROM leasehold_ready),
       (SELECT max(queue) FROM leasehold_ready),
       EXISTS (SELECT 1 FROM leasehold_processes WHERE id = ?),
       EXISTS (SELECT 1 FROM leasehold_queues WHERE paused_at IS NOT NULL),
       EXISTS (SELECT 1 FROM leasehold_parked WHERE kind = 'task'),
       last_epoch
FROM leasehold_store WHERE one = 1;

-- name: promote
INSERT INTO leasehold_ready (queue, rank, run_at, seq)
SELECT s.queue, -j.priority, s.run_at, s.seq
FROM leasehold_scheduled AS s JOIN leasehold_jobs AS j USING (seq)
WHERE s.run_at <= ?
ORDER BY s.run_at, s.seq LIMIT ?;

-- name: promoted
-- Exactly the rows that `promote` has copied: both take the first ones of the same order.
DELETE FROM leasehold_scheduled WHERE (run_at, seq) IN (
    SELECT run_at, seq FROM leasehold_scheduled WHERE run_at <= ? ORDER BY run_at, seq LIMIT ?
);

-- name: queues
-- The queues that have something due, by one seek each instead of a scan.
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM leasehold_ready
    UNION ALL
    SELECT (SELECT min(queue) FROM leasehold_ready WHERE queue > queues.queue) FROM queues WHERE queue IS NOT NULL
)
SELECT queue FROM queues WHERE queue IS NOT NULL;

-- name: paused
SELECT name FROM leasehold_queues WHERE paused_at IS NOT NULL;

-- name: configured
SELECT name, paused_at, paused_by, paused_note FROM leasehold_queues ORDER BY name;

-- name: pause
INSERT INTO leasehold_queues (name, paused_at, paused_by, paused_note) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_note = excluded.paused_note;

-- name: resume
DELETE FROM leasehold_queues WHERE name = ? RETURNING name;

-- name: candidates
-- CROSS JOIN keeps the order of the loops: the first rows of `ready`, each with its job.
SELECT r.rank, r.run_at, r.seq, j.reason, j.attempt, j.errors, c.checkpoint, {spec}
FROM leasehold_ready AS r CROSS JOIN leasehold_jobs AS j ON j.seq = r.seq
LEFT JOIN leasehold_checkpoints AS c ON c.seq = r.seq
WHERE r.queue = ?
ORDER BY r.rank, r.run_at, r.seq
LIMIT ?;

-- name: heads
-- The first of a queue without their jobs, where several queues are merged and most of what is looked at stays.
SELECT rank, run_at, seq FROM leasehold_ready WHERE queue = ? ORDER BY rank, run_at, seq LIMIT ?;

-- name: parked_lanes
-- The tasks that have something parked behind them, and the queues of that, by one seek each.
WITH RECURSIVE lanes (task, queue) AS (
    SELECT (SELECT min(behind) FROM leasehold_parked WHERE kind = 'task'),
           (SELECT queue FROM leasehold_parked WHERE kind = 'task' ORDER BY behind, queue LIMIT 1)
    UNION ALL
    SELECT (SELECT behind FROM leasehold_parked WHERE kind = 'task' AND (behind, queue) > (lanes.task, lanes.queue)
            ORDER BY behind, queue LIMIT 1),
           (SELECT queue FROM leasehold_parked WHERE kind = 'task' AND (behind, queue) > (lanes.task, lanes.queue)
            ORDER BY behind, queue LIMIT 1)
    FROM lanes WHERE task IS NOT NULL
)
SELECT task, queue FROM lanes WHERE task IS NOT NULL;

-- name: parked_heads
-- The same of those behind a task.
SELECT rank, run_at, seq FROM leasehold_parked WHERE kind = 'task' AND behind = ? AND queue = ?
ORDER BY rank, run_at, seq LIMIT ?;

-- name: chosen
-- A job that waits has the place of its row.
SELECT -j.priority, j.run_at, j.seq, j.reason, j.attempt, j.errors,
       (SELECT checkpoint FROM leasehold_checkpoints AS c WHERE c.seq = j.seq),
       {spec}
FROM json_each(?) AS wanted
CROSS JOIN leasehold_jobs AS j ON j.seq = wanted.value
ORDER BY -j.priority, j.run_at, j.seq;

-- name: held_locks
SELECT lock FROM leasehold_leases WHERE lock IN (SELECT value FROM json_each(?));

-- name: lock_holder
SELECT j.id, l.epoch, l.seq FROM leasehold_leases AS l JOIN leasehold_jobs AS j USING (seq) WHERE l.lock = ?;

-- name: insert_lease
INSERT INTO leasehold_leases (
    seq, epoch, owner, reason, claim_id, process, lock, granted_at, expires_at, lease_us, stalls_at, stall_us, updated_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_leases
-- The same for many that differ in their jobs alone; their epochs follow each other. One statement for all of them:
-- Python lets other threads run at each row that it writes, and then waits for its turn again.
-- What it gains is not settled: without it 0.77 to 0.99 in three sittings that disagree
-- (python benchmarks/core.py --only "sqlite: claim + complete, batches").
INSERT INTO leasehold_leases (
    epoch, owner, reason, claim_id, process, granted_at, expires_at, lease_us, updated_at, seq
) SELECT ? + key, ?, ?, ?, ?, ?, ?, ?, ?, value FROM json_each(?);

-- name: insert_transfer
-- The same for one that was transferred: its owner has yet to pick it up.
INSERT INTO leasehold_leases (
    seq, epoch, owner, reason, claim_id, process, lock, granted_at, expires_at, lease_us, stalls_at, stall_us, updated_at,
    picked_up
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0);

-- name: transfers
SELECT j.id, l.epoch FROM leasehold_leases AS l CROSS JOIN leasehold_jobs AS j ON j.seq = l.seq
WHERE l.owner = ? AND l.picked_up = 0 ORDER BY l.epoch;

-- name: pick_up
UPDATE leasehold_leases SET picked_up = 1 WHERE seq = ?;

-- name: accept
UPDATE leasehold_leases
SET picked_up = 1, claim_id = :claim_id, process = :process, expires_at = :now + lease_us, stalls_at = :now + stall_us,
    renewed_at = :now
WHERE seq = :seq;

-- name: delete_leases
DELETE FROM leasehold_leases WHERE seq IN (SELECT value FROM json_each(?));

-- name: delete_lease
DELETE FROM leasehold_leases WHERE seq = ?;

-- name: insert_process
INSERT INTO leasehold_processes (id, host, boot, namespace, pid, started) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: processes
SELECT host, boot, namespace, pid, started FROM leasehold_processes ORDER BY id;

-- name: delete_process
DELETE FROM leasehold_processes WHERE id = ?;

-- name: delete_idle_processes
DELETE FROM leasehold_processes WHERE id NOT IN (SELECT process FROM leasehold_leases WHERE process IS NOT NULL);

-- name: report
INSERT INTO leasehold_workers (name, given_name, process, queues, tasks, concurrency, running, started_at, seen_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET given_name = excluded.given_name, process = excluded.process, queues = excluded.queues, tasks = excluded.tasks,
    concurrency = excluded.concurrency, running = excluded.running, seen_at = excluded.seen_at;

-- name: retire
DELETE FROM leasehold_workers WHERE name = ?;

-- name: workers
SELECT name, given_name, process, queues, tasks, concurrency, running, started_at, seen_at FROM leasehold_workers
ORDER BY name;

-- name: named_workers
-- The workers that a name may stand for, and when they were seen last. They are few.
SELECT name, seen_at FROM leasehold_workers WHERE name = :name OR given_name = :name;

-- name: forgettable_workers
SELECT EXISTS (SELECT 1 FROM leasehold_workers WHERE seen_at <= ?);

-- name: forget_workers
DELETE FROM leasehold_workers WHERE seen_at <= ?;


-- name: holder
-- Who holds a job. Without a lease the epoch is null, and no epoch may write.
SELECT j.id, j.seq, l.epoch, l.owner, l.lock, l.lease_us, l.stall_us
FROM leasehold_jobs AS j LEFT JOIN leasehold_leases AS l ON l.seq = j.seq
WHERE j.id = ?;

-- name: holders
-- The same for each of some jobs.
SELECT j.id, j.seq, l.epoch, l.owner, l.lock, l.lease_us, l.stall_us
FROM json_each(?) AS wanted
CROSS JOIN leasehold_jobs AS j ON j.id = wanted.value
LEFT JOIN leasehold_leases AS l ON l.seq = j.seq;

-- name: renew
UPDATE leasehold_leases SET expires_at = ?, picked_up = 1, renewed_at = ? WHERE seq = ?;

-- name: progress
UPDATE leasehold_leases
SET progress = coalesce(?, progress), note = coalesce(?, note), updated_at = ?, stalls_at = ? WHERE seq = ?;

-- name: put_checkpoint
INSERT INTO leasehold_checkpoints (seq, checkpoint) VALUES (?, ?)
ON CONFLICT (seq) DO UPDATE SET checkpoint = excluded.checkpoint;

-- name: complete
-- Before the lease is deleted: a job keeps what is known of the ownership that completed it.
UPDATE leasehold_jobs AS j
SET status = 'done', result = ?, last_error = NULL, settlement = ?, updated_at = ?, finished_at = ?,
    (epoch, reason, owner, granted_at, expires_at, progress, note) = (
        SELECT l.epoch, l.reason, l.owner, l.granted_at, l.expires_at, coalesce(l.progress, j.progress),
               coalesce(l.note, j.note)
        FROM leasehold_leases AS l WHERE l.seq = j.seq
    )
WHERE j.seq = ?;

-- name: complete_alike
-- The same for many jobs with equal settlements. Not for one: with json_each in place of the seq, 100 completions with
-- results of their own are 1.3 times as many instructions.
UPDATE leasehold_jobs AS j
SET status = 'done', result = ?, last_error = NULL, settlement = ?, updated_at = ?, finished_at = ?,
    (epoch, reason, owner, granted_at, expires_at, progress, note) = (
        SELECT l.epoch, l.reason, l.owner, l.granted_at, l.expires_at, coalesce(l.progress, j.progress),
               coalesce(l.note, j.note)
        FROM leasehold_leases AS l WHERE l.seq = j.seq
    )
WHERE j.seq IN (SELECT value FROM json_each(?));

-- name: back
-- What the end of a lease leaves on the job, other than a completion.
UPDATE leasehold_jobs
SET status = :status, epoch = :epoch, reason = :reason, attempt = :attempt, errors = :errors, reclaims = :reclaims,
    last_error = :last_error, run_at = :run_at, progress = coalesce(:progress, progress), note = coalesce(:note, note),
    updated_at = :now, finished_at = :finished_at
WHERE seq = :seq;

-- name: parked_queues
-- The queues that have something parked behind a key, by one seek each.
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM leasehold_parked WHERE kind = 'lock' AND behind = :lock
    UNION ALL
    SELECT (SELECT min(queue) FROM leasehold_parked WHERE kind = 'lock' AND behind = :lock AND queue > queues.queue)
    FROM queues WHERE queue IS NOT NULL
)
SELECT queue FROM queues WHERE queue IS NOT NULL;

-- name: first_parked
SELECT rank, run_at, seq FROM leasehold_parked WHERE kind = 'lock' AND behind = ? AND queue = ?
ORDER BY rank, run_at, seq LIMIT 1;

-- name: standing
-- A job with its lease, if any: what a decision about its next step needs.
SELECT j.seq, j.id, j.status, j.queue, j.priority, j.run_at, j.lock, j.unique_key, j.max_errors, j.max_reclaims,
       j.attempt, j.errors, j.reclaims, j.epoch, j.reason, j.last_error, j.owner, j.granted_at, j.expires_at, j.settlement, j.finished_at,
       l.epoch, l.owner, l.reason, l.granted_at, l.expires_at, l.progress, l.note, j.narrow, l.claim_id, l.picked_up, j.task
FROM leasehold_jobs AS j LEFT JOIN leasehold_leases AS l ON l.seq = j.seq
WHERE j.id = ?;

-- name: expired
SELECT j.id FROM leasehold_leases AS l CROSS JOIN leasehold_jobs AS j ON j.seq = l.seq
WHERE l.expires_at <= ?
ORDER BY l.expires_at, l.seq LIMIT ?;

-- name: stalled
SELECT j.id FROM leasehold_leases AS l CROSS JOIN leasehold_jobs AS j ON j.seq = l.seq
WHERE l.stalls_at IS NOT NULL AND l.stalls_at <= ?
ORDER BY l.stalls_at, l.seq LIMIT ?;

-- name: leased_by_processes
-- A scan of the leases, for the rare moment at which a process is found dead.
SELECT j.id FROM leasehold_leases AS l JOIN leasehold_jobs AS j ON j.seq = l.seq
WHERE l.process IN (SELECT value FROM json_each(?)) ORDER BY l.seq;

-- name: insert_ownership
INSERT INTO leasehold_ownerships (
    seq, epoch, owner, began, granted_at, expires_at, ended, ended_at, ended_by, note, settlement
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: ownership
SELECT owner, ended, settlement, ended_by, note FROM leasehold_ownerships WHERE seq = ? AND epoch = ?;

-- name: last_ownership
SELECT ended, ended_at, ended_by FROM leasehold_ownerships WHERE seq = ? ORDER BY epoch DESC LIMIT 1;

-- name: override
UPDATE leasehold_jobs
SET status = :status, epoch = :epoch, reason = :reason, attempt = :attempt, errors = :errors, reclaims = :reclaims,
    last_error = :last_error, result = :result, run_at = :run_at, progress = coalesce(:progress, progress),
    note = coalesce(:note, note), updated_at = :now, finished_at = :finished_at,
    owner = NULL, granted_at = NULL, expires_at = NULL, settlement = NULL
WHERE seq = :seq;

-- name: transferred
-- The lease has what is current from here on; the job keeps what a later end of the lease builds on.
UPDATE leasehold_jobs
SET attempt = :attempt, progress = coalesce(:progress, progress), note = coalesce(:note, note), updated_at = :now
WHERE seq = :seq;


-- name: effect
SELECT effect_key, epoch, outcome FROM leasehold_effects WHERE seq = ? AND name = ?;

-- name: begin_effect
INSERT INTO leasehold_effects (seq, name, effect_key, epoch) VALUES (?, ?, ?, ?)
ON CONFLICT (seq, name) DO UPDATE SET epoch = excluded.epoch;

-- name: end_effect
UPDATE leasehold_effects SET epoch = ?, outcome = ? WHERE seq = ? AND name = ?;

-- name: clear_effect
DELETE FROM leasehold_effects WHERE seq = ? AND name = ?;

-- name: effects
SELECT e.name, e.effect_key, e.epoch, e.outcome
FROM leasehold_effects AS e JOIN leasehold_jobs AS j ON j.seq = e.seq WHERE j.id = ? ORDER BY e.name;


-- name: insert_event
INSERT INTO leasehold_events (at, kind, job_id, epoch, owner, facts) VALUES (?, ?, ?, ?, ?, ?);

-- name: events
SELECT number, at, kind, job_id, epoch, owner, facts FROM leasehold_events
WHERE number > :after AND (:job_id IS NULL OR job_id = :job_id) AND (:kind IS NULL OR kind = :kind)
ORDER BY number LIMIT :limit;

-- name: events_of
SELECT number, at, kind, job_id, epoch, owner, facts FROM leasehold_events
WHERE job_id = :job_id AND number > :after AND (:kind IS NULL OR kind = :kind)
ORDER BY number LIMIT :limit;


-- name: insert_guarded
INSERT INTO leasehold_guarded (seq, guard, key, epoch)
SELECT :seq, json_extract(value, '$[0]'), json_extract(value, '$[1]'), :epoch FROM json_each(:keys) WHERE true
ON CONFLICT (seq, guard, key) DO UPDATE SET epoch = excluded.epoch;

-- name: seal_guarded
-- Of that job, the keys that were sealed above the epoch under which they were recorded.
DELETE FROM leasehold_guarded
WHERE seq = (SELECT seq FROM leasehold_jobs WHERE id = :id) AND epoch < :epoch
  AND (guard, key) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:keys));

-- name: guarded_portion
SELECT max(seq), count(*)
FROM (SELECT seq FROM leasehold_guarded WHERE seq > ? ORDER BY seq, guard, key LIMIT ?);

-- name: guarded
SELECT g.seq, g.guard, g.key, g.epoch, j.id, j.status, j.epoch
FROM leasehold_guarded AS g CROSS JOIN leasehold_jobs AS j ON j.seq = g.seq
WHERE g.seq > ? AND g.seq <= ? ORDER BY g.seq, g.guard, g.key;

-- name: forget_keys
DELETE FROM leasehold_guarded WHERE (seq, guard, key, epoch) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
           json_extract(value, '$[3]')
    FROM json_each(?)
);


-- name: prunable
-- The oldest of one status. A child stays as long as its parent can be replayed, and would ask for it again. A job stays
-- until its open keys (see the verb `open_keys`) are sealed.
SELECT j.finished_at, j.seq FROM leasehold_jobs AS j
WHERE j.narrow = 0 AND j.status = ? AND j.finished_at < ? AND j.finished_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM leasehold_jobs AS p WHERE p.id = j.parent AND p.narrow = 0)
  AND NOT EXISTS (SELECT 1 FROM leasehold_guarded AS g WHERE g.seq = j.seq AND (j.status <> 'done' OR g.epoch <> j.epoch))
ORDER BY j.finished_at, j.seq LIMIT ?;

-- name: due
-- Of a status, those that a policy may let go, and whether something keeps them: they say so themselves, their parent can
-- be replayed, an effect of theirs is in doubt, or keys of theirs are open.
SELECT j.finished_at, j.seq, json_extract(j.options, '$.keep_us') IS NOT NULL
    OR EXISTS (SELECT 1 FROM leasehold_jobs AS p WHERE p.id = j.parent AND p.narrow = 0)
    OR EXISTS (SELECT 1 FROM leasehold_effects AS e WHERE e.seq = j.seq AND e.outcome IS NULL)
    OR EXISTS (SELECT 1 FROM leasehold_guarded AS g WHERE g.seq = j.seq AND (j.status <> 'done' OR g.epoch <> j.epoch))
FROM leasehold_jobs AS j
WHERE j.narrow = 0 AND j.status = :kind AND j.finished_at IS NOT NULL AND j.finished_at < :before
  AND (j.finished_at, j.seq) > (:at, :seq)
ORDER BY j.finished_at, j.seq LIMIT :limit;

-- name: due_kept
-- The same of those that say themselves how long they are kept.
SELECT j.finished_at + json_extract(j.options, '$.keep_us'), j.seq,
    EXISTS (SELECT 1 FROM leasehold_jobs AS p WHERE p.id = j.parent AND p.narrow = 0)
    OR EXISTS (SELECT 1 FROM leasehold_effects AS e WHERE e.seq = j.seq AND e.outcome IS NULL)
    OR EXISTS (SELECT 1 FROM leasehold_guarded AS g WHERE g.seq = j.seq AND (j.status <> 'done' OR g.epoch <> j.epoch))
FROM leasehold_jobs AS j
WHERE j.finished_at IS NOT NULL AND j.options IS NOT NULL
  AND j.finished_at + json_extract(j.options, '$.keep_us') >= :at
  AND j.finished_at + json_extract(j.options, '$.keep_us') < :before
  AND (j.finished_at + json_extract(j.options, '$.keep_us') > :at OR j.seq > :seq)
ORDER BY j.finished_at + json_extract(j.options, '$.keep_us'), j.seq LIMIT :limit;

-- name: due_events
SELECT e.number, e.at, EXISTS (
    SELECT 1 FROM leasehold_jobs AS j
    WHERE j.id = e.job_id AND (
        j.status = 'unfinished'
        OR e.kind = 'guarded' AND EXISTS (SELECT 1 FROM leasehold_guarded AS g WHERE g.seq = j.seq)
    )
)
FROM leasehold_events AS e WHERE e.number > ? ORDER BY e.number LIMIT ?;

-- name: prune_numbers
DELETE FROM leasehold_events WHERE number IN (SELECT value FROM json_each(?));

-- name: narrow_jobs
-- What stays of a job whose id the caller chose: its id, status, epoch and end.
UPDATE leasehold_jobs
SET narrow = 1, task = NULL, queue = '', priority = 0, run_at = finished_at, lock = NULL, unique_key = NULL,
    lease_us = NULL, stall_us = NULL, start_within_us = NULL, parent = NULL, max_errors = 5, max_reclaims = 3,
    options = NULL, meta = NULL, payload = '',
    attempt = 0, errors = 0, reclaims = 0, result = NULL, last_error = NULL, progress = NULL, note = NULL,
    created_at = finished_at, updated_at = finished_at, owner = NULL, granted_at = NULL, expires_at = NULL,
    settlement = NULL
WHERE seq IN (SELECT value FROM json_each(?)) AND chosen = 1 AND finished_at >= ?;

-- name: kept_for
-- What keeps a finished job from being pruned: its parent, an effect in doubt, or open keys.
SELECT
    (SELECT p.id FROM leasehold_jobs AS p WHERE p.id = j.parent AND p.narrow = 0),
    (SELECT min(e.name) FROM leasehold_effects AS e WHERE e.seq = j.seq AND e.outcome IS NULL),
    EXISTS (SELECT 1 FROM leasehold_guarded AS g WHERE g.seq = j.seq AND (j.status <> 'done' OR g.epoch <> j.epoch))
FROM leasehold_jobs AS j WHERE j.seq = ?;

-- name: prune_jobs
DELETE FROM leasehold_jobs WHERE seq IN (SELECT value FROM json_each(?)) AND narrow = 0;

-- name: prune_ids
DELETE FROM leasehold_jobs WHERE seq IN (
    SELECT seq FROM leasehold_jobs
    WHERE narrow = 1 AND status = ? AND finished_at < ? AND finished_at IS NOT NULL ORDER BY finished_at, seq LIMIT ?
) RETURNING 1;

-- name: prune_ownerships
DELETE FROM leasehold_ownerships WHERE seq IN (SELECT value FROM json_each(?));

-- name: prune_effects
DELETE FROM leasehold_effects WHERE seq IN (SELECT value FROM json_each(?));

-- name: prune_checkpoints
DELETE FROM leasehold_checkpoints WHERE seq IN (SELECT value FROM json_each(?));

-- name: prune_guarded
DELETE FROM leasehold_guarded WHERE seq IN (SELECT value FROM json_each(?));

-- name: prune_events
DELETE FROM leasehold_events WHERE number IN (
    SELECT number FROM leasehold_events AS e
    WHERE at < ? AND (
        kind <> 'guarded'
        OR NOT EXISTS (
            SELECT 1 FROM leasehold_jobs AS j
            WHERE j.id = e.job_id AND (
                j.status = 'unfinished' OR EXISTS (SELECT 1 FROM leasehold_guarded AS g WHERE g.seq = j.seq)
            )
        )
    ) ORDER BY at LIMIT ?
) RETURNING 1;


-- name: job
SELECT {spec},
       CASE WHEN j.status <> 'unfinished' THEN j.status WHEN l.seq IS NULL THEN 'pending' ELSE 'running' END,
       coalesce(l.epoch, j.epoch), l.owner, coalesce(l.reason, j.reason), j.attempt, j.errors, j.reclaims,
       j.run_at, l.granted_at, l.expires_at, coalesce(l.progress, j.progress), coalesce(l.note, j.note),
       (SELECT checkpoint FROM leasehold_checkpoints AS c WHERE c.seq = j.seq), j.result, j.last_error,
       j.created_at, coalesce(l.updated_at, j.updated_at), j.finished_at, j.seq,
       CASE WHEN j.status = 'unfinished' AND l.seq IS NULL THEN coalesce(
           (SELECT json_array(p.kind, p.behind, p.parked_by) FROM leasehold_parked AS p
            WHERE p.kind = 'task' AND p.behind = coalesce(j.task, '') AND p.queue = j.queue AND p.rank = -j.priority
              AND p.run_at = j.run_at AND p.seq = j.seq),
           (SELECT json_array(p.kind, p.behind, p.parked_by) FROM leasehold_parked AS p
            WHERE p.kind = 'lock' AND p.behind = j.lock AND p.queue = j.queue AND p.rank = -j.priority
              AND p.run_at = j.run_at AND p.seq = j.seq)
       ) END, coalesce(l.renewed_at, l.granted_at), NULL
FROM leasehold_jobs AS j LEFT JOIN leasehold_leases AS l ON l.seq = j.seq
WHERE j.id = ?;

-- name: grant
-- The live lease of a job, in the shape of a grant.
SELECT {spec}, l.epoch, l.owner, l.reason, j.attempt, j.errors,
       (SELECT checkpoint FROM leasehold_checkpoints AS c WHERE c.seq = j.seq),
       l.claim_id, l.granted_at, l.expires_at, l.lease_us, p.host, p.boot, p.namespace, p.pid, p.started
FROM leasehold_jobs AS j JOIN leasehold_leases AS l ON l.seq = j.seq
LEFT JOIN leasehold_processes AS p ON p.id = l.process
WHERE j.id = ?;

-- name: grants
-- The live leases of a claim: a scan of the leases, for the rare owner whose reply was lost.
SELECT {spec}, l.epoch, l.owner, l.reason, j.attempt, j.errors,
       (SELECT checkpoint FROM leasehold_checkpoints AS c WHERE c.seq = j.seq),
       l.claim_id, l.granted_at, l.expires_at, l.lease_us, p.host, p.boot, p.namespace, p.pid, p.started
FROM leasehold_leases AS l JOIN leasehold_jobs AS j ON j.seq = l.seq
LEFT JOIN leasehold_processes AS p ON p.id = l.process
WHERE l.claim_id = ?
ORDER BY l.epoch;

-- name: current_ownership
SELECT l.epoch, l.owner, l.reason, l.granted_at, l.expires_at, j.seq, j.epoch, j.owner, j.reason, j.granted_at,
       j.expires_at, j.finished_at
FROM leasehold_jobs AS j LEFT JOIN leasehold_leases AS l ON l.seq = j.seq WHERE j.id = ?;

-- name: ownerships
SELECT epoch, owner, began, granted_at, expires_at, ended, ended_at, ended_by, note
FROM leasehold_ownerships WHERE seq = ? ORDER BY epoch;

-- name: seq
SELECT seq FROM leasehold_jobs WHERE id = ?;

-- name: count_finished
SELECT status, count(*) FROM leasehold_jobs WHERE narrow = 0 AND finished_at IS NOT NULL GROUP BY status;

-- name: count_waiting
SELECT queue, sum(n) FROM (
    SELECT queue, count(*) AS n FROM leasehold_ready GROUP BY queue
    UNION ALL SELECT queue, count(*) FROM leasehold_scheduled GROUP BY queue
    UNION ALL SELECT queue, count(*) FROM leasehold_parked GROUP BY queue
) GROUP BY queue;

-- name: count_parked
SELECT behind, queue, count(*) FROM leasehold_parked WHERE kind = 'task' GROUP BY behind, queue;

-- name: count_running
SELECT j.queue, count(*) FROM leasehold_leases AS l JOIN leasehold_jobs AS j ON j.seq = l.seq GROUP BY j.queue;


-- name: verify_places
-- Every unfinished job is in exactly one place, a finished one in none.
WITH places (seq) AS (
    SELECT seq FROM leasehold_ready UNION ALL SELECT seq FROM leasehold_scheduled
    UNION ALL SELECT seq FROM leasehold_parked UNION ALL SELECT seq FROM leasehold_leases
), counted (seq, n) AS (SELECT seq, count(*) FROM places GROUP BY seq)
SELECT j.id, j.status, coalesce(c.n, 0) FROM leasehold_jobs AS j LEFT JOIN counted AS c ON c.seq = j.seq
WHERE coalesce(c.n, 0) <> (j.status = 'unfinished');

-- name: verify_strays
SELECT seq FROM (
    SELECT seq FROM leasehold_ready UNION ALL SELECT seq FROM leasehold_scheduled
    UNION ALL SELECT seq FROM leasehold_parked UNION ALL SELECT seq FROM leasehold_leases
) WHERE seq NOT IN (SELECT seq FROM leasehold_jobs);

-- name: verify_parked
SELECT DISTINCT p.queue, p.behind FROM leasehold_parked AS p
WHERE p.kind = 'lock' AND NOT EXISTS (SELECT 1 FROM leasehold_leases AS l WHERE l.lock = p.behind)
  AND NOT EXISTS (
    SELECT 1 FROM leasehold_ready AS r JOIN leasehold_jobs AS j ON j.seq = r.seq
    WHERE j.lock = p.behind AND r.queue = p.queue
);

-- name: verify_locks
SELECT j.id FROM leasehold_leases AS l JOIN leasehold_jobs AS j ON j.seq = l.seq WHERE j.lock IS NOT l.lock;

-- name: verify_ready
SELECT j.id FROM leasehold_ready AS r JOIN leasehold_jobs AS j ON j.seq = r.seq
WHERE j.queue <> r.queue OR j.priority <> -r.rank OR j.run_at <> r.run_at
UNION
SELECT j.id FROM leasehold_parked AS p JOIN leasehold_jobs AS j ON j.seq = p.seq
WHERE j.queue <> p.queue OR j.priority <> -p.rank OR j.run_at <> p.run_at
   OR p.behind IS NOT CASE p.kind WHEN 'lock' THEN j.lock ELSE coalesce(j.task, '') END;

-- name: verify_epochs
SELECT id, epoch FROM (
    SELECT j.id, max(j.epoch, coalesce(l.epoch, 0)) AS epoch
    FROM leasehold_jobs AS j LEFT JOIN leasehold_leases AS l ON l.seq = j.seq
) WHERE epoch > (SELECT last_epoch FROM leasehold_store);

-- name: verify_narrow
-- Of a pruned job nothing is kept beside its narrow row.
SELECT j.id FROM leasehold_jobs AS j WHERE j.narrow = 1 AND j.finished_at IS NOT NULL AND (
    EXISTS (SELECT 1 FROM leasehold_ownerships AS o WHERE o.seq = j.seq)
    OR EXISTS (SELECT 1 FROM leasehold_effects AS e WHERE e.seq = j.seq)
    OR EXISTS (SELECT 1 FROM leasehold_checkpoints AS c WHERE c.seq = j.seq)
);

-- name: verify_ownerships
SELECT j.id, l.epoch FROM leasehold_leases AS l JOIN leasehold_jobs AS j ON j.seq = l.seq
WHERE l.epoch <= (SELECT coalesce(max(o.epoch), 0) FROM leasehold_ownerships AS o WHERE o.seq = l.seq) OR l.epoch <= j.epoch;

-- name: next_lane
-- The first job of the next rank, of the same queue or else of the next one. A comparison of (queue, rank) as a whole would
-- read the rest of the queue: SQLite uses the index for its first column only.
SELECT * FROM (SELECT queue, rank, run_at FROM leasehold_ready WHERE queue = ? AND rank > ?
               ORDER BY rank, run_at, seq LIMIT 1)
UNION ALL
SELECT * FROM (SELECT queue, rank, run_at FROM leasehold_ready WHERE queue > ? ORDER BY queue, rank, run_at, seq LIMIT 1)
LIMIT 1;

-- name: next_parked
-- The same behind lock keys and tasks.
SELECT * FROM (SELECT kind, behind, queue, rank, run_at FROM leasehold_parked
               WHERE kind = ? AND behind = ? AND queue = ? AND rank > ? ORDER BY rank, run_at, seq LIMIT 1)
UNION ALL
SELECT * FROM (SELECT kind, behind, queue, rank, run_at FROM leasehold_parked
               WHERE kind = ? AND behind = ? AND queue > ? ORDER BY queue, rank, run_at, seq LIMIT 1)
UNION ALL
SELECT * FROM (SELECT kind, behind, queue, rank, run_at FROM leasehold_parked
               WHERE kind = ? AND behind > ? ORDER BY behind, queue, rank, run_at, seq LIMIT 1)
UNION ALL
SELECT * FROM (SELECT kind, behind, queue, rank, run_at FROM leasehold_parked
               WHERE kind > ? ORDER BY kind, behind, queue, rank, run_at, seq LIMIT 1)
LIMIT 1;

-- name: overdue
-- Due, and not made ready so far.
SELECT queue, min(run_at) FROM (
    SELECT queue, run_at FROM leasehold_scheduled WHERE run_at <= ? ORDER BY run_at, seq LIMIT ?
) GROUP BY queue;

-- name: first_and_last
SELECT (SELECT min(seq) FROM leasehold_jobs), (SELECT max(seq) FROM leasehold_jobs);

-- name: created
SELECT created_at FROM leasehold_jobs WHERE seq >= ? ORDER BY seq LIMIT 1;

-- name: finished_lately
-- The newest first. By the index alone.
SELECT seq, finished_at FROM (
    SELECT * FROM (SELECT seq, finished_at FROM leasehold_jobs WHERE narrow = 0 AND status = 'done' AND finished_at >= ?
                   AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT ?)
    UNION ALL
    SELECT * FROM (SELECT seq, finished_at FROM leasehold_jobs WHERE narrow = 0 AND status = 'failed' AND finished_at >= ?
                   AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT ?)
    UNION ALL
    SELECT * FROM (SELECT seq, finished_at FROM leasehold_jobs WHERE narrow = 0 AND status = 'cancelled' AND finished_at >= ?
                   AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT ?)
) ORDER BY finished_at DESC LIMIT ?;

-- name: queues_of
SELECT j.queue FROM json_each(?) AS s CROSS JOIN leasehold_jobs AS j ON j.seq = s.value WHERE j.narrow = 0;

-- name: live_leases
SELECT j.id, l.epoch, l.owner, l.granted_at, l.expires_at, coalesce(l.renewed_at, l.granted_at), l.updated_at
FROM leasehold_leases AS l CROSS JOIN leasehold_jobs AS j ON j.seq = l.seq ORDER BY l.seq;

-- name: round
SELECT round, looked_at FROM leasehold_rounds;

-- name: set_round
INSERT INTO leasehold_rounds (one, round, looked_at) VALUES (1, ?, ?)
ON CONFLICT (one) DO UPDATE SET round = excluded.round, looked_at = excluded.looked_at;

-- name: observations
SELECT kind, subject, task, noted_at, job_id, epoch, owner, facts FROM leasehold_observations
ORDER BY kind, subject, task;

-- name: insert_observation
INSERT INTO leasehold_observations (kind, subject, task, noted_at, job_id, epoch, owner, facts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_observation
DELETE FROM leasehold_observations WHERE kind = ? AND subject = ? AND task = ?;
