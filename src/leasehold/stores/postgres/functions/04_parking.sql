-- Due jobs that wait behind something: a lock key that another job holds, or a task that a claimer did not know.

-- Sees to keys that became free, of those numbered above p_above: of each queue, the first job parked behind one waits to be
-- claimed again. Answers whether some had to be left for later.
CREATE OR REPLACE FUNCTION leasehold.unpark(p_most integer, p_above bigint) RETURNS boolean
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    f record;
    v_keys text[] := '{}';
    v_left boolean := false;
    v_key text;
BEGIN
    FOR f IN
        SELECT ctid, lock, seq, epoch FROM leasehold.freed WHERE number > p_above ORDER BY number LIMIT p_most
        FOR UPDATE SKIP LOCKED
    LOOP
        -- A transaction that parks behind a key, takes it, or wakes those behind it first takes this lock, to its
        -- end: between a claim's look at a key and its parking behind it, no other one decides about the key
        -- (trap 6). Here it is only tried, for a claim never waits; the row stays for the next one.
        IF f.lock IS NOT NULL AND NOT pg_try_advisory_xact_lock(leasehold.key_of(f.lock)) THEN
            v_left := true;
            CONTINUE;
        END IF;
        DELETE FROM leasehold.freed WHERE ctid = f.ctid;
        IF f.seq IS NOT NULL THEN
            DELETE FROM leasehold.leases WHERE seq = f.seq AND epoch = f.epoch;
        END IF;
        IF f.lock IS NOT NULL AND f.lock <> ALL (v_keys) THEN
            v_keys := v_keys || f.lock;
        END IF;
    END LOOP;
    FOREACH v_key IN ARRAY v_keys LOOP
        -- A statement of its own, after the lock was taken: it sees everything that was parked before.
        CONTINUE WHEN EXISTS (SELECT FROM leasehold.leases WHERE lock = v_key);
        WITH RECURSIVE queues (queue) AS (
            (SELECT queue FROM leasehold.parked WHERE kind = 'lock' AND behind = v_key ORDER BY queue LIMIT 1)
            UNION ALL
            SELECT (SELECT p.queue FROM leasehold.parked AS p
                    WHERE p.kind = 'lock' AND p.behind = v_key AND p.queue > q.queue ORDER BY p.queue LIMIT 1)
            FROM queues AS q WHERE q.queue IS NOT NULL
        ), woken AS (
            -- Of each queue, since no worker may be claiming from the queue of the very first.
            DELETE FROM leasehold.parked AS p USING queues AS q CROSS JOIN LATERAL (
                SELECT ctid AS place FROM leasehold.parked WHERE kind = 'lock' AND behind = v_key AND queue = q.queue
                ORDER BY rank, run_at, seq LIMIT 1
            ) AS f
            WHERE p.ctid = f.place
            RETURNING p.queue, p.rank, p.run_at, p.seq, p.behind
        )
        INSERT INTO leasehold.ready (queue, rank, run_at, seq, lock) SELECT queue, rank, run_at, seq, behind FROM woken;
        IF FOUND THEN
            PERFORM leasehold.lower_floors();
        END IF;
    END LOOP;
    RETURN v_left;
END
$lh$;

-- Where a claim finds jobs behind tasks that it knows: the tasks, and the queues of those jobs, side by side. Without p_tasks
-- it knows every task, without p_queues it asks for every queue but those of p_paused. A seek or two for each.
CREATE OR REPLACE FUNCTION leasehold.lanes(
    p_tasks text[], p_queues text[], p_paused text[], OUT tasks text[], OUT queues text[]
)
LANGUAGE plpgsql AS $lh$
DECLARE
    v_names text[] := p_tasks;
    v_task text COLLATE "C";
    v_queue text COLLATE "C";
BEGIN
    tasks := '{}';
    queues := '{}';
    IF p_tasks IS NULL THEN
        v_names := '{}';
        SELECT p.behind INTO v_task FROM leasehold.parked AS p WHERE p.kind = 'task' ORDER BY p.behind LIMIT 1;
        WHILE v_task IS NOT NULL LOOP
            v_names := v_names || v_task;
            v_task := (SELECT p.behind FROM leasehold.parked AS p WHERE p.kind = 'task' AND p.behind > v_task
                       ORDER BY p.behind LIMIT 1);
        END LOOP;
    END IF;
    FOREACH v_task IN ARRAY v_names LOOP
        v_queue := '';
        LOOP
            v_queue := (SELECT p.queue FROM leasehold.parked AS p
                        WHERE p.kind = 'task' AND p.behind = v_task AND p.queue > v_queue ORDER BY p.queue LIMIT 1);
            EXIT WHEN v_queue IS NULL;
            CONTINUE WHEN v_queue = ANY (p_paused) OR v_queue <> ALL (p_queues);
            tasks := tasks || v_task::text;
            queues := queues || v_queue::text;
        END LOOP;
    END LOOP;
END
$lh$;

-- Parks jobs behind their tasks, which the claimer does not know: of the rows of `ready` that it has locked (p_places), and,
-- since more of the same are likely to follow, of the first 500 of each queue above its floor. Answers with how many,
-- and whether one of them has a lock key: it may have been the next to hold it, so the job behind it has to be woken.
CREATE OR REPLACE FUNCTION leasehold.pass_over(
    p_owner text, p_tasks text[], p_places tid[], p_queues text[],
    p_floor_queues text[], p_floor_ranks integer[], p_floor_run_ats bigint[], p_floor_seqs bigint[],
    OUT parked integer, OUT keys boolean
)
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_at integer;
    v_count integer;
    v_locks text[];
BEGIN
    parked := 0;
    keys := false;
    FOREACH v_queue IN ARRAY p_queues LOOP
        v_at := array_position(p_floor_queues, v_queue);
        -- Only what is unknown is locked here. SKIP LOCKED: what another claim is taking is known to that one.
        WITH first AS (
            SELECT ctid AS place, seq FROM leasehold.ready WHERE ctid = ANY (p_places) AND queue = v_queue
            UNION
            (SELECT ctid, seq FROM leasehold.ready
             WHERE queue = v_queue AND (rank, run_at, seq) > (
                coalesce(p_floor_ranks[v_at], -2147483648), coalesce(p_floor_run_ats[v_at], 0), coalesce(p_floor_seqs[v_at], 0)
             ) ORDER BY rank, run_at, seq LIMIT 500)
        ), unknown AS MATERIALIZED (
            SELECT f.place, coalesce(j.task, '') AS task FROM first AS f
            CROSS JOIN LATERAL (SELECT task FROM leasehold.jobs WHERE seq = f.seq OFFSET 0) AS j
            WHERE coalesce(j.task, '') <> ALL (p_tasks)
        ), locked AS MATERIALIZED (
            SELECT r.place, u.task FROM unknown AS u
            CROSS JOIN LATERAL (
                SELECT x.ctid AS place FROM leasehold.ready AS x WHERE x.ctid = u.place FOR UPDATE SKIP LOCKED
            ) AS r
        ), left_ready AS (
            DELETE FROM leasehold.ready AS r USING locked AS u WHERE r.ctid = u.place
            RETURNING u.task, r.queue, r.rank, r.run_at, r.seq, r.lock
        ), put AS (
            INSERT INTO leasehold.parked (kind, behind, queue, rank, run_at, seq, lock, parked_by)
            SELECT 'task', task, queue, rank, run_at, seq, lock, p_owner FROM left_ready
        )
        SELECT count(*)::integer, array_agg(DISTINCT lock) FILTER (WHERE lock IS NOT NULL) INTO v_count, v_locks
        FROM left_ready;
        parked := parked + v_count;
        IF v_locks IS NOT NULL THEN
            keys := true;
            INSERT INTO leasehold.freed (lock) SELECT unnest(v_locks);
        END IF;
    END LOOP;
    -- A claim that knows them may be waiting.
    PERFORM leasehold.wake();
END
$lh$;
