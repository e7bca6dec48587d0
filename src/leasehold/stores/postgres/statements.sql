-- What readers ask, each in one statement, so that its answer is of one moment. They run in the session of the reader,
-- so functions and types are named with their schema: a search_path that puts others in front of them changes nothing.

-- name: job
SELECT * FROM leasehold.seen WHERE id = %(id)s;

-- name: jobs
SELECT * FROM leasehold.seen
WHERE seq > %(after)s AND payload <> ''
  AND (%(status)s::pg_catalog.text IS NULL OR status = %(status)s)
  AND (%(queue)s::pg_catalog.text IS NULL OR queue = %(queue)s)
  AND (%(task)s::pg_catalog.text IS NULL OR task = %(task)s)
  AND (%(parent)s::pg_catalog.text IS NULL OR parent = %(parent)s)
ORDER BY seq LIMIT %(limit)s;

-- name: running_jobs
-- Begins with the leases, which are few, and not with the jobs.
SELECT s.* FROM leasehold.leases AS l JOIN leasehold.seen AS s ON s.seq = l.seq AND s.epoch = l.epoch
WHERE s.seq > %(after)s AND s.status = 'running' AND (%(owner)s::pg_catalog.text IS NULL OR l.owner = %(owner)s)
  AND (%(status)s::pg_catalog.text IS NULL OR s.status = %(status)s)
  AND (%(queue)s::pg_catalog.text IS NULL OR s.queue = %(queue)s)
  AND (%(task)s::pg_catalog.text IS NULL OR s.task = %(task)s)
  AND (%(parent)s::pg_catalog.text IS NULL OR s.parent = %(parent)s)
ORDER BY s.seq LIMIT %(limit)s;

-- name: seq
SELECT seq FROM leasehold.jobs WHERE id = %(id)s;

-- name: claimed
SELECT * FROM leasehold.claim_leases(%(claim_id)s);

-- name: lease
SELECT l.status, l.holder, l.current, l.picked_up, (l.lease).* FROM leasehold.lease_of(%(id)s, %(owner)s) AS l;

-- name: transfers
SELECT * FROM leasehold.transfers_to(%(owner)s);

-- name: ownerships
-- The ended ones, then the one that lasts or that completed the job; a first row says that the job exists.
SELECT 0, NULL, NULL, NULL, NULL::bigint, NULL::bigint, NULL, NULL::bigint, NULL, NULL
FROM leasehold.jobs WHERE id = %(id)s
UNION ALL
SELECT o.epoch, o.owner, o.began, o.ended, o.granted_at, o.expires_at, o.ended_by, o.ended_at, o.note, o.cause
FROM leasehold.jobs AS j JOIN leasehold.ownerships AS o ON o.seq = j.seq WHERE j.id = %(id)s
UNION ALL
SELECT l.epoch, l.owner, l.reason, NULL, l.granted_at, l.expires_at, NULL, NULL, NULL, NULL
FROM leasehold.jobs AS j JOIN leasehold.leases AS l ON l.seq = j.seq AND l.epoch > j.epoch WHERE j.id = %(id)s
UNION ALL
SELECT j.epoch, j.owner, j.reason, 'done', j.granted_at, j.expires_at, j.owner, j.finished_at, NULL, NULL
FROM leasehold.jobs AS j WHERE j.id = %(id)s AND j.owner IS NOT NULL
ORDER BY 1;

-- name: effects
SELECT e.name, e.effect_key, e.epoch, e.outcome FROM leasehold.jobs AS j
LEFT JOIN leasehold.effects AS e ON e.seq = j.seq WHERE j.id = %(id)s ORDER BY e.name;

-- name: events
SELECT number, at, kind, job_id, epoch, owner, facts FROM leasehold.events
WHERE number > %(after)s AND (%(job_id)s::pg_catalog.text IS NULL OR job_id = %(job_id)s)
  AND (%(kind)s::pg_catalog.text IS NULL OR kind = %(kind)s)
ORDER BY number LIMIT %(limit)s;

-- name: counts
SELECT * FROM leasehold.counted();

-- name: queues
SELECT * FROM leasehold.known_queues();

-- name: processes
SELECT * FROM leasehold.known_processes();

-- name: verify
SELECT * FROM leasehold.broken();

-- name: live_leases
SELECT * FROM leasehold.live_leases();
