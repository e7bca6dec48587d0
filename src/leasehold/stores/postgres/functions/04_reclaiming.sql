-- Taking jobs back from owners that are overdue or gone, and what else time does to jobs.

-- The facts of a sentence about a job that was taken back or cancelled by the store, or whose owner crashed; `cause_text` in
-- core/lifecycle.py makes it. No reclaims: it cost the job nothing.
CREATE OR REPLACE FUNCTION leasehold.cause(p_why text, p_owner text, p_reclaims integer, p_max_reclaims integer) RETURNS json
LANGUAGE sql IMMUTABLE AS $lh$
    SELECT json_build_object('why', p_why, 'owner', p_owner, 'reclaims', p_reclaims, 'max_reclaims', p_max_reclaims)
$lh$;

-- Takes a job back from its owner; the row of the lease is locked.
CREATE OR REPLACE FUNCTION leasehold.take_back(l leasehold.leases, p_reason text, p_now bigint)
RETURNS leasehold.taken_back
LANGUAGE plpgsql AS $lh$
DECLARE
    j leasehold.jobs;
    v_final boolean;
    v_cause json;
    v_epoch bigint;
    v_run_at bigint;
    v_fenced boolean;
BEGIN
    SELECT * INTO j FROM leasehold.jobs WHERE seq = l.seq;
    DELETE FROM leasehold.leases WHERE seq = l.seq;
    IF j.seq IS NULL OR l.epoch <= j.epoch THEN
        RETURN NULL;  -- ended already, by a caller's transaction
    END IF;
    -- A transfer that was never picked up costs the job nothing.
    v_final := l.picked_up AND j.reclaims + 1 > j.max_reclaims;
    v_cause := leasehold.cause(p_reason, l.owner, CASE WHEN l.picked_up THEN j.reclaims + 1 END, j.max_reclaims);
    v_fenced := leasehold.is_fenced(l.epoch);
    PERFORM leasehold.archive(l, p_reason, p_now, 'leasehold', NULL, v_cause::text, NULL);
    v_run_at := CASE WHEN v_final THEN j.run_at ELSE least(j.run_at, p_now) END;
    v_epoch := nextval('leasehold.epochs');
    UPDATE leasehold.jobs SET
        status = CASE WHEN v_final THEN 'failed' ELSE 'unfinished' END,
        epoch = v_epoch, reason = p_reason, attempt = j.attempt + (NOT v_final)::integer,
        reclaims = j.reclaims + l.picked_up::integer, last_error = NULL, cause = v_cause::text, run_at = v_run_at,
        progress = coalesce(l.progress, progress), note = coalesce(l.note, note),
        updated_at = p_now, finished_at = CASE WHEN v_final THEN p_now END
    WHERE seq = l.seq;
    IF v_final THEN
        PERFORM leasehold.finish(j, 'failed', p_now);
        PERFORM leasehold.record(
            'failed', j.id, p_now, v_epoch, NULL, jsonb_build_object('reason', p_reason, 'was', l.owner, 'cause', v_cause)
        );
    ELSE
        PERFORM leasehold.wait(j.seq, j.queue, j.priority, v_run_at, j.lock, p_now);
        PERFORM leasehold.record(
            'reclaimed', j.id, p_now, v_epoch, NULL, jsonb_build_object('reason', p_reason, 'was', l.owner)
        );
    END IF;
    IF l.lock IS NOT NULL THEN
        INSERT INTO leasehold.freed (lock) VALUES (l.lock);
    END IF;
    RETURN ROW(j.id, l.epoch, l.owner, l.reason, l.granted_at, l.expires_at, p_reason, p_now, 'leasehold', v_cause::text,
               v_fenced)::leasehold.taken_back;
END
$lh$;

-- Keeps what those need who count and prune finished jobs, and gives the unique key back.
CREATE OR REPLACE FUNCTION leasehold.finish(j leasehold.jobs, p_status text, p_now bigint) RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    INSERT INTO leasehold.finished (finished_at, status, seqs, keep_us)
    VALUES (p_now, p_status, ARRAY[j.seq], (j.options::json->>'keep_us')::bigint);
    IF j.unique_key IS NOT NULL THEN
        DELETE FROM leasehold.uniques WHERE unique_key = j.unique_key AND seq = j.seq;
    END IF;
END
$lh$;

-- Takes back what expired or stalled, up to p_most of each. A row that is locked is left for the next sweep:
-- its owner is settling or renewing it, or another sweep is taking it back.
CREATE OR REPLACE FUNCTION leasehold.sweep(p_most integer, p_now bigint) RETURNS SETOF leasehold.taken_back
LANGUAGE plpgsql AS $lh$
DECLARE
    l leasehold.leases;
    v_ended leasehold.taken_back;
    v_moved bigint;
BEGIN
    FOR l IN
        SELECT * FROM leasehold.leases WHERE expires_at <= p_now ORDER BY expires_at, seq LIMIT p_most
        FOR UPDATE SKIP LOCKED
    LOOP
        v_ended := leasehold.take_back(l, 'timeout', p_now);
        IF v_ended.epoch IS NOT NULL THEN
            RETURN NEXT v_ended;
        END IF;
    END LOOP;
    FOR l IN
        SELECT * FROM leasehold.leases WHERE stalls_at <= p_now ORDER BY stalls_at, seq LIMIT p_most
        FOR UPDATE SKIP LOCKED
    LOOP
        -- A report inside a transaction of the owner's has not moved this deadline.
        v_moved := (SELECT moved_at FROM leasehold.checkpoints WHERE seq = l.seq AND epoch = l.epoch);
        IF v_moved + l.stall_us > p_now THEN
            UPDATE leasehold.leases SET stalls_at = v_moved + l.stall_us WHERE seq = l.seq;
            CONTINUE;
        END IF;
        v_ended := leasehold.take_back(l, 'stall', p_now);
        IF v_ended.epoch IS NOT NULL THEN
            RETURN NEXT v_ended;
        END IF;
    END LOOP;
END
$lh$;

-- Lets wait in its queue what has become due.
CREATE OR REPLACE FUNCTION leasehold.promote(p_most integer, p_now bigint) RETURNS void
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
BEGIN
    WITH due AS (
        DELETE FROM leasehold.scheduled AS s USING (
            SELECT run_at, seq FROM leasehold.scheduled WHERE run_at <= p_now ORDER BY run_at, seq LIMIT p_most
            FOR UPDATE SKIP LOCKED
        ) AS d
        WHERE s.run_at = d.run_at AND s.seq = d.seq
        RETURNING s.queue, s.rank, s.run_at, s.seq, s.lock
    )
    INSERT INTO leasehold.ready (queue, rank, run_at, seq, lock) SELECT queue, rank, run_at, seq, lock FROM due;
    IF FOUND THEN
        PERFORM leasehold.lower_floors();
    END IF;
END
$lh$;

-- Cancels what was not claimed by when its producer wanted it begun. What a claim is taking, or an operator is
-- moving, at this moment is left for the next sweep: a claim waits for neither.
CREATE OR REPLACE FUNCTION leasehold.cancel_late(p_most integer, p_now bigint) RETURNS void
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    s record;
    j leasehold.jobs;
    v_over boolean;
    v_epoch bigint;
    v_cause json := leasehold.cause('late', NULL, NULL, NULL);
BEGIN
    FOR s IN
        SELECT ctid, seq FROM leasehold.starts WHERE start_by <= p_now ORDER BY start_by, seq LIMIT p_most
        FOR UPDATE SKIP LOCKED
    LOOP
        SELECT * INTO j FROM leasehold.jobs WHERE seq = s.seq FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN j.seq IS NULL AND EXISTS (SELECT FROM leasehold.jobs WHERE seq = s.seq);
        v_over := j.seq IS NULL OR j.epoch > 0 OR j.status <> 'unfinished'
            OR EXISTS (SELECT FROM leasehold.leases WHERE seq = j.seq);
        DELETE FROM leasehold.starts WHERE ctid = s.ctid AND v_over;
        -- What takes it out of its place has it: a claim, or this. After a claim, the next sweep sees its lease.
        CONTINUE WHEN v_over OR NOT leasehold.leave(j);
        DELETE FROM leasehold.starts WHERE ctid = s.ctid;
        v_epoch := nextval('leasehold.epochs');
        UPDATE leasehold.jobs SET
            status = 'cancelled', epoch = v_epoch, reason = 'cancellation', updated_at = p_now, finished_at = p_now,
            last_error = NULL, cause = v_cause::text
        WHERE seq = j.seq;
        PERFORM leasehold.finish(j, 'cancelled', p_now);
        -- It may have been the next to hold its key.
        INSERT INTO leasehold.freed (lock) SELECT j.lock WHERE j.lock IS NOT NULL;
        PERFORM leasehold.record(
            'cancelled', j.id, p_now, v_epoch, NULL,
            jsonb_build_object('by', 'leasehold', 'cause', v_cause)
        );
    END LOOP;
END
$lh$;

-- The verb `reclaim`, a portion of it; and what has become due, and keys that are free.
CREATE OR REPLACE FUNCTION leasehold.reclaim(p_now bigint) RETURNS SETOF leasehold.taken_back
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, 5000);
BEGIN
    PERFORM leasehold.trust_epochs(v_now);
    RETURN QUERY SELECT * FROM leasehold.sweep(1000, v_now);
    -- Only then: each worker calls this once a second, and a claim that waits looks by itself when a job becomes due.
    IF FOUND THEN
        PERFORM leasehold.wake();
    END IF;
    PERFORM leasehold.promote(1000, v_now);
    PERFORM leasehold.cancel_late(1000, v_now);
    PERFORM leasehold.unpark(1000, 0);
END
$lh$;

-- Takes back the jobs of processes that are gone.
CREATE OR REPLACE FUNCTION leasehold.recover(p_gone bigint[], p_now bigint) RETURNS SETOF leasehold.taken_back
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, 5000);
    l leasehold.leases;
    v_ended leasehold.taken_back;
BEGIN
    PERFORM leasehold.trust_epochs(v_now);
    -- A scan of the leases, for the rare moment at which a process is found dead.
    FOR l IN
        SELECT * FROM leasehold.leases WHERE process = ANY (p_gone) ORDER BY seq FOR UPDATE SKIP LOCKED
    LOOP
        v_ended := leasehold.take_back(l, 'recovery', v_now);
        IF v_ended.epoch IS NOT NULL THEN
            RETURN NEXT v_ended;
        END IF;
    END LOOP;
    DELETE FROM leasehold.processes AS p
    WHERE p.id = ANY (p_gone) AND NOT EXISTS (SELECT FROM leasehold.leases WHERE process = p.id);
    PERFORM leasehold.unpark(1000, 0);
    PERFORM leasehold.wake();
END
$lh$;
