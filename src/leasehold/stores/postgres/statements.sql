-- What readers ask, each in one statement, so that its answer is of one moment.

-- name: version
SELECT schema_version, id::text FROM leasehold.store;

-- name: job
SELECT * FROM leasehold.seen WHERE id = %(id)s;

-- name: jobs
SELECT * FROM leasehold.seen
WHERE seq > %(after)s
  AND (%(status)s::text IS NULL OR status = %(status)s) AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(task)s::text IS NULL OR task = %(task)s) AND (%(parent)s::text IS NULL OR parent = %(parent)s)
ORDER BY seq LIMIT %(limit)s;

-- name: running_jobs
-- Begins with the leases, which are few, and not with the jobs.
SELECT s.* FROM leasehold.leases AS l JOIN leasehold.seen AS s ON s.seq = l.seq AND s.epoch = l.epoch
WHERE s.seq > %(after)s AND s.status = 'running' AND (%(owner)s::text IS NULL OR l.owner = %(owner)s)
  AND (%(status)s::text IS NULL OR s.status = %(status)s) AND (%(queue)s::text IS NULL OR s.queue = %(queue)s)
  AND (%(task)s::text IS NULL OR s.task = %(task)s) AND (%(parent)s::text IS NULL OR s.parent = %(parent)s)
ORDER BY s.seq LIMIT %(limit)s;

-- name: seq
SELECT seq FROM leasehold.jobs WHERE id = %(id)s;

-- name: claimed
SELECT * FROM leasehold.granted WHERE claim_id = %(claim_id)s ORDER BY epoch;

-- name: lease
SELECT s.status, s.owner, s.epoch AS current, g.* FROM leasehold.seen AS s
LEFT JOIN leasehold.granted AS g ON g.id = s.id AND g.owner = %(owner)s WHERE s.id = %(id)s;

-- name: ownerships
-- The ended ones, then the one that lasts or that completed the job; a first row says that the job exists.
SELECT 0, NULL, NULL, NULL, NULL::bigint, NULL::bigint, NULL, NULL::bigint, NULL, NULL
FROM leasehold.jobs WHERE id = %(id)s
UNION ALL
SELECT o.epoch, o.owner, o.began, o.ended, o.granted_at, o.expires_at, o.ended_by, o.ended_at, o.note, NULL
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
WHERE number > %(after)s AND (%(job_id)s::text IS NULL OR job_id = %(job_id)s)
  AND (%(kind)s::text IS NULL OR kind = %(kind)s)
ORDER BY number LIMIT %(limit)s;

-- name: counts
SELECT status, NULL AS queue, count(*) FROM leasehold.finished GROUP BY status
UNION ALL
SELECT 'pending', queue, count(*) FROM (
    SELECT queue FROM leasehold.ready UNION ALL SELECT queue FROM leasehold.scheduled
    UNION ALL SELECT queue FROM leasehold.parked
) AS waiting GROUP BY queue
UNION ALL
SELECT 'running', j.queue, count(*) FROM leasehold.leases AS l
JOIN leasehold.jobs AS j ON j.seq = l.seq AND l.epoch > j.epoch GROUP BY j.queue;

-- name: processes
SELECT id, host, boot, namespace, pid, started FROM leasehold.processes ORDER BY id;

-- name: verify
-- A sentence for every violation. A lease at its job's own epoch was ended by a caller's transaction; a row of `freed`
-- stands for a key whose parked jobs the next claim will see to.
WITH live AS (
    SELECT l.* FROM leasehold.leases AS l JOIN leasehold.jobs AS j ON j.seq = l.seq AND l.epoch > j.epoch
), places (seq) AS (
    SELECT seq FROM leasehold.ready UNION ALL SELECT seq FROM leasehold.scheduled
    UNION ALL SELECT seq FROM leasehold.parked UNION ALL SELECT seq FROM live
), counted (seq, n) AS (
    SELECT seq, count(*) FROM places GROUP BY seq
)
SELECT format('job %%s is %%s and in %%s places.', quote_literal(j.id), j.status, coalesce(c.n, 0))
FROM leasehold.jobs AS j LEFT JOIN counted AS c ON c.seq = j.seq
WHERE coalesce(c.n, 0) <> (j.status = 'unfinished')::integer
UNION ALL
SELECT format('row %%s is in a place and not a job.', p.seq) FROM places AS p
WHERE NOT EXISTS (SELECT FROM leasehold.jobs AS j WHERE j.seq = p.seq)
UNION ALL
SELECT format('row %%s is a lease that ended, and nothing says that it is to be removed.', l.seq)
FROM leasehold.leases AS l
WHERE NOT EXISTS (SELECT FROM live WHERE live.seq = l.seq)
  AND NOT EXISTS (SELECT FROM leasehold.freed AS f WHERE f.seq = l.seq AND f.epoch = l.epoch)
UNION ALL
SELECT DISTINCT format('jobs of %%s are parked behind lock %%s, which is free.', quote_literal(p.queue), quote_literal(p.lock))
FROM leasehold.parked AS p
WHERE NOT EXISTS (SELECT FROM live AS l WHERE l.lock = p.lock)
  AND NOT EXISTS (SELECT FROM leasehold.freed AS f WHERE f.lock = p.lock)
  AND NOT EXISTS (SELECT FROM leasehold.ready AS r WHERE r.lock = p.lock AND r.queue = p.queue)
UNION ALL
SELECT format('job %%s runs without its lock.', quote_literal(j.id))
FROM live AS l JOIN leasehold.jobs AS j ON j.seq = l.seq WHERE j.lock IS DISTINCT FROM l.lock
UNION ALL
SELECT format('job %%s waits in the wrong place.', quote_literal(j.id)) FROM (
    SELECT seq, queue, rank, run_at, lock FROM leasehold.ready
    UNION ALL SELECT seq, queue, rank, run_at, lock FROM leasehold.scheduled
    UNION ALL SELECT seq, queue, rank, run_at, lock FROM leasehold.parked
) AS w JOIN leasehold.jobs AS j ON j.seq = w.seq
WHERE (j.queue, -j.priority, j.run_at) <> (w.queue, w.rank, w.run_at) OR j.lock IS DISTINCT FROM w.lock
UNION ALL
SELECT format('job %%s has epoch %%s, above the last one issued.', quote_literal(j.id), greatest(j.epoch, l.epoch))
FROM leasehold.jobs AS j LEFT JOIN live AS l ON l.seq = j.seq
WHERE greatest(j.epoch, l.epoch) > (SELECT last_value FROM leasehold.epochs)
UNION ALL
SELECT format('job %%s is leased under epoch %%s, which is not above its earlier ones.', quote_literal(j.id), l.epoch)
FROM live AS l JOIN leasehold.jobs AS j ON j.seq = l.seq
WHERE l.epoch <= (SELECT max(o.epoch) FROM leasehold.ownerships AS o WHERE o.seq = l.seq)
UNION ALL
SELECT format('job %%s is %%s and its record among the finished ones differs.', quote_literal(j.id), j.status)
FROM leasehold.jobs AS j LEFT JOIN leasehold.finished AS f ON f.seq = j.seq
WHERE (j.finished_at, j.status) IS DISTINCT FROM (f.finished_at, coalesce(f.status, 'unfinished'))
UNION ALL
SELECT format('job %%s and its unique key differ.', quote_literal(j.id))
FROM leasehold.jobs AS j LEFT JOIN leasehold.uniques AS u ON u.seq = j.seq
WHERE u.unique_key IS DISTINCT FROM CASE WHEN j.status = 'unfinished' THEN j.unique_key END;
