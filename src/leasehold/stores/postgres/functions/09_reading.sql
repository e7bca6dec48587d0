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

-- The verb `verify`: a kind and facts, as JSON, for every violation; core/invariants.py makes sentences of them. A lease at its job's own epoch was ended by a caller's transaction; a
-- row of `freed` stands for a key whose parked jobs the next claim will see to.
CREATE OR REPLACE FUNCTION leasehold.broken() RETURNS TABLE (kind text, facts text)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
#variable_conflict use_column
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
    SELECT 'places', jsonb_build_array(j.id, j.status, coalesce(c.n, 0))::text
    FROM leasehold.jobs AS j LEFT JOIN counted AS c ON c.seq = j.seq
    WHERE coalesce(c.n, 0) <> (j.status = 'unfinished')::integer
    UNION ALL
    SELECT 'stray', jsonb_build_array(p.seq)::text FROM places AS p
    WHERE NOT EXISTS (SELECT FROM leasehold.jobs AS j WHERE j.seq = p.seq)
    UNION ALL
    SELECT 'ended lease', jsonb_build_array(l.seq)::text
    FROM leasehold.leases AS l
    WHERE NOT EXISTS (SELECT FROM live WHERE live.seq = l.seq)
      AND NOT EXISTS (SELECT FROM leasehold.freed AS f WHERE f.seq = l.seq AND f.epoch = l.epoch)
    UNION ALL
    SELECT DISTINCT 'free lock', jsonb_build_array(p.queue, p.behind)::text
    FROM leasehold.parked AS p
    WHERE p.kind = 'lock'
      AND NOT EXISTS (SELECT FROM live AS l WHERE l.lock = p.behind)
      AND NOT EXISTS (SELECT FROM leasehold.freed AS f WHERE f.lock = p.behind)
      AND NOT EXISTS (SELECT FROM leasehold.ready AS r WHERE r.lock = p.behind AND r.queue = p.queue)
    UNION ALL
    SELECT 'lock', jsonb_build_array(j.id)::text
    FROM live AS l JOIN leasehold.jobs AS j ON j.seq = l.seq WHERE j.lock IS DISTINCT FROM l.lock
    UNION ALL
    SELECT 'wrong place', jsonb_build_array(j.id)::text FROM (
        SELECT seq, queue, rank, run_at, lock, NULL AS kind, NULL AS behind FROM leasehold.ready
        UNION ALL SELECT seq, queue, rank, run_at, lock, NULL, NULL FROM leasehold.scheduled
        UNION ALL SELECT seq, queue, rank, run_at, lock, kind, behind FROM leasehold.parked
    ) AS w JOIN leasehold.jobs AS j ON j.seq = w.seq
    WHERE (j.queue, -j.priority, j.run_at) <> (w.queue, w.rank, w.run_at) OR j.lock IS DISTINCT FROM w.lock
       OR w.behind IS DISTINCT FROM CASE w.kind WHEN 'lock' THEN j.lock WHEN 'task' THEN coalesce(j.task, '') END
    UNION ALL
    SELECT 'epoch', jsonb_build_array(j.id, greatest(j.epoch, l.epoch))::text
    FROM leasehold.jobs AS j LEFT JOIN live AS l ON l.seq = j.seq
    WHERE greatest(j.epoch, l.epoch) > leasehold.last_epoch()
    UNION ALL
    SELECT 'earlier epoch', jsonb_build_array(j.id, l.epoch)::text
    FROM live AS l JOIN leasehold.jobs AS j ON j.seq = l.seq
    WHERE l.epoch <= (SELECT max(o.epoch) FROM leasehold.ownerships AS o WHERE o.seq = l.seq)
    UNION ALL
    SELECT 'finished', jsonb_build_array(j.id, j.status)::text
    FROM leasehold.jobs AS j LEFT JOIN over AS f ON f.seq = j.seq
    WHERE (j.finished_at, CASE WHEN j.narrow THEN 'narrow' ELSE j.status END) IS DISTINCT FROM
          (f.finished_at, coalesce(f.status, 'unfinished'))
    UNION ALL
    SELECT 'finished twice', jsonb_build_array(seq, count(*))::text FROM over
    GROUP BY seq HAVING count(*) > 1
    UNION ALL
    SELECT 'job', jsonb_build_array(j.id)::text
    FROM leasehold.jobs AS j
    WHERE j.id = '' OR j.status NOT IN ('unfinished', 'done', 'failed', 'cancelled') OR j.lease_us <= 0 OR j.stall_us <= 0
       OR (j.owner IS NOT NULL AND j.status <> 'done')
       OR (j.owner IS NULL) <> (j.settlement IS NULL) OR (j.owner IS NULL) <> (j.granted_at IS NULL)
       OR j.narrow <> (j.payload = '') OR (j.narrow AND j.finished_at IS NULL)
    UNION ALL
    SELECT 'lease', jsonb_build_array(l.seq)::text
    FROM leasehold.leases AS l
    WHERE l.owner = '' OR l.lease_us <= 0 OR (l.stalls_at IS NULL) <> (l.stall_us IS NULL)
    UNION ALL
    SELECT 'unique key', jsonb_build_array(j.id)::text
    FROM leasehold.jobs AS j LEFT JOIN leasehold.uniques AS u ON u.seq = j.seq
    WHERE u.unique_key IS DISTINCT FROM CASE WHEN j.status = 'unfinished' THEN j.unique_key END
    UNION ALL
    SELECT 'pruned', jsonb_build_array(j.id)::text FROM leasehold.jobs AS j
    WHERE j.narrow AND (EXISTS (SELECT FROM leasehold.ownerships AS o WHERE o.seq = j.seq)
        OR EXISTS (SELECT FROM leasehold.effects AS e WHERE e.seq = j.seq)
        OR EXISTS (SELECT FROM leasehold.checkpoints AS c WHERE c.seq = j.seq))
    UNION ALL
    SELECT 'issued twice', jsonb_build_array(epoch, count(*))::text FROM (
        SELECT epoch FROM live UNION ALL SELECT epoch FROM leasehold.ownerships
        UNION ALL SELECT epoch FROM leasehold.jobs WHERE owner IS NOT NULL
    ) AS issued GROUP BY epoch HAVING count(*) > 1
    UNION ALL
    SELECT DISTINCT 'no job', jsonb_build_array(r.seq, r.kept_in)::text FROM (
        SELECT seq, 'finished' AS kept_in FROM over UNION ALL SELECT seq, 'uniques' FROM leasehold.uniques
        UNION ALL SELECT seq, 'ownerships' FROM leasehold.ownerships UNION ALL SELECT seq, 'effects' FROM leasehold.effects
        UNION ALL SELECT seq, 'checkpoints' FROM leasehold.checkpoints
    ) AS r WHERE NOT EXISTS (SELECT FROM leasehold.jobs AS j WHERE j.seq = r.seq);
END
$lh$;
