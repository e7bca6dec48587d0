-- The short way to claim, where there is nothing to see to first.

-- The verb `claim` as it mostly is: of the one queue that has a floor, and there is nothing else to see to. All of it is
-- two statements, since each one costs as much as some jobs do. Where anything is otherwise, `claim` is asked.
CREATE OR REPLACE FUNCTION leasehold.claim_next(
    p_owner text, p_limit integer, p_queues text[], p_lease_us bigint, p_default_us bigint, p_claim_id text,
    p_host text, p_boot text, p_namespace text, p_pid bigint, p_started bigint,
    p_lowered bigint, p_swept bigint, p_freed bigint, p_queue text, p_rank integer, p_run_at bigint, p_after bigint, p_now bigint
) RETURNS SETOF leasehold.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_swept bigint := v_now;
    v_plain boolean;
    v_process bigint;
    r record;
    j record;
    v_lasts bigint;
BEGIN
    IF p_now IS NULL AND v_now - p_swept BETWEEN 0 AND 10000 THEN
        -- Deadlines and what has become due were looked at a moment ago. Whoever finds no job looks at them again.
        v_swept := p_swept;
    ELSIF EXISTS (SELECT FROM leasehold.leases WHERE expires_at > p_swept AND expires_at <= v_now)
        OR EXISTS (SELECT FROM leasehold.leases WHERE stalls_at > p_swept AND stalls_at <= v_now)
        OR EXISTS (SELECT FROM leasehold.scheduled WHERE run_at > p_swept AND run_at <= v_now)
    THEN
        v_swept := NULL;
    END IF;
    SELECT v_swept IS NOT NULL AND v_now < 4503599627370496 AND p_limit <= 100
        AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') <> 'off'
        AND NOT pg_is_in_recovery()
        AND EXISTS (SELECT FROM leasehold.store WHERE fingerprint = concat_ws('/', leasehold.here(), xmin))
        AND NOT EXISTS (SELECT FROM leasehold.freed WHERE number > p_freed)
        AND p_lowered = (SELECT last_value + is_called::integer FROM leasehold.lowered)
        -- A job of a higher priority, or of another queue.
        AND NOT EXISTS (SELECT FROM leasehold.ready WHERE queue = p_queue AND rank < p_rank)
        AND (p_queues = ARRAY[p_queue] OR p_queues IS NULL
             AND NOT EXISTS (SELECT FROM leasehold.ready WHERE queue < p_queue)
             AND NOT EXISTS (SELECT FROM leasehold.ready WHERE queue > p_queue))
        AND set_config('lock_timeout', '5000', true) IS NOT NULL
    INTO v_plain;
    IF v_plain AND p_host IS NOT NULL THEN
        v_process := (
            SELECT id FROM leasehold.processes
            WHERE pid = p_pid AND started = p_started AND namespace = p_namespace AND boot = p_boot AND host = p_host
        );
        v_plain := v_process IS NOT NULL;
    END IF;
    IF v_plain AND p_limit = 1 THEN
        -- The same as below in small steps, which are less work where there is one.
        DELETE FROM leasehold.ready WHERE ctid = (
            SELECT ctid FROM leasehold.ready WHERE queue = p_queue AND (rank, run_at, seq) > (p_rank, p_run_at, p_after)
            ORDER BY rank, run_at, seq LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AND lock IS NULL AND NOT EXISTS (SELECT FROM leasehold.freed WHERE seq IS NOT NULL)
        RETURNING rank, run_at, seq INTO r;
        IF FOUND THEN
            SELECT nextval('leasehold.epochs') AS issued, id, payload, task, queue, reason, lease_us, stall_us, others INTO j
            FROM leasehold.claimable WHERE seq = r.seq;
            v_lasts := coalesce(p_lease_us, j.lease_us, p_default_us);
            INSERT INTO leasehold.leases (
                seq, epoch, owner, reason, claim_id, process, granted_at, expires_at, lease_us, stalls_at, stall_us,
                updated_at
            ) VALUES (
                r.seq, j.issued, p_owner, j.reason, p_claim_id, v_process, v_now, v_now + v_lasts, v_lasts,
                v_now + j.stall_us, j.stall_us, v_now
            );
            RETURN NEXT ROW(
                concat('[', concat_ws(',', v_now, v_swept, r.rank, r.run_at, r.seq), ']'),
                ARRAY[j.issued], ARRAY[j.id], ARRAY[j.payload], CASE WHEN j.task IS NOT NULL THEN ARRAY[j.task] END,
                CASE WHEN p_queue <> 'default' THEN ARRAY[j.queue] END,
                CASE WHEN j.others IS NOT NULL THEN ARRAY[j.others] END
            )::leasehold.claimed;
            RETURN;
        END IF;
    ELSIF v_plain THEN
        RETURN QUERY
        WITH first AS MATERIALIZED (
            -- SKIP LOCKED: what somebody else is taking is theirs; a claim waits for nobody.
            SELECT ctid AS place, rank, run_at, seq, lock FROM leasehold.ready
            WHERE queue = p_queue AND (rank, run_at, seq) > (p_rank, p_run_at, p_after)
            ORDER BY rank, run_at, seq LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ), last AS MATERIALIZED (
            -- In this statement, which sees the jobs that a caller's transaction has just put back, also what it has left.
            SELECT count(lock) = 0 AND count(*) > 0 AND NOT EXISTS (SELECT FROM leasehold.freed WHERE seq IS NOT NULL) AS free,
                   (array_agg(rank))[count(*)] AS rank, (array_agg(run_at))[count(*)] AS run_at,
                   (array_agg(seq))[count(*)] AS seq
            FROM first
        ), left_ready AS (
            DELETE FROM leasehold.ready WHERE ctid = ANY (ARRAY(SELECT place FROM first WHERE (SELECT free FROM last)))
        ), taken AS MATERIALIZED (
            -- The epochs come last, when the rows are held (trap 4).
            SELECT j.seq, nextval('leasehold.epochs') AS issued, coalesce(p_lease_us, j.lease_us, p_default_us) AS lasts,
                   j.id, j.payload, j.task, j.queue, j.reason, j.stall_us, j.others
            FROM first AS f CROSS JOIN LATERAL (SELECT * FROM leasehold.claimable WHERE seq = f.seq OFFSET 0) AS j
            WHERE (SELECT free FROM last)
        ), leased AS (
            INSERT INTO leasehold.leases (
                seq, epoch, owner, reason, claim_id, process, granted_at, expires_at, lease_us, stalls_at, stall_us,
                updated_at
            )
            SELECT t.seq, t.issued, p_owner, t.reason, p_claim_id, v_process, v_now, v_now + t.lasts, t.lasts,
                   v_now + t.stall_us, t.stall_us, v_now
            FROM taken AS t
        )
        SELECT concat('[', concat_ws(',', v_now, v_swept, l.rank, l.run_at, l.seq), ']'), t.*
        FROM last AS l CROSS JOIN (
            SELECT array_agg(issued), array_agg(id), array_agg(payload),
                   CASE WHEN count(task) > 0 THEN array_agg(task) END,
                   CASE WHEN p_queue <> 'default' THEN array_agg(queue) END,
                   CASE WHEN count(others) > 0 THEN array_agg(others) END
            FROM taken
        ) AS t WHERE l.free;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF v_plain AND NOT EXISTS (
        SELECT FROM leasehold.ready WHERE queue = p_queue AND (rank, run_at, seq) > (p_rank, p_run_at, p_after)
    ) THEN
        -- There is nothing above the floor: from the bottom, at once.
        p_lowered := NULL;
        p_swept := NULL;
        p_freed := NULL;
    END IF;
    RETURN QUERY SELECT * FROM leasehold.claim(
        p_owner, p_limit, p_queues, p_lease_us, p_default_us, p_claim_id, p_host, p_boot, p_namespace, p_pid, p_started,
        p_lowered, p_swept, p_freed, ARRAY[p_queue], ARRAY[p_rank], ARRAY[p_run_at], ARRAY[p_after], false, p_now
    );
END
$lh$;
