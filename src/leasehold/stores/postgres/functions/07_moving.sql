-- Operators' verbs, and the end of what the owners that they pass over left open.

-- Locks a job where it is: its lease, or the place where it waits, and the row of the job itself.
CREATE OR REPLACE FUNCTION leasehold.hold(p_id text, OUT j leasehold.jobs, OUT l leasehold.leases)
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
BEGIN
    LOOP
        BEGIN
            -- Not a lease that a caller's transaction has ended and could not remove: a claim, which has the place, does.
            SELECT x.* INTO l FROM leasehold.leases AS x JOIN leasehold.jobs AS y ON y.seq = x.seq AND y.epoch < x.epoch
            WHERE y.id = p_id FOR UPDATE OF x;
            SELECT x.* INTO j FROM leasehold.jobs AS x WHERE x.id = p_id FOR UPDATE;
            EXIT WHEN l.epoch > j.epoch OR l.seq IS NULL AND (j.seq IS NULL OR j.status <> 'unfinished');
            IF l.seq IS NULL THEN
                PERFORM FROM leasehold.ready
                WHERE queue = j.queue AND rank = -j.priority AND run_at = j.run_at AND seq = j.seq FOR UPDATE;
                EXIT WHEN FOUND;
                PERFORM FROM leasehold.scheduled WHERE run_at = j.run_at AND seq = j.seq FOR UPDATE;
                EXIT WHEN FOUND;
                PERFORM FROM leasehold.parked
                WHERE kind = 'lock' AND behind = j.lock AND queue = j.queue AND rank = -j.priority AND run_at = j.run_at
                  AND seq = j.seq FOR UPDATE;
                EXIT WHEN FOUND;
                PERFORM FROM leasehold.parked
                WHERE kind = 'task' AND behind = coalesce(j.task, '') AND queue = j.queue AND rank = -j.priority
                  AND run_at = j.run_at AND seq = j.seq FOR UPDATE;
                EXIT WHEN FOUND;
            END IF;
            RAISE EXCEPTION USING ERRCODE = 'LH008', MESSAGE = 'job moved';
        EXCEPTION WHEN SQLSTATE 'LH008' THEN
            -- It has moved between these statements: a claim has taken it, its lease has ended, or it has become due. Look
            -- again, without what was locked here: the owner of its lease may be waiting for the row of the job (trap 11b).
        END;
    END LOOP;
END
$lh$;

-- Takes a pending job out of wherever it waits, and answers whether it was anywhere. A place that another has locked is
-- left alone.
CREATE OR REPLACE FUNCTION leasehold.leave(j leasehold.jobs) RETURNS boolean
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    v_left boolean;
BEGIN
    DELETE FROM leasehold.ready WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM leasehold.ready
        WHERE queue = j.queue AND rank = -j.priority AND run_at = j.run_at AND seq = j.seq FOR UPDATE SKIP LOCKED
    ));
    v_left := FOUND;
    DELETE FROM leasehold.scheduled WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM leasehold.scheduled WHERE run_at = j.run_at AND seq = j.seq FOR UPDATE SKIP LOCKED
    ));
    v_left := v_left OR FOUND;
    DELETE FROM leasehold.parked WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM leasehold.parked
        WHERE kind = 'lock' AND behind = j.lock AND queue = j.queue AND rank = -j.priority AND run_at = j.run_at
          AND seq = j.seq FOR UPDATE SKIP LOCKED
    ));
    v_left := v_left OR FOUND;
    DELETE FROM leasehold.parked WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM leasehold.parked
        WHERE kind = 'task' AND behind = coalesce(j.task, '') AND queue = j.queue AND rank = -j.priority
          AND run_at = j.run_at AND seq = j.seq FOR UPDATE SKIP LOCKED
    ));
    RETURN v_left OR FOUND;
END
$lh$;

-- Whom a transfer to that name is for: the live worker of that name, or else the only one that was given it, or else an
-- owner of that name. several: the live workers that were given it, if they are many. Their rows are locked, so that one
-- that ends now goes after this transfer, and finds it.
CREATE OR REPLACE FUNCTION leasehold.recipient(p_to text, p_now bigint, OUT owner text, OUT several text[])
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
BEGIN
    owner := p_to;
    PERFORM FROM leasehold.workers WHERE name = p_to AND leasehold.is_alive(seen_at, p_now) FOR KEY SHARE;
    IF NOT FOUND THEN
        several := ARRAY(
            SELECT name FROM leasehold.workers WHERE given_name = p_to AND leasehold.is_alive(seen_at, p_now) FOR KEY SHARE
        );
        IF cardinality(several) < 2 THEN
            owner := coalesce(several[1], p_to);
            several := NULL;
        END IF;
    END IF;
END
$lh$;

-- The verb `transfer`. Answers with the grant, or with why not.
CREATE OR REPLACE FUNCTION leasehold.transfer(
    p_id text, p_epoch bigint, p_to text, p_by text, p_note text, p_lease_us bigint, p_default_us bigint,
    p_patience integer, p_now bigint
) RETURNS SETOF leasehold.transferred
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    h record;
    j leasehold.jobs;
    l leasehold.leases;
    v_lock text;
    v_holder text;
    v_lasts bigint;
    v_fenced bigint[];
    v_epoch bigint;
    v_to record;
    v_answer leasehold.transferred;
BEGIN
    PERFORM leasehold.trust_epochs(v_now);
    -- A key is taken under its advisory lock. Before the rows, since claims hold it while they look at them.
    SELECT lock INTO v_lock FROM leasehold.jobs WHERE id = p_id;
    IF v_lock IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(leasehold.key_of(v_lock));
    END IF;
    SELECT * INTO h FROM leasehold.hold(p_id);
    j := h.j;
    l := h.l;
    v_now := leasehold.instant(p_now);  -- the lease begins when the key and the rows are held, not when they were asked for
    IF j.seq IS NULL OR coalesce(l.epoch, j.epoch) <> p_epoch THEN
        v_answer.answer := leasehold.refusal(p_id, p_epoch, 'transfer', v_now, true, p_by);
    ELSIF j.status <> 'unfinished' THEN
        v_answer.answer := json_build_object('status', j.status);
    ELSIF l.seq IS NULL AND j.lock IS NOT NULL THEN
        SELECT json_build_object('lock', j.lock, 'holder', x.id, 'epoch', y.epoch) INTO v_answer.answer
        FROM leasehold.leases AS y JOIN leasehold.jobs AS x ON x.seq = y.seq AND y.epoch > x.epoch WHERE y.lock = j.lock;
    END IF;
    SELECT * INTO v_to FROM leasehold.recipient(p_to, v_now);
    IF v_answer.answer IS NULL AND v_to.several IS NOT NULL THEN
        v_answer.answer := json_build_object('workers', v_to.several, 'to', p_to);
    END IF;
    IF v_answer.answer IS NOT NULL THEN
        RETURN NEXT v_answer;
        RETURN;
    END IF;

    IF l.seq IS NULL THEN
        PERFORM leasehold.leave(j);
        -- Leases of this key, and below of this job, that a caller's transaction has ended and could not remove.
        DELETE FROM leasehold.leases WHERE lock = j.lock;
    ELSE
        IF leasehold.is_fenced(l.epoch) THEN
            v_fenced := ARRAY[l.epoch];
        END IF;
        PERFORM leasehold.archive(l, 'manual', v_now, p_by, p_note, NULL, NULL);
    END IF;
    DELETE FROM leasehold.leases WHERE seq = j.seq;
    UPDATE leasehold.jobs SET
        attempt = j.attempt + (l.seq IS NOT NULL)::integer,
        progress = coalesce(l.progress, progress), note = coalesce(l.note, note), updated_at = v_now
    WHERE seq = j.seq;
    v_lasts := coalesce(p_lease_us, j.lease_us, p_default_us);
    -- Without the process: the process that moves a job is not the one that will run it, so its exit must prove nothing.
    INSERT INTO leasehold.leases (
        seq, epoch, owner, reason, lock, granted_at, expires_at, lease_us, stalls_at, stall_us, updated_at, picked_up
    ) VALUES (
        j.seq, nextval('leasehold.epochs'), v_to.owner, 'manual', j.lock, v_now, v_now + v_lasts, v_lasts,
        v_now + j.stall_us, j.stall_us, v_now, false
    ) RETURNING epoch INTO v_epoch;
    PERFORM leasehold.record(
        'transferred', p_id, v_now, v_epoch, v_to.owner, jsonb_build_object('was', l.owner, 'by', p_by, 'note', p_note)
    );
    PERFORM leasehold.wake();
    RETURN QUERY SELECT NULL::text, v_fenced, g FROM leasehold.granted AS g WHERE g.id = p_id;
END
$lh$;

-- The verbs `cancel`, `replay`, `requeue` and `finish`. Answers with the job, or with why not.
CREATE OR REPLACE FUNCTION leasehold.override(
    p_verb text, p_id text, p_epoch bigint, p_by text, p_note text, p_result text, p_patience integer, p_now bigint
) RETURNS SETOF leasehold.moved
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    h record;
    j leasehold.jobs;
    l leasehold.leases;
    v_reason text := CASE p_verb WHEN 'cancel' THEN 'cancellation' ELSE 'manual' END;
    v_status text := CASE p_verb WHEN 'cancel' THEN 'cancelled' WHEN 'finish' THEN 'done' ELSE 'unfinished' END;
    v_replay boolean := p_verb = 'replay';
    v_back boolean := p_verb IN ('replay', 'requeue');
    v_run_at bigint;
    v_epoch bigint;
    v_fenced bigint[];
    v_answer leasehold.moved;
BEGIN
    PERFORM leasehold.trust_epochs(v_now);
    SELECT * INTO h FROM leasehold.hold(p_id);
    j := h.j;
    l := h.l;
    IF j.seq IS NULL OR coalesce(l.epoch, j.epoch) <> p_epoch THEN
        v_answer.answer := leasehold.refusal(p_id, p_epoch, p_verb, v_now, true, p_by);
    ELSIF (p_verb = 'replay') = (j.status = 'unfinished') AND NOT (p_verb = 'finish' AND j.status = 'failed')
        OR p_verb = 'requeue' AND l.seq IS NULL
    THEN
        v_answer.answer := json_build_object('status', CASE WHEN l.seq IS NOT NULL THEN 'running'
                                             WHEN j.status = 'unfinished' THEN 'pending' ELSE j.status END);
    ELSIF j.narrow THEN
        v_answer.answer := '{"narrow":true}';
    ELSIF v_replay AND j.unique_key IS NOT NULL THEN
        INSERT INTO leasehold.uniques (unique_key, seq) VALUES (j.unique_key, j.seq) ON CONFLICT (unique_key) DO NOTHING;
        IF NOT FOUND THEN
            SELECT json_build_object('unique', j.unique_key, 'holder', x.id) INTO v_answer.answer
            FROM leasehold.uniques AS u JOIN leasehold.jobs AS x ON x.seq = u.seq WHERE u.unique_key = j.unique_key;
        END IF;
    END IF;
    IF v_answer.answer IS NOT NULL THEN
        RETURN NEXT v_answer;
        RETURN;
    END IF;

    IF l.seq IS NOT NULL THEN
        IF leasehold.is_fenced(l.epoch) THEN
            v_fenced := ARRAY[l.epoch];
        END IF;
        PERFORM leasehold.archive(l, v_reason, v_now, p_by, p_note, NULL, NULL);
        DELETE FROM leasehold.leases WHERE seq = j.seq;
    ELSIF j.status = 'unfinished' THEN
        PERFORM leasehold.leave(j);
    ELSE
        IF j.owner IS NOT NULL THEN
            INSERT INTO leasehold.ownerships
                (seq, epoch, owner, began, granted_at, expires_at, ended, ended_at, ended_by, note, settlement)
            VALUES (j.seq, j.epoch, j.owner, j.reason, j.granted_at, j.expires_at, 'done', j.finished_at, j.owner, NULL,
                    j.settlement);
        END IF;
        PERFORM leasehold.forget_finished(j.finished_at, ARRAY[j.seq]);
    END IF;
    v_epoch := nextval('leasehold.epochs');
    v_run_at := CASE p_verb WHEN 'replay' THEN v_now WHEN 'requeue' THEN least(j.run_at, v_now) ELSE j.run_at END;
    UPDATE leasehold.jobs SET
        status = v_status, epoch = v_epoch, reason = v_reason, attempt = j.attempt + v_back::integer,
        errors = CASE WHEN v_replay THEN 0 ELSE errors END, reclaims = CASE WHEN v_replay THEN 0 ELSE reclaims END,
        last_error = CASE p_verb WHEN 'finish' THEN NULL ELSE last_error END,
        cause = CASE p_verb WHEN 'finish' THEN NULL ELSE cause END,
        result = CASE p_verb WHEN 'finish' THEN p_result WHEN 'replay' THEN NULL ELSE result END,
        run_at = v_run_at,
        progress = coalesce(l.progress, progress), note = coalesce(l.note, note), updated_at = v_now,
        finished_at = CASE WHEN v_back THEN NULL ELSE v_now END,
        owner = NULL, granted_at = NULL, expires_at = NULL, settlement = NULL
    WHERE seq = j.seq;
    IF v_back THEN
        PERFORM leasehold.wait(j.seq, j.queue, j.priority, v_run_at, j.lock, v_now);
    ELSE
        PERFORM leasehold.finish(j, v_status, v_now);
    END IF;
    -- It held its key, or was the next to hold it.
    IF j.status = 'unfinished' AND j.lock IS NOT NULL THEN
        INSERT INTO leasehold.freed (lock) VALUES (j.lock);
    END IF;
    PERFORM leasehold.record(
        CASE p_verb WHEN 'cancel' THEN 'cancelled' WHEN 'finish' THEN 'finished' WHEN 'requeue' THEN 'requeued'
                    ELSE 'replayed' END,
        p_id, v_now, v_epoch, NULL, jsonb_build_object('was', l.owner, 'by', p_by, 'note', p_note)
    );
    PERFORM leasehold.wake();
    RETURN QUERY SELECT NULL::text, v_fenced, s FROM leasehold.seen AS s WHERE s.id = p_id;
END
$lh$;

-- The verb `resolve`.
CREATE OR REPLACE FUNCTION leasehold.resolve(
    p_id text, p_epoch bigint, p_name text, p_by text, p_outcome text, p_note text, p_patience integer, p_now bigint
) RETURNS SETOF leasehold.moved
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    h record;
    j leasehold.jobs;
    l leasehold.leases;
    v_answer leasehold.moved;
BEGIN
    SELECT * INTO h FROM leasehold.hold(p_id);
    j := h.j;
    l := h.l;
    IF j.seq IS NULL OR coalesce(l.epoch, j.epoch) <> p_epoch THEN
        v_answer.answer := leasehold.refusal(p_id, p_epoch, 'resolve', v_now, true, p_by);
    ELSIF EXISTS (SELECT FROM leasehold.effects WHERE seq = j.seq AND name = p_name AND outcome IS NOT NULL) THEN
        v_answer.answer := '{"known":true}';
    ELSE
        v_answer.answer := leasehold.conclude(j.seq, p_name, p_epoch, p_outcome);
    END IF;
    IF v_answer.answer IS NOT NULL THEN
        RETURN NEXT v_answer;
        RETURN;
    END IF;
    PERFORM leasehold.record(
        'resolved', p_id, v_now, p_epoch, l.owner, jsonb_build_object('name', p_name, 'by', p_by, 'note', p_note)
    );
    RETURN QUERY SELECT NULL::text, NULL::bigint[], s FROM leasehold.seen AS s WHERE s.id = p_id;
END
$lh$;

-- Ends the backends that hold a fence of an epoch that was taken over: a paused owner may keep rows of its own locked.
-- Called after the takeover has committed, never in it: had it rolled back, this would have ended a current owner (trap
-- 16b). Without p_epochs it is about all that are noted: who took over may have died before it came to this.
CREATE OR REPLACE FUNCTION leasehold.end_fenced(p_epochs bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_ended integer := 0;
    v_lacking text;
    v_epochs bigint[];
    v_held bigint[] := '{}';
    f record;
BEGIN
    SELECT array_agg(epoch) INTO v_epochs FROM leasehold.outlived AS o
    WHERE (p_epochs IS NULL OR epoch = ANY (p_epochs))
      AND NOT EXISTS (SELECT FROM leasehold.leases AS l JOIN leasehold.jobs AS j ON j.seq = l.seq
                      WHERE l.epoch = o.epoch AND l.epoch > j.epoch);
    IF v_epochs IS NULL THEN
        RETURN 0;
    END IF;
    FOR f IN
        SELECT k.pid, e.epoch, leasehold.fence_of(e.epoch) AS fence, count(*) OVER (PARTITION BY e.epoch) > 1 AS several
        FROM unnest(v_epochs) AS e(epoch)
        JOIN pg_locks AS k ON k.locktype = 'advisory' AND k.objsubid = 1
            AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (k.classid::bigint << 32) | k.objid::bigint = leasehold.fence_of(e.epoch)
        -- Shared, as a fence holds it; the step below may hold it otherwise.
        WHERE k.pid <> pg_backend_pid() AND k.granted AND k.mode = 'ShareLock'
    LOOP
        -- Since that look, which takes longer the more locks the server has, the session may have ended its fenced
        -- transaction and begun another. If several had the fence, only another look tells which of them still do.
        CONTINUE WHEN f.several AND NOT EXISTS (
            SELECT FROM pg_locks AS k
            WHERE k.pid = f.pid AND k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.mode = 'ShareLock'
              AND (k.classid::bigint << 32) | k.objid::bigint = f.fence
        );
        BEGIN
            -- The fence itself is asked last; if we get it, no transaction holds it any more. One after the other: who is in this
            -- step at the same time would take us for the session that it has found.
            IF NOT pg_try_advisory_xact_lock(leasehold.key_of('end ' || f.epoch)) THEN
                v_held := v_held || f.epoch;
            ELSIF NOT pg_try_advisory_xact_lock(f.fence) THEN
                v_held := v_held || f.epoch;
                v_ended := v_ended + pg_terminate_backend(f.pid)::integer;
            END IF;
        EXCEPTION WHEN insufficient_privilege THEN
            v_lacking := SQLERRM;  -- the others may be within our rights
        END;
    END LOOP;
    IF v_lacking IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = v_lacking;
    END IF;
    -- What no transaction holds any more is seen to.
    DELETE FROM leasehold.outlived WHERE epoch = ANY (v_epochs) AND epoch <> ALL (v_held);
    RETURN v_ended;
END
$lh$;
