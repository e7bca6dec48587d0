-- The fast path of a claim of one job.

-- The verb `claim` for one job of the one queue that has a floor, while there is nothing else to see to: a few small
-- statements. It takes and answers what `claim` does, and calls it where anything is otherwise.
-- Without it, 0.88 times as many jobs per second are claimed and completed one by one
-- (python benchmarks/postgres.py --only "one at a time"). For batches it would gain nothing, so they have none.
CREATE OR REPLACE FUNCTION leasehold.claim_next(
    p_owner text, p_limit integer, p_queues text[], p_tasks text[], p_lease_us bigint, p_default_us bigint, p_claim_id text,
    p_host text, p_boot text, p_namespace text, p_pid bigint, p_started bigint,
    p_lowered bigint, p_swept bigint, p_freed bigint, p_floor_queues text[], p_floor_ranks integer[], p_floor_run_ats bigint[],
    p_floor_seqs bigint[], p_trace boolean, p_now bigint
) RETURNS SETOF leasehold.claimed
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_queue text := p_floor_queues[1];
    v_rank integer := p_floor_ranks[1];
    v_run_at bigint := p_floor_run_ats[1];
    v_after bigint := p_floor_seqs[1];
    v_now bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_swept bigint := v_now;
    v_plain boolean;
    v_special boolean;
    v_epoch bigint;
    v_process bigint;
    r record;
    j record;
    v_lasts bigint;
BEGIN
    IF p_now IS NULL AND v_now - p_swept BETWEEN 0 AND 10000 THEN
        -- Deadlines and what has become due were looked at a moment ago. A claim that finds no job looks at them again.
        v_swept := p_swept;
    ELSIF EXISTS (SELECT FROM leasehold.leases WHERE expires_at > p_swept AND expires_at <= v_now)
        OR EXISTS (SELECT FROM leasehold.leases WHERE stalls_at > p_swept AND stalls_at <= v_now)
        OR EXISTS (SELECT FROM leasehold.scheduled WHERE run_at > p_swept AND run_at <= v_now)
        OR EXISTS (SELECT FROM leasehold.starts WHERE start_by <= v_now)
    THEN
        v_swept := NULL;
    END IF;
    SELECT v_swept IS NOT NULL AND v_now < 4503599627370496
        AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') <> 'off'
        AND NOT pg_is_in_recovery()
        AND EXISTS (SELECT FROM leasehold.store WHERE fingerprint = concat_ws('/', leasehold.here(), xmin))
        AND NOT EXISTS (SELECT FROM leasehold.freed WHERE number > p_freed)
        AND p_lowered = (SELECT last_value + is_called::integer FROM leasehold.lowered)
        -- A job of a higher priority.
        AND NOT EXISTS (SELECT FROM leasehold.ready WHERE queue = v_queue AND rank < v_rank)
        AND set_config('lock_timeout', '5000', true) IS NOT NULL,
        EXISTS (SELECT FROM leasehold.parked WHERE kind = 'task')
        OR EXISTS (SELECT FROM leasehold.queues WHERE paused_at IS NOT NULL)
        OR p_queues <> ARRAY[v_queue]
        OR p_queues IS NULL AND (EXISTS (SELECT FROM leasehold.ready WHERE queue < v_queue)
                                 OR EXISTS (SELECT FROM leasehold.ready WHERE queue > v_queue))
    INTO v_plain, v_special;
    IF v_plain AND v_special THEN
        -- In a statement of its own: the executor sets up every look of a statement, also those that it does not take.
        SELECT NOT EXISTS (SELECT FROM leasehold.queues WHERE name = v_queue AND paused_at IS NOT NULL)
            -- A job behind a task that this claim knows.
            AND (NOT EXISTS (SELECT FROM leasehold.parked WHERE kind = 'task')
                 OR NOT EXISTS (SELECT FROM leasehold.parked WHERE kind = 'task' AND behind = ANY (p_tasks))
                 AND p_tasks IS NOT NULL)
            -- A job of another queue that is not paused.
            AND (p_queues = ARRAY[v_queue] OR p_queues IS NULL AND cardinality(leasehold.waiting_queues(
                ARRAY[v_queue], ARRAY(SELECT name FROM leasehold.queues WHERE paused_at IS NOT NULL)
            )) = 1)
        INTO v_plain;
    END IF;
    IF v_plain AND p_host IS NOT NULL THEN
        v_process := (
            SELECT id FROM leasehold.processes
            WHERE pid = p_pid AND started = p_started AND namespace = p_namespace AND boot = p_boot AND host = p_host
        );
        v_plain := v_process IS NOT NULL;
    END IF;
    IF v_plain THEN
        -- SKIP LOCKED: a row that another claim is taking is passed over. In the statement that sees a job which a caller's
        -- transaction has just put back, the lease that it has left is seen too.
        DELETE FROM leasehold.ready WHERE ctid = (
            SELECT ctid FROM leasehold.ready WHERE queue = v_queue AND (rank, run_at, seq) > (v_rank, v_run_at, v_after)
            ORDER BY rank, run_at, seq LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AND lock IS NULL AND NOT EXISTS (SELECT FROM leasehold.freed WHERE seq IS NOT NULL)
        RETURNING rank, run_at, seq INTO r;
        IF FOUND THEN
            SELECT id, payload, task, queue, reason, lease_us, stall_us, others INTO j
            FROM leasehold.claimable WHERE seq = r.seq;
            IF p_tasks IS NULL OR coalesce(j.task, '') = ANY (p_tasks) THEN
                -- The epoch comes last, when the row is held (trap 4), and the lease begins here.
                v_epoch := nextval('leasehold.epochs');
                v_now := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
                v_lasts := coalesce(p_lease_us, j.lease_us, p_default_us);
                INSERT INTO leasehold.leases (
                    seq, epoch, owner, reason, claim_id, process, granted_at, expires_at, lease_us, stalls_at, stall_us,
                    updated_at
                ) VALUES (
                    r.seq, v_epoch, p_owner, j.reason, p_claim_id, v_process, v_now, v_now + v_lasts, v_lasts,
                    v_now + j.stall_us, j.stall_us, v_now
                );
                RETURN NEXT ROW(
                    format(
                        '[%s,null,false,false,null,[%s,%s,%s,[%s],[%s],[%s],[%s]]]', v_now, p_lowered, v_swept, p_freed,
                        to_json(v_queue), r.rank, r.run_at, r.seq
                    ),
                    ARRAY[v_epoch], ARRAY[j.id], ARRAY[j.payload], CASE WHEN j.task IS NOT NULL THEN ARRAY[j.task] END,
                    CASE WHEN v_queue <> 'default' THEN ARRAY[j.queue] END,
                    CASE WHEN j.others IS NOT NULL THEN ARRAY[j.others] END
                )::leasehold.claimed;
                RETURN;
            END IF;
            -- Its task is not known to this claim. It is put back as it was, for `claim` to park.
            INSERT INTO leasehold.ready (queue, rank, run_at, seq) VALUES (v_queue, r.rank, r.run_at, r.seq);
        END IF;
    END IF;
    IF v_plain AND NOT EXISTS (
        SELECT FROM leasehold.ready WHERE queue = v_queue AND (rank, run_at, seq) > (v_rank, v_run_at, v_after)
    ) THEN
        -- There is nothing above the floor: from the bottom, at once.
        p_lowered := NULL;
        p_swept := NULL;
        p_freed := NULL;
    END IF;
    RETURN QUERY SELECT * FROM leasehold.claim(
        p_owner, p_limit, p_queues, p_tasks, p_lease_us, p_default_us, p_claim_id, p_host, p_boot, p_namespace, p_pid,
        p_started, p_lowered, p_swept, p_freed, p_floor_queues, p_floor_ranks, p_floor_run_ats, p_floor_seqs, p_trace, p_now
    );
END
$lh$;
