-- What operators and upkeep look at: the oldest due jobs, what came and went lately, live leases; and what was observed.

-- The verb `oldest`. One seek for each queue and rank, and for each of those behind a lock key or task; of what has become due
-- and was not made ready since, the first p_looks.
CREATE OR REPLACE FUNCTION leasehold.oldest_due(p_looks integer, p_now bigint)
RETURNS TABLE (queue text, task text, since bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.instant(p_now);
BEGIN
    RETURN QUERY
    WITH RECURSIVE lanes AS (
        (SELECT queue, rank, run_at FROM leasehold.ready ORDER BY queue, rank, run_at, seq LIMIT 1)
        UNION ALL
        SELECT n.* FROM lanes AS l CROSS JOIN LATERAL (
            SELECT r.queue, r.rank, r.run_at FROM leasehold.ready AS r WHERE (r.queue, r.rank) > (l.queue, l.rank)
            ORDER BY r.queue, r.rank, r.run_at, r.seq LIMIT 1
        ) AS n
    ), passed_over AS (
        (
            SELECT kind, behind, queue, rank, run_at FROM leasehold.parked
            ORDER BY kind, behind, queue, rank, run_at, seq LIMIT 1
        )
        UNION ALL
        SELECT n.* FROM passed_over AS l CROSS JOIN LATERAL (
            SELECT p.kind, p.behind, p.queue, p.rank, p.run_at FROM leasehold.parked AS p
            WHERE (p.kind, p.behind, p.queue, p.rank) > (l.kind, l.behind, l.queue, l.rank)
            ORDER BY p.kind, p.behind, p.queue, p.rank, p.run_at, p.seq LIMIT 1
        ) AS n
    ), overdue AS (
        SELECT queue, run_at FROM leasehold.scheduled WHERE run_at <= v_now ORDER BY run_at, seq LIMIT p_looks
    )
    SELECT queue, NULL, min(run_at) FROM (
        SELECT queue, run_at FROM lanes UNION ALL SELECT queue, run_at FROM passed_over
        UNION ALL SELECT queue, run_at FROM overdue
    ) AS waiting GROUP BY queue
    UNION ALL
    SELECT queue, behind, min(run_at) FROM passed_over WHERE kind = 'task' GROUP BY queue, behind
    ORDER BY 1, 2 NULLS FIRST;
END
$lh$;

-- The verb `lately`: a row for each queue and way, the jobs of which were added ('in') or have finished ('out') since an
-- instant; the first row has the time. Jobs are numbered as they are added, so where the window begins is found by halving.
CREATE OR REPLACE FUNCTION leasehold.lately(p_window bigint, p_looks integer, p_sample integer, p_now bigint)
RETURNS TABLE (way text, queue text, count double precision, since bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
#variable_conflict use_variable
DECLARE
    v_now bigint := leasehold.instant(p_now);
    v_from bigint := v_now - p_window;
    v_first bigint;
    v_last bigint;
    v_middle bigint;
    v_created bigint;
    v_count bigint;
    v_seqs bigint[];
BEGIN
    RETURN QUERY SELECT 'now'::text, NULL::text, NULL::double precision, v_now;

    SELECT min(j.seq), max(j.seq) INTO v_first, v_last FROM leasehold.jobs AS j;
    WHILE v_first <= v_last LOOP
        v_middle := (v_first + v_last) / 2;
        SELECT j.created_at INTO v_created FROM leasehold.jobs AS j WHERE j.seq >= v_middle ORDER BY j.seq LIMIT 1;
        IF v_created < v_from THEN
            v_first := v_middle + 1;
        ELSE
            v_last := v_middle - 1;
        END IF;
    END LOOP;
    SELECT max(j.seq) - v_first + 1 INTO v_count FROM leasehold.jobs AS j;
    IF v_count > p_sample THEN
        -- One number of each stretch, at a place in it that follows no pattern.
        RETURN QUERY
        SELECT 'in'::text, j.queue, count(*) * (v_count::double precision / p_sample), v_from
        FROM generate_series(0, p_sample - 1) AS s(n)
        CROSS JOIN LATERAL (
            SELECT v_first + s.n * v_count / p_sample
                + (hashint8(s.n)::bigint + 2147483648) % (v_count / p_sample) AS seq
        ) AS drawn
        CROSS JOIN LATERAL (SELECT o.queue FROM leasehold.jobs AS o WHERE o.seq = drawn.seq OFFSET 0) AS j
        WHERE j.queue <> '' GROUP BY j.queue;
    ELSE
        RETURN QUERY
        SELECT 'in'::text, j.queue, count(*)::double precision, v_from FROM leasehold.jobs AS j
        WHERE j.seq >= v_first AND j.queue <> '' GROUP BY j.queue;
    END IF;

    SELECT array_agg(f.seq), count(*), min(f.finished_at) INTO v_seqs, v_count, v_created FROM (
        SELECT o.finished_at, o.seq FROM (VALUES ('done'), ('failed'), ('cancelled')) AS s(status) CROSS JOIN LATERAL (
            SELECT f.finished_at, u.seq FROM leasehold.finished AS f CROSS JOIN unnest(f.seqs) AS u(seq)
            WHERE f.status = s.status AND f.finished_at >= v_from ORDER BY f.finished_at DESC LIMIT p_looks
        ) AS o ORDER BY o.finished_at DESC LIMIT p_looks
    ) AS f;
    IF v_count < p_looks THEN
        v_created := v_from;
    END IF;
    IF v_count > p_sample THEN
        SELECT array_agg(u.seq) INTO v_seqs FROM (
            SELECT u.seq FROM unnest(v_seqs) AS u(seq) ORDER BY hashint8(u.seq) LIMIT p_sample
        ) AS u;
    END IF;
    RETURN QUERY
    SELECT 'out'::text, j.queue, count(*) * (v_count::double precision / cardinality(v_seqs)), v_created
    FROM unnest(v_seqs) AS u(seq)
    CROSS JOIN LATERAL (SELECT o.queue FROM leasehold.jobs AS o WHERE o.seq = u.seq OFFSET 0) AS j
    GROUP BY j.queue;
END
$lh$;

-- The verb `leases`. A lease that is not above its job has been ended by a transaction that could not remove it.
CREATE OR REPLACE FUNCTION leasehold.live_leases()
RETURNS TABLE (job_id text, epoch bigint, owner text, granted_at bigint, expires_at bigint, renewed_at bigint,
               progressed_at bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY
    SELECT j.id, l.epoch, l.owner, l.granted_at, l.expires_at, coalesce(l.renewed_at, l.granted_at),
           greatest(l.updated_at, j.updated_at, c.moved_at)
    FROM leasehold.leases AS l JOIN leasehold.jobs AS j ON j.seq = l.seq AND l.epoch > j.epoch
    LEFT JOIN leasehold.checkpoints AS c ON c.seq = l.seq
    ORDER BY l.seq;
END
$lh$;

-- The verb `observed`: a row for each observation that is recorded, and a first one without.
CREATE OR REPLACE FUNCTION leasehold.observed(p_now bigint)
RETURNS TABLE (now bigint, round bigint, looked_at bigint, kind text, subject text, task text, noted_at bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY
    SELECT leasehold.instant(p_now), coalesce(r.round, 0), coalesce(r.looked_at, 0), o.kind, o.subject, o.task, o.noted_at
    FROM (VALUES (true)) AS one LEFT JOIN leasehold.rounds AS r ON true
    LEFT JOIN leasehold.observations AS o ON true
    ORDER BY o.kind, o.subject, o.task;
END
$lh$;

-- The verb `observe`. The row of `rounds` is compared and locked first: of two looks that began at one round, the later one
-- waits, and then finds the round raised.
CREATE OR REPLACE FUNCTION leasehold.observe(p_round bigint, p_found json, p_patience integer, p_now bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
BEGIN
    INSERT INTO leasehold.rounds AS r (round, looked_at)
    SELECT p_round + 1, v_now WHERE p_round = 0 OR EXISTS (SELECT FROM leasehold.rounds)
    ON CONFLICT (one) DO UPDATE SET round = excluded.round, looked_at = excluded.looked_at WHERE r.round = p_round;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH gone AS (
        DELETE FROM leasehold.observations AS o WHERE NOT EXISTS (
            SELECT FROM json_to_recordset(p_found) AS f(kind text, subject text, task text)
            WHERE (f.kind, f.subject, f.task) = (o.kind, o.subject, o.task)
        ) RETURNING o.*
    )
    INSERT INTO leasehold.events (at, kind, job_id, epoch, owner, facts)
    SELECT v_now, 'cleared', g.job_id, g.epoch, g.owner, (g.facts::jsonb - 'sentence')::text FROM gone AS g
    ORDER BY g.kind, g.subject, g.task;
    WITH new AS (
        INSERT INTO leasehold.observations (kind, subject, task, noted_at, job_id, epoch, owner, facts)
        SELECT f.kind, f.subject, f.task, v_now, f.job_id, f.epoch, f.owner, f.facts
        FROM json_to_recordset(p_found)
            AS f(kind text, subject text, task text, job_id text, epoch bigint, owner text, facts text)
        ON CONFLICT DO NOTHING RETURNING *
    )
    INSERT INTO leasehold.events (at, kind, job_id, epoch, owner, facts)
    SELECT v_now, 'observed', n.job_id, n.epoch, n.owner, n.facts FROM new AS n ORDER BY n.kind, n.subject, n.task;
    RETURN true;
END
$lh$;
