-- What owners ask, who need no right on any table, and the checker. Readers ask the tables themselves: statements.sql.

-- The verb `claimed`: the live leases that one claim was granted.
CREATE OR REPLACE FUNCTION leasehold.claim_leases(p_claim_id text) RETURNS SETOF leasehold.granted
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY SELECT * FROM leasehold.granted AS g WHERE g.claim_id = p_claim_id ORDER BY g.epoch;
END
$lh$;

-- The verb `lease`: how the job stands, and its lease if the owner is who asks. No row: there is no such job.
CREATE OR REPLACE FUNCTION leasehold.lease_of(p_id text, p_owner text)
RETURNS TABLE (status text, holder text, current bigint, picked_up boolean, lease leasehold.granted)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY
    SELECT s.status, s.owner, s.epoch, l.picked_up, g FROM leasehold.seen AS s
    LEFT JOIN leasehold.leases AS l ON l.seq = s.seq AND l.epoch = s.epoch
    LEFT JOIN leasehold.granted AS g ON g.id = s.id AND g.owner = p_owner WHERE s.id = p_id;
END
$lh$;

-- The processes that have claimed jobs, so that a sweep can see which of them are gone.
CREATE OR REPLACE FUNCTION leasehold.known_processes() RETURNS SETOF leasehold.processes
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY SELECT * FROM leasehold.processes AS p ORDER BY p.id;
END
$lh$;

-- The verb `counts`. A worker that ends when nothing is left asks it too.
CREATE OR REPLACE FUNCTION leasehold.counted() RETURNS TABLE (status text, queue text, count bigint, task text)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT status, NULL, sum(cardinality(seqs))::bigint, NULL FROM leasehold.finished WHERE status <> 'narrow' GROUP BY status
    UNION ALL
    SELECT 'pending', queue, count(*), NULL FROM (
        SELECT queue FROM leasehold.ready UNION ALL SELECT queue FROM leasehold.scheduled
        UNION ALL SELECT queue FROM leasehold.parked
    ) AS waiting GROUP BY queue
    UNION ALL
    SELECT 'running', j.queue, count(*), NULL FROM leasehold.leases AS l
    JOIN leasehold.jobs AS j ON j.seq = l.seq AND l.epoch > j.epoch GROUP BY j.queue
    UNION ALL
    -- Those of the pending ones that are parked behind a task.
    SELECT 'parked', queue, count(*), behind FROM leasehold.parked WHERE kind = 'task' GROUP BY behind, queue;
END
$lh$;

-- The verb `verify`: a sentence for every violation. A lease at its job's own epoch was ended by a caller's transaction; a
-- row of `freed` stands for a key whose parked jobs the next claim will see to.
CREATE OR REPLACE FUNCTION leasehold.broken() RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY
    WITH live AS (
        SELECT l.* FROM leasehold.leases AS l JOIN leasehold.jobs AS j ON j.seq = l.seq AND l.epoch > j.epoch
    ), places (seq) AS (
        SELECT seq FROM leasehold.ready UNION ALL SELECT seq FROM leasehold.scheduled
        UNION ALL SELECT seq FROM leasehold.parked UNION ALL SELECT seq FROM live
    ), over (seq, finished_at, status) AS (
        SELECT u.seq, f.finished_at, f.status FROM leasehold.finished AS f CROSS JOIN unnest(f.seqs) AS u(seq)
    ), counted (seq, n) AS (
        SELECT seq, count(*) FROM places GROUP BY seq
    )
    SELECT format('job %s is %s and in %s places.', quote_literal(j.id), j.status, coalesce(c.n, 0))
    FROM leasehold.jobs AS j LEFT JOIN counted AS c ON c.seq = j.seq
    WHERE coalesce(c.n, 0) <> (j.status = 'unfinished')::integer
    UNION ALL
    SELECT format('row %s is in a place and not a job.', p.seq) FROM places AS p
    WHERE NOT EXISTS (SELECT FROM leasehold.jobs AS j WHERE j.seq = p.seq)
    UNION ALL
    SELECT format('row %s is a lease that ended, and nothing says that it is to be removed.', l.seq)
    FROM leasehold.leases AS l
    WHERE NOT EXISTS (SELECT FROM live WHERE live.seq = l.seq)
      AND NOT EXISTS (SELECT FROM leasehold.freed AS f WHERE f.seq = l.seq AND f.epoch = l.epoch)
    UNION ALL
    SELECT DISTINCT format('jobs of queue %s are parked behind lock %s, which is free.', quote_literal(p.queue),
                           quote_literal(p.behind))
    FROM leasehold.parked AS p
    WHERE p.kind = 'lock'
      AND NOT EXISTS (SELECT FROM live AS l WHERE l.lock = p.behind)
      AND NOT EXISTS (SELECT FROM leasehold.freed AS f WHERE f.lock = p.behind)
      AND NOT EXISTS (SELECT FROM leasehold.ready AS r WHERE r.lock = p.behind AND r.queue = p.queue)
    UNION ALL
    SELECT format('job %s runs without its lock.', quote_literal(j.id))
    FROM live AS l JOIN leasehold.jobs AS j ON j.seq = l.seq WHERE j.lock IS DISTINCT FROM l.lock
    UNION ALL
    SELECT format('job %s waits in the wrong place.', quote_literal(j.id)) FROM (
        SELECT seq, queue, rank, run_at, lock, NULL AS kind, NULL AS behind FROM leasehold.ready
        UNION ALL SELECT seq, queue, rank, run_at, lock, NULL, NULL FROM leasehold.scheduled
        UNION ALL SELECT seq, queue, rank, run_at, lock, kind, behind FROM leasehold.parked
    ) AS w JOIN leasehold.jobs AS j ON j.seq = w.seq
    WHERE (j.queue, -j.priority, j.run_at) <> (w.queue, w.rank, w.run_at) OR j.lock IS DISTINCT FROM w.lock
       OR w.behind IS DISTINCT FROM CASE w.kind WHEN 'lock' THEN j.lock WHEN 'task' THEN coalesce(j.task, '') END
    UNION ALL
    SELECT format('job %s has epoch %s, above the last one issued.', quote_literal(j.id), greatest(j.epoch, l.epoch))
    FROM leasehold.jobs AS j LEFT JOIN live AS l ON l.seq = j.seq
    WHERE greatest(j.epoch, l.epoch) > leasehold.last_epoch()
    UNION ALL
    SELECT format('job %s is leased under epoch %s, which is not above its earlier ones.', quote_literal(j.id), l.epoch)
    FROM live AS l JOIN leasehold.jobs AS j ON j.seq = l.seq
    WHERE l.epoch <= (SELECT max(o.epoch) FROM leasehold.ownerships AS o WHERE o.seq = l.seq)
    UNION ALL
    SELECT format('job %s is %s and its record among the finished ones differs.', quote_literal(j.id), j.status)
    FROM leasehold.jobs AS j LEFT JOIN over AS f ON f.seq = j.seq
    WHERE (j.finished_at, CASE WHEN j.narrow THEN 'narrow' ELSE j.status END) IS DISTINCT FROM
          (f.finished_at, coalesce(f.status, 'unfinished'))
    UNION ALL
    SELECT format('row %s is among the finished ones %s times.', seq, count(*)) FROM over
    GROUP BY seq HAVING count(*) > 1
    UNION ALL
    SELECT format('job %s contradicts itself: its row says what no job can be.', quote_literal(j.id))
    FROM leasehold.jobs AS j
    WHERE j.id = '' OR j.status NOT IN ('unfinished', 'done', 'failed', 'cancelled') OR j.lease_us <= 0 OR j.stall_us <= 0
       OR (j.owner IS NOT NULL AND j.status <> 'done')
       OR (j.owner IS NULL) <> (j.settlement IS NULL) OR (j.owner IS NULL) <> (j.granted_at IS NULL)
       OR j.narrow <> (j.payload = '') OR (j.narrow AND j.finished_at IS NULL)
    UNION ALL
    SELECT format('the lease of row %s contradicts itself: it says what no lease can be.', l.seq)
    FROM leasehold.leases AS l
    WHERE l.owner = '' OR l.lease_us <= 0 OR (l.stalls_at IS NULL) <> (l.stall_us IS NULL)
    UNION ALL
    SELECT format('job %s and its unique key differ.', quote_literal(j.id))
    FROM leasehold.jobs AS j LEFT JOIN leasehold.uniques AS u ON u.seq = j.seq
    WHERE u.unique_key IS DISTINCT FROM CASE WHEN j.status = 'unfinished' THEN j.unique_key END
    UNION ALL
    SELECT format('job %s was pruned, and more than its id is kept.', quote_literal(j.id)) FROM leasehold.jobs AS j
    WHERE j.narrow AND (EXISTS (SELECT FROM leasehold.ownerships AS o WHERE o.seq = j.seq)
        OR EXISTS (SELECT FROM leasehold.effects AS e WHERE e.seq = j.seq)
        OR EXISTS (SELECT FROM leasehold.checkpoints AS c WHERE c.seq = j.seq))
    UNION ALL
    SELECT format('epoch %s was issued %s times.', epoch, count(*)) FROM (
        SELECT epoch FROM live UNION ALL SELECT epoch FROM leasehold.ownerships
        UNION ALL SELECT epoch FROM leasehold.jobs WHERE owner IS NOT NULL
    ) AS issued GROUP BY epoch HAVING count(*) > 1
    UNION ALL
    SELECT DISTINCT format('row %s of %s belongs to no job.', r.seq, r.kept_in) FROM (
        SELECT seq, 'finished' AS kept_in FROM over UNION ALL SELECT seq, 'uniques' FROM leasehold.uniques
        UNION ALL SELECT seq, 'ownerships' FROM leasehold.ownerships UNION ALL SELECT seq, 'effects' FROM leasehold.effects
        UNION ALL SELECT seq, 'checkpoints' FROM leasehold.checkpoints
    ) AS r WHERE NOT EXISTS (SELECT FROM leasehold.jobs AS j WHERE j.seq = r.seq);
END
$lh$;
