-- Claiming. What a claim sees to first is in 04_reclaiming.sql and 04_parking.sql.

-- The number that names a process here.
CREATE OR REPLACE FUNCTION leasehold.process_id(
    p_host text, p_boot text, p_namespace text, p_pid bigint, p_started bigint
) RETURNS bigint
LANGUAGE plpgsql AS $lh$
DECLARE
    v_id bigint;
BEGIN
    LOOP
        SELECT id INTO v_id FROM leasehold.processes
        WHERE pid = p_pid AND started = p_started AND namespace = p_namespace AND boot = p_boot AND host = p_host;
        EXIT WHEN FOUND;
        INSERT INTO leasehold.processes (host, boot, namespace, pid, started)
        VALUES (p_host, p_boot, p_namespace, p_pid, p_started) ON CONFLICT DO NOTHING RETURNING id INTO v_id;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN v_id;
END
$lh$;

-- The queues that have a job, and those of p_known, in order, without those of p_paused: by a seek or two for each, instead
-- of a scan. A seek steps over all jobs of a paused queue at once, however many they are.
CREATE OR REPLACE FUNCTION leasehold.waiting_queues(p_known text[], p_paused text[]) RETURNS text[]
LANGUAGE plpgsql AS $lh$
DECLARE
    v_queues text[] := '{}';
    v_last text COLLATE "C" := '';
    v_known text COLLATE "C";
    v_queue text COLLATE "C";
BEGIN
    FOREACH v_known IN ARRAY p_known LOOP
        LOOP  -- those before it; its own dead entries are not looked at
            SELECT r.queue INTO v_queue FROM leasehold.ready AS r WHERE r.queue > v_last AND r.queue < v_known
            ORDER BY r.queue LIMIT 1;
            EXIT WHEN NOT FOUND;
            v_last := v_queue;
            CONTINUE WHEN v_queue = ANY (p_paused);
            v_queues := v_queues || v_queue;
        END LOOP;
        v_queues := v_queues || v_known;
        v_last := v_known;
    END LOOP;
    LOOP
        SELECT r.queue INTO v_queue FROM leasehold.ready AS r WHERE r.queue > v_last ORDER BY r.queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_last := v_queue;
        CONTINUE WHEN v_queue = ANY (p_paused);
        v_queues := v_queues || v_queue;
    END LOOP;
    RETURN v_queues;
END
$lh$;

-- The verb `claim`, without its waiting. Answers with what it has to tell, in the first row, and with the grants.
--
-- The floors are what an earlier claim found: for each queue, a place up to which nothing waits any more. Jobs that were
-- claimed leave dead entries at the head of the index, and while an old transaction is open, no vacuum can remove
-- them: each claim would step over all of them. A floor is a guess. What puts a job before others says so
-- (lower_floors), and then the floors are not used; but what is added in a transaction that commits late may come to wait
-- below one. So a claim that finds nothing looks again from the bottom, and the store asks without floors every now and
-- then (trap 8). The same holds for deadlines: p_swept is the last instant that was seen to; and for keys that became free:
-- p_freed is the last number up to which all were seen to. Who has drawn a number before may commit later, so the store lends
-- only one that is a second old.
--
-- It tells: the instant; what it has taken back (job, epoch, whether an open fence still names it); whether to look again
-- at once; whether it looked from the bottom; after how long to look again, if there was nothing; and the floors.
CREATE OR REPLACE FUNCTION leasehold.claim(
    p_owner text, p_limit integer, p_queues text[], p_tasks text[], p_lease_us bigint, p_default_us bigint, p_claim_id text,
    p_host text, p_boot text, p_namespace text, p_pid bigint, p_started bigint,
    p_lowered bigint, p_swept bigint, p_freed bigint, p_floor_queues text[], p_floor_ranks integer[], p_floor_run_ats bigint[],
    p_floor_seqs bigint[], p_trace boolean, p_now bigint
) RETURNS SETOF leasehold.claimed
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, 5000);
    v_first leasehold.claimed;
    v_overdue boolean := false;
    v_due boolean := false;
    v_late boolean := false;
    v_look record;            -- what else there is to see to first
    v_next bigint;
    v_floors json;
    v_ended jsonb;  -- the ownerships that were taken back: job, epoch, whether a transaction of theirs is open
    v_again boolean := false;
    v_from bigint := coalesce(p_swept, -1);
    v_swept bigint := v_now;
    v_freed bigint := coalesce(p_freed, 0);
    v_numbered bigint;
    v_lowered bigint;
    v_known text[] := '{}';   -- the queues that have a floor, in order, and the places of the floors
    v_ranks integer[];
    v_runs bigint[];
    v_afters bigint[];
    v_paused text[];
    v_queues text[];
    v_wanted integer[];
    v_several boolean := false;
    v_at integer;
    v_queue text;
    v_rank integer;
    v_run bigint;
    v_after bigint;
    v_process bigint;
    v_seqs bigint[] := '{}';  -- taken
    v_keys text[] := '{}';    -- decided about: ours, or held
    v_busy text[] := '{}';    -- another claim is deciding about them right now
    v_parked integer := 0;
    v_lane_tasks text[] := '{}';   -- where jobs are parked behind tasks that this claim knows
    v_lane_queues text[] := '{}';
    v_theirs text[] := '{}';       -- queues of which others are taking all that is there
    v_before record;          -- the floors before a look
    v_unknown boolean := false;  -- whether a candidate has a task that this claim does not know
    v_passed record;
    l_tasks text[];
    l_queues text[];
    l_wanted integer[];
    c_places tid[];           -- the candidates of one look: their rows of `ready`, and of `parked`
    l_places tid[];
    c_seqs bigint[];
    c_locks text[];
    v_asked text[];
    v_got text[];
BEGIN
    IF p_now IS NULL AND v_now - p_swept BETWEEN 0 AND 10000 THEN
        v_swept := p_swept;  -- a claim looked a moment ago; one that finds no job looks again, from the bottom
    ELSE
        SELECT EXISTS (SELECT FROM leasehold.leases WHERE expires_at > v_from AND expires_at <= v_now)
                   OR EXISTS (SELECT FROM leasehold.leases WHERE stalls_at > v_from AND stalls_at <= v_now),
               EXISTS (SELECT FROM leasehold.scheduled WHERE run_at > v_from AND run_at <= v_now),
               -- From the bottom: a job may be added when it is late already.
               EXISTS (SELECT FROM leasehold.starts WHERE start_by <= v_now)
        INTO v_overdue, v_due, v_late;
    END IF;
    -- Whatever else there may be to see to first, in one statement: each one costs as much as a few jobs do.
    SELECT NOT pg_is_in_recovery()
               AND EXISTS (SELECT FROM leasehold.store WHERE fingerprint = concat_ws('/', leasehold.here(), xmin)) AS trusted,
           EXISTS (SELECT FROM leasehold.freed WHERE number > v_freed) AS freed,
           EXISTS (SELECT FROM leasehold.parked WHERE kind = 'task') AS lanes,
           ARRAY(SELECT name FROM leasehold.queues WHERE paused_at IS NOT NULL) AS paused,
           -- Where a job of a higher priority has come in, the floor is too high.
           ARRAY(SELECT f.at FROM unnest(p_floor_queues, p_floor_ranks) WITH ORDINALITY AS f(queue, rank, at)
                 WHERE NOT EXISTS (SELECT FROM leasehold.ready AS r WHERE r.queue = f.queue AND r.rank < f.rank)) AS floors,
           (SELECT last_value - 1 + is_called::integer FROM leasehold.freed_number_seq) AS numbered,
           (SELECT last_value + is_called::integer FROM leasehold.lowered) AS lowered
    INTO v_look;
    IF v_look.trusted AND NOT (v_overdue OR v_due OR v_late OR v_look.freed) THEN
        v_freed := v_look.numbered;
        v_lowered := v_look.lowered;
    ELSE
        -- Before anything is moved: it may have to wait for others who draw epochs.
        PERFORM leasehold.trust_epochs(v_now);
        IF v_overdue THEN
            SELECT jsonb_agg(jsonb_build_array(job_id, epoch, fenced)) INTO v_ended FROM leasehold.sweep(500, v_now);
            v_swept := -1;  -- some may be left
        END IF;
        IF v_due THEN
            PERFORM leasehold.promote(1000, v_now);
            v_swept := -1;
        END IF;
        IF v_late THEN
            PERFORM leasehold.cancel_late(500, v_now);
        END IF;
        v_numbered := (SELECT last_value - 1 + is_called::integer FROM leasehold.freed_number_seq);
        v_again := leasehold.unpark(200, v_freed);
        IF NOT EXISTS (SELECT FROM leasehold.freed WHERE number > v_freed AND number <= v_numbered) THEN
            v_freed := v_numbered;
        END IF;
        v_lowered := (SELECT last_value + is_called::integer FROM leasehold.lowered);
    END IF;
    v_paused := v_look.paused;
    IF p_queues && v_paused THEN
        p_queues := ARRAY(SELECT q FROM unnest(p_queues) AS n(q) WHERE q <> ALL (v_paused));
    END IF;
    IF v_look.lanes THEN
        SELECT n.tasks, n.queues INTO v_lane_tasks, v_lane_queues FROM leasehold.lanes(p_tasks, p_queues, v_paused) AS n;
    END IF;
    IF p_lowered = v_lowered THEN
        FOREACH v_at IN ARRAY v_look.floors LOOP
            CONTINUE WHEN p_floor_queues[v_at] = ANY (v_paused);
            v_known := v_known || p_floor_queues[v_at];
            v_ranks := v_ranks || p_floor_ranks[v_at];
            v_runs := v_runs || p_floor_run_ats[v_at];
            v_afters := v_afters || p_floor_seqs[v_at];
        END LOOP;
    END IF;

    LOOP
        v_queues := p_queues;
        IF p_queues IS NULL THEN
            v_queues := leasehold.waiting_queues(
                ARRAY(SELECT q COLLATE "C" FROM unnest(v_known) AS k(q) ORDER BY 1), v_paused
            );
        END IF;
        IF v_theirs <> '{}' THEN
            v_queues := ARRAY(SELECT q FROM unnest(v_queues) AS n(q) WHERE q <> ALL (v_theirs));
        END IF;
        l_tasks := '{}';
        IF cardinality(v_queues) = 1 AND v_lane_tasks = '{}' THEN
            v_wanted := ARRAY[p_limit - cardinality(v_seqs)];
        ELSE
            -- How many of each queue, and of what is parked behind each task: the first of all of them together, by
            -- priority, time and insertion.
            v_several := true;
            SELECT array_agg(queue) FILTER (WHERE task IS NULL), array_agg(wanted) FILTER (WHERE task IS NULL),
                   coalesce(array_agg(task) FILTER (WHERE task IS NOT NULL), '{}'),
                   array_agg(queue) FILTER (WHERE task IS NOT NULL), array_agg(wanted) FILTER (WHERE task IS NOT NULL)
            INTO v_queues, v_wanted, l_tasks, l_queues, l_wanted FROM (
                SELECT queue, task, count(*)::integer AS wanted FROM (
                    SELECT r.queue, NULL AS task, r.rank, r.run_at, r.seq FROM unnest(v_queues) AS q(queue)
                    LEFT JOIN unnest(v_known, v_ranks, v_runs, v_afters) AS f(queue, rank, run_at, after)
                        ON f.queue = q.queue
                    CROSS JOIN LATERAL (
                        SELECT queue, rank, run_at, seq FROM leasehold.ready
                        WHERE queue = q.queue AND (lock IS NULL OR lock <> ALL (v_busy)) AND (rank, run_at, seq)
                            > (coalesce(f.rank, -2147483648), coalesce(f.run_at, 0), coalesce(f.after, 0))
                        ORDER BY rank, run_at, seq LIMIT p_limit - cardinality(v_seqs)
                    ) AS r
                    UNION ALL
                    SELECT n.queue, n.task, p.rank, p.run_at, p.seq
                    FROM unnest(v_lane_tasks, v_lane_queues) AS n(task, queue)
                    CROSS JOIN LATERAL (
                        SELECT rank, run_at, seq FROM leasehold.parked
                        WHERE kind = 'task' AND behind = n.task AND queue = n.queue
                            AND (lock IS NULL OR lock <> ALL (v_busy))
                        ORDER BY rank, run_at, seq LIMIT p_limit - cardinality(v_seqs)
                    ) AS p
                    ORDER BY rank, run_at, seq LIMIT p_limit - cardinality(v_seqs)
                ) AS first GROUP BY queue, task
            ) AS counted;
        END IF;
        c_places := '{}';
        l_places := '{}';
        c_seqs := '{}';
        c_locks := '{}';
        IF p_tasks IS NOT NULL THEN
            SELECT v_known AS known, v_ranks AS ranks, v_runs AS runs, v_afters AS afters INTO v_before;
        END IF;
        FOR i IN 1 .. coalesce(cardinality(v_queues), 0) LOOP
            v_queue := v_queues[i];
            v_at := coalesce(array_position(v_known, v_queue), cardinality(v_known) + 1);
            v_rank := coalesce(v_ranks[v_at], -2147483648);  -- below that of any priority
            v_run := coalesce(v_runs[v_at], 0);
            v_after := coalesce(v_afters[v_at], 0);
            -- SKIP LOCKED: what another claim is taking is passed over; a claim waits for none.
            SELECT c_places || coalesce(array_agg(place), '{}'), c_seqs || array_agg(seq), c_locks || array_agg(lock),
                   (array_agg(rank))[count(*)], (array_agg(run_at))[count(*)], (array_agg(seq))[count(*)]
            INTO c_places, c_seqs, c_locks, v_rank, v_run, v_after FROM (
                SELECT ctid AS place, rank, run_at, seq, lock FROM leasehold.ready
                WHERE queue = v_queue AND (rank, run_at, seq) > (v_rank, v_run, v_after)
                    AND (lock IS NULL OR lock <> ALL (v_busy))
                ORDER BY rank, run_at, seq LIMIT v_wanted[i]
                FOR UPDATE SKIP LOCKED
            ) AS first;
            IF v_after IS NOT NULL THEN
                v_known[v_at] := v_queue;
                v_ranks[v_at] := v_rank;
                v_runs[v_at] := v_run;
                v_afters[v_at] := v_after;
            END IF;
        END LOOP;
        IF p_tasks IS NOT NULL THEN
            v_unknown := EXISTS (
                SELECT FROM unnest(c_seqs) AS c(seq)
                CROSS JOIN LATERAL (SELECT task FROM leasehold.jobs WHERE seq = c.seq OFFSET 0) AS j
                WHERE coalesce(j.task, '') <> ALL (p_tasks)
            );
        END IF;
        IF v_unknown THEN
            SELECT * INTO v_passed FROM leasehold.pass_over(
                p_owner, p_tasks, c_places, v_queues, v_before.known, v_before.ranks, v_before.runs, v_before.afters
            );
            v_parked := v_parked + v_passed.parked;
            v_several := true;
            -- Nothing is taken before another look: what they let go may come before those that would be next.
            IF v_passed.keys THEN
                v_again := leasehold.unpark(200, v_freed) OR v_again;
                -- A key that was held when this looked may be one of those that were seen to just now: jobs
                -- parked behind it would not be woken again. Only our own are known to be held.
                v_keys := ARRAY(
                    SELECT j.lock FROM unnest(v_seqs) AS s(seq)
                    CROSS JOIN LATERAL (SELECT lock FROM leasehold.jobs WHERE seq = s.seq OFFSET 0) AS j
                    WHERE j.lock IS NOT NULL
                );
                v_known := '{}';
                v_ranks := NULL;
                v_runs := NULL;
                v_afters := NULL;
            ELSE
                v_known := v_before.known;
                v_ranks := v_before.ranks;
                v_runs := v_before.runs;
                v_afters := v_before.afters;
            END IF;
            CONTINUE WHEN v_parked < 500;
            v_again := true;
            EXIT;
        END IF;
        FOR i IN 1 .. cardinality(l_tasks) LOOP
            SELECT l_places || coalesce(array_agg(place), '{}'), c_seqs || array_agg(seq), c_locks || array_agg(lock)
            INTO l_places, c_seqs, c_locks FROM (
                SELECT ctid AS place, seq, lock FROM leasehold.parked
                WHERE kind = 'task' AND behind = l_tasks[i] AND queue = l_queues[i]
                    AND (lock IS NULL OR lock <> ALL (v_busy))
                ORDER BY rank, run_at, seq LIMIT l_wanted[i]
                FOR UPDATE SKIP LOCKED
            ) AS first;
        END LOOP;
        IF c_seqs = '{}' THEN
            EXIT WHEN NOT v_several OR (v_queues IS NULL OR v_queues = '{}') AND l_tasks = '{}';
            -- What is first in these, others are taking at this moment. That must not hold up what is elsewhere.
            v_theirs := v_theirs || v_queues;
            SELECT coalesce(array_agg(n.task), '{}'), coalesce(array_agg(n.queue), '{}') INTO v_lane_tasks, v_lane_queues
            FROM unnest(v_lane_tasks, v_lane_queues) AS n(task, queue)
            WHERE (n.task, n.queue) NOT IN (SELECT * FROM unnest(l_tasks, l_queues));
            CONTINUE;
        END IF;
        IF array_remove(c_locks, NULL) = '{}' AND v_keys = '{}' THEN
            -- The common path: no lock keys.
            DELETE FROM leasehold.ready WHERE ctid = ANY (c_places);
            IF l_places <> '{}' THEN
                DELETE FROM leasehold.parked WHERE ctid = ANY (l_places);
            END IF;
            v_seqs := v_seqs || c_seqs;
        ELSE
            v_asked := ARRAY(SELECT DISTINCT lock FROM unnest(c_locks) AS c(lock) WHERE lock <> ALL (v_keys));
            SELECT coalesce(array_agg(lock), '{}') INTO v_got FROM unnest(v_asked) AS a(lock)
            WHERE pg_try_advisory_xact_lock(leasehold.key_of(lock));
            v_busy := v_busy || (SELECT coalesce(array_agg(lock), '{}') FROM unnest(v_asked) AS a(lock)
                                 WHERE lock <> ALL (v_got));
            -- Only now, in a statement that begins after the keys are locked, is it known who holds them. What is
            -- blocked is parked, what is taken leaves `ready`, and what is neither stays there (trap 5).
            WITH candidates AS MATERIALIZED (
                SELECT r.place, r.lane, r.queue, r.rank, r.run_at, r.seq, r.lock,
                       r.lock IS NOT NULL AND (
                           r.lock = ANY (v_keys)
                           OR EXISTS (SELECT FROM leasehold.leases AS l WHERE l.lock = r.lock)
                           OR row_number() OVER (PARTITION BY r.lock ORDER BY r.rank, r.run_at, r.seq) > 1
                       ) AS blocked
                FROM (
                    SELECT ctid AS place, false AS lane, queue, rank, run_at, seq, lock FROM leasehold.ready
                    WHERE ctid = ANY (c_places)
                    UNION ALL
                    SELECT ctid, true, queue, rank, run_at, seq, lock FROM leasehold.parked WHERE ctid = ANY (l_places)
                ) AS r
                WHERE r.lock IS NULL OR r.lock = ANY (v_keys) OR r.lock = ANY (v_got)
            ), left_ready AS (
                DELETE FROM leasehold.ready AS r USING candidates AS c WHERE r.ctid = c.place AND NOT c.lane
            ), left_lanes AS (
                DELETE FROM leasehold.parked AS p USING candidates AS c WHERE p.ctid = c.place AND c.lane
            ), parked AS (
                INSERT INTO leasehold.parked (kind, behind, queue, rank, run_at, seq, lock, parked_by)
                SELECT 'lock', lock, queue, rank, run_at, seq, lock, p_owner FROM candidates WHERE blocked
            )
            SELECT v_seqs || coalesce(array_agg(seq) FILTER (WHERE NOT blocked), '{}'),
                   v_parked + count(*) FILTER (WHERE blocked)
            INTO v_seqs, v_parked FROM candidates;
            v_keys := v_keys || v_got;
            v_several := true;
        END IF;
        EXIT WHEN cardinality(v_seqs) >= p_limit;
        IF v_parked >= 500 THEN
            v_again := true;
            EXIT;
        END IF;
        v_several := true;
    END LOOP;
    IF v_busy <> '{}' THEN
        v_again := true;
    END IF;

    IF v_seqs = '{}' THEN
        IF p_lowered IS NOT NULL THEN
            FOR v_first IN SELECT * FROM leasehold.claim(
                p_owner, p_limit, p_queues, p_tasks, p_lease_us, p_default_us, p_claim_id, p_host, p_boot, p_namespace,
                p_pid, p_started, NULL, NULL, NULL, NULL, NULL, NULL, NULL, p_trace, p_now
            ) LOOP
                IF v_first.facts IS NOT NULL AND v_ended IS NOT NULL THEN
                    v_first.facts := jsonb_set(
                        v_first.facts::jsonb, '{1}',
                        v_ended || coalesce(nullif(v_first.facts::jsonb->1, 'null'), '[]')
                    );
                END IF;
                RETURN NEXT v_first;
            END LOOP;
            RETURN;
        END IF;
        v_next := least(
            (SELECT min(expires_at) FROM leasehold.leases), (SELECT min(stalls_at) FROM leasehold.leases),
            (SELECT min(run_at) FROM leasehold.scheduled), (SELECT min(start_by) FROM leasehold.starts)
        ) - v_now;
    END IF;
    IF v_busy = '{}' AND cardinality(v_known) BETWEEN 1 AND 50 THEN  -- what is busy is still there, below
        v_floors := json_build_array(v_lowered, v_swept, v_freed, v_known, v_ranks, v_runs, v_afters);
    END IF;
    IF v_seqs <> '{}' THEN
        -- The leases begin here, now that rows and keys are held. At the beginning of this call others may have held them.
        v_now := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    END IF;
    v_first.facts := json_build_array(v_now, v_ended, v_again, p_lowered IS NULL, v_next, v_floors);
    RETURN NEXT v_first;
    IF v_seqs = '{}' THEN
        RETURN;
    END IF;
    IF v_several THEN
        SELECT array_agg(s.seq ORDER BY j.priority DESC, j.run_at, s.seq) INTO v_seqs
        FROM unnest(v_seqs) AS s(seq)
        CROSS JOIN LATERAL (SELECT priority, run_at FROM leasehold.jobs WHERE seq = s.seq OFFSET 0) AS j;
    END IF;

    IF p_host IS NOT NULL THEN
        v_process := leasehold.process_id(p_host, p_boot, p_namespace, p_pid, p_started);
    END IF;
    -- Leases that callers' transactions have ended and could not remove, and that `unpark` has not come to.
    IF EXISTS (SELECT FROM leasehold.freed WHERE seq IS NOT NULL) THEN
        DELETE FROM leasehold.leases WHERE seq = ANY (v_seqs);
    END IF;
    -- The epochs come last, when rows and keys are held: one that was drawn earlier could be below that of a claim that
    -- had the key in between (trap 4).
    FOR i IN 0 .. (cardinality(v_seqs) - 1) / 100 LOOP
        RETURN QUERY
        WITH taken AS MATERIALIZED (
            SELECT j.seq, nextval('leasehold.epochs') AS issued, coalesce(p_lease_us, j.lease_us, p_default_us) AS lasts,
                   j.id, j.payload, j.task, j.queue, j.reason, j.lock, j.stall_us, j.others
            FROM unnest(v_seqs[i * 100 + 1 : i * 100 + 100]) AS s(seq)
            CROSS JOIN LATERAL (SELECT * FROM leasehold.claimable WHERE seq = s.seq OFFSET 0) AS j
        ), leased AS (
            INSERT INTO leasehold.leases (
                seq, epoch, owner, reason, claim_id, process, lock, granted_at, expires_at, lease_us, stalls_at, stall_us,
                updated_at
            )
            SELECT t.seq, t.issued, p_owner, t.reason, p_claim_id, v_process, t.lock, v_now, v_now + t.lasts, t.lasts,
                   v_now + t.stall_us, t.stall_us, v_now
            FROM taken AS t
        )
        SELECT NULL, array_agg(issued), array_agg(id), array_agg(payload),
               CASE WHEN count(task) > 0 THEN array_agg(task) END,
               CASE WHEN count(*) FILTER (WHERE queue <> 'default') > 0 THEN array_agg(queue) END,
               CASE WHEN count(others) > 0 THEN array_agg(others) END
        FROM taken;
    END LOOP;
    IF p_trace THEN
        PERFORM leasehold.record(
            'claimed', j.id, v_now, l.epoch, p_owner, jsonb_build_object('reason', l.reason, 'attempt', j.attempt)
        ) FROM leasehold.leases AS l JOIN leasehold.jobs AS j ON j.seq = l.seq WHERE l.seq = ANY (v_seqs) ORDER BY l.epoch;
    END IF;
END
$lh$;
