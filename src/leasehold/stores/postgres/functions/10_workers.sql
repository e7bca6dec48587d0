-- The workers that report here, and how an owner picks up what was transferred to it.

-- The verb `report`. A reader's lock on the row (`recipient`) does not wait for this, nor this for it.
CREATE OR REPLACE FUNCTION leasehold.report_worker(
    p_name text, p_given_name text, p_process text, p_queues text, p_tasks text, p_concurrency integer, p_running integer,
    p_up_us bigint, p_patience integer, p_now bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
BEGIN
    INSERT INTO leasehold.workers
        (name, given_name, process, queues, tasks, concurrency, running, started_at, seen_at)
    VALUES (p_name, p_given_name, p_process, p_queues, p_tasks, p_concurrency, p_running, v_now - p_up_us, v_now)
    ON CONFLICT (name) DO UPDATE SET
        given_name = excluded.given_name, process = excluded.process, queues = excluded.queues, tasks = excluded.tasks,
        concurrency = excluded.concurrency, running = excluded.running, seen_at = excluded.seen_at;
END
$lh$;

-- The verb `retire`. It waits for a transfer to this worker that is under way: the worker's last look then finds it.
CREATE OR REPLACE FUNCTION leasehold.retire_worker(p_name text, p_patience integer, p_now bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
BEGIN
    PERFORM leasehold.alone(p_now, p_patience);
    DELETE FROM leasehold.workers WHERE name = p_name;
END
$lh$;

-- The part of the verb `tend` that forgets workers which have not reported for p_keep_us.
CREATE OR REPLACE FUNCTION leasehold.forget_workers(p_keep_us bigint, p_patience integer, p_now bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
BEGIN
    DELETE FROM leasehold.workers WHERE seen_at <= leasehold.alone(p_now, p_patience) - p_keep_us;
END
$lh$;

-- The verb `workers`.
CREATE OR REPLACE FUNCTION leasehold.known_workers(p_now bigint)
RETURNS TABLE (name text, given_name text, process text, queues text, tasks text, concurrency integer, running integer,
               started_at bigint, seen_at bigint, alive boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY
    SELECT w.name, w.given_name, w.process, w.queues, w.tasks, w.concurrency, w.running, w.started_at, w.seen_at,
           leasehold.is_alive(w.seen_at, leasehold.instant(p_now))
    FROM leasehold.workers AS w ORDER BY w.name;
END
$lh$;

-- The verb `transfers`: what was transferred to an owner and not picked up.
CREATE OR REPLACE FUNCTION leasehold.transfers_to(p_owner text) RETURNS TABLE (job_id text, epoch bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY
    SELECT j.id, l.epoch FROM leasehold.leases AS l
    CROSS JOIN LATERAL (SELECT x.id FROM leasehold.jobs AS x WHERE x.seq = l.seq AND x.epoch < l.epoch OFFSET 0) AS j
    WHERE l.owner = p_owner AND NOT l.picked_up ORDER BY l.epoch;
END
$lh$;

-- The part of the verb `lease` that marks the pick-up of a transfer, if the epoch is still the job's.
CREATE OR REPLACE FUNCTION leasehold.pick_up(p_id text, p_epoch bigint, p_patience integer, p_now bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
BEGIN
    PERFORM leasehold.alone(p_now, p_patience);
    UPDATE leasehold.leases SET picked_up = true
    WHERE seq = (SELECT seq FROM leasehold.jobs WHERE id = p_id) AND epoch = p_epoch AND NOT picked_up;
END
$lh$;

-- The verb `accept`. Answers with the leases that are the owner's, those of an earlier call with this id too.
CREATE OR REPLACE FUNCTION leasehold.accept(
    p_owner text, p_transfers json, p_claim_id text,
    p_host text, p_boot text, p_namespace text, p_pid bigint, p_started bigint, p_patience integer, p_now bigint
) RETURNS SETOF leasehold.granted
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_process bigint;
    t record;
BEGIN
    IF p_host IS NOT NULL THEN
        v_process := leasehold.process_id(p_host, p_boot, p_namespace, p_pid, p_started);
    END IF;
    -- One after the other, in the order of locks.
    FOR t IN
        SELECT s.id, s.epoch, j.seq FROM json_to_recordset(p_transfers) AS s(id text, epoch bigint)
        CROSS JOIN LATERAL (SELECT seq FROM leasehold.jobs WHERE id = s.id OFFSET 0) AS j
        ORDER BY j.seq
    LOOP
        PERFORM FROM leasehold.leases WHERE seq = t.seq AND epoch = t.epoch FOR NO KEY UPDATE;
        v_now := leasehold.instant(p_now);  -- the lease lasts from when it is held, not from when it was asked for
        UPDATE leasehold.leases SET
            picked_up = true, claim_id = p_claim_id, process = v_process, expires_at = v_now + lease_us,
            stalls_at = v_now + stall_us, renewed_at = v_now
        WHERE seq = t.seq AND epoch = t.epoch AND owner = p_owner AND (NOT picked_up OR claim_id = p_claim_id);
        IF FOUND THEN
            -- Unless a caller's transaction has ended it, and could not remove it.
            RETURN QUERY SELECT * FROM leasehold.granted AS g WHERE g.id = t.id AND g.epoch = t.epoch;
        END IF;
    END LOOP;
END
$lh$;
