-- What the current owner may say about its job while it works.

-- Whether an epoch may write.
CREATE OR REPLACE FUNCTION leasehold.is_current(p_id text, p_epoch bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $lh$
BEGIN
    RETURN EXISTS (
        SELECT FROM leasehold.leases
        WHERE seq = (SELECT seq FROM leasehold.jobs WHERE id = p_id AND epoch < p_epoch) AND epoch = p_epoch
    );
END
$lh$;

-- The verb `check`. Answers with the refusals only.
CREATE OR REPLACE FUNCTION leasehold.check_holders(p_holders json, p_now bigint) RETURNS SETOF leasehold.answer
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
BEGIN
    PERFORM leasehold.refuse_standby();
    RETURN QUERY
    SELECT h.ord::integer, NULL::bigint, leasehold.refusal(h.id, h.epoch, 'check', leasehold.instant(p_now), true)
    FROM ROWS FROM (json_to_recordset(p_holders) AS (id text, epoch bigint)) WITH ORDINALITY AS h(id, epoch, ord)
    WHERE NOT leasehold.is_current(h.id, h.epoch);
END
$lh$;

-- The verb `renew`. Answers with the new deadline of each lease, or with its refusal, or with neither: another transaction has
-- the row locked at this moment, and it was not waited for, unless p_wait says so.
CREATE OR REPLACE FUNCTION leasehold.renew(
    p_renewals json, p_wait boolean, p_patience integer, p_trace boolean, p_now bigint
) RETURNS SETOF leasehold.answer
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_ords bigint[];  -- of those that were locked
    v_places tid[];
    v_until bigint[];
BEGIN
    -- Every batch locks its rows in the order of seq, so that two of them cannot wait for each other (trap 11).
    IF p_wait THEN
        SELECT array_agg(r.ord), array_agg(l.place), array_agg(v_now + coalesce(r.lease_us, l.lease_us))
        INTO v_ords, v_places, v_until
        FROM (
            SELECT r.*, j.seq, j.epoch AS job_epoch FROM ROWS FROM (
                json_to_recordset(p_renewals) AS (id text, epoch bigint, lease_us bigint)
            ) WITH ORDINALITY AS r(id, epoch, lease_us, ord)
            CROSS JOIN LATERAL (SELECT seq, epoch FROM leasehold.jobs WHERE id = r.id OFFSET 0) AS j
            ORDER BY j.seq
        ) AS r CROSS JOIN LATERAL (
            SELECT ctid AS place, lease_us FROM leasehold.leases
            WHERE seq = r.seq AND epoch = r.epoch AND epoch > r.job_epoch FOR NO KEY UPDATE
        ) AS l;
    ELSE
        SELECT array_agg(r.ord), array_agg(l.place), array_agg(v_now + coalesce(r.lease_us, l.lease_us))
        INTO v_ords, v_places, v_until
        FROM (
            SELECT r.*, j.seq, j.epoch AS job_epoch FROM ROWS FROM (
                json_to_recordset(p_renewals) AS (id text, epoch bigint, lease_us bigint)
            ) WITH ORDINALITY AS r(id, epoch, lease_us, ord)
            CROSS JOIN LATERAL (SELECT seq, epoch FROM leasehold.jobs WHERE id = r.id OFFSET 0) AS j
            ORDER BY j.seq
        ) AS r CROSS JOIN LATERAL (
            SELECT ctid AS place, lease_us FROM leasehold.leases
            WHERE seq = r.seq AND epoch = r.epoch AND epoch > r.job_epoch FOR NO KEY UPDATE SKIP LOCKED
        ) AS l;
    END IF;
    -- The deadline, and that the owner is there. A fence's FOR KEY SHARE neither waits for this nor is waited for.
    UPDATE leasehold.leases AS l SET expires_at = a.until, picked_up = true, renewed_at = v_now
    FROM (
        SELECT DISTINCT ON (place) place, until FROM unnest(v_ords, v_places, v_until) AS a(ord, place, until)
        ORDER BY place, ord DESC
    ) AS a
    WHERE l.ctid = a.place;
    RETURN QUERY
    SELECT r.ord::integer, v_until[r.at],
           CASE WHEN r.at IS NULL AND NOT leasehold.is_current(r.id, r.epoch)
               THEN leasehold.refusal(r.id, r.epoch, 'renew', v_now, true) END
    FROM (
        SELECT r.id, r.epoch, r.ord, array_position(v_ords, r.ord) AS at FROM ROWS FROM (
            json_to_recordset(p_renewals) AS (id text, epoch bigint)
        ) WITH ORDINALITY AS r(id, epoch, ord)
    ) AS r
    ORDER BY r.ord;
    IF p_trace THEN
        PERFORM leasehold.record('renewed', r.id, v_now, r.epoch, (
            SELECT owner FROM leasehold.leases
            WHERE seq = (SELECT seq FROM leasehold.jobs WHERE id = r.id) AND epoch = r.epoch
        ), '{}')
        FROM ROWS FROM (
            json_to_recordset(p_renewals) AS (id text, epoch bigint)
        ) WITH ORDINALITY AS r(id, epoch, ord) WHERE r.ord = ANY (v_ords);
    END IF;
    -- A lease that is made shorter may be the next to expire.
    IF EXISTS (SELECT FROM json_to_recordset(p_renewals) AS r(lease_us bigint) WHERE lease_us IS NOT NULL) THEN
        PERFORM leasehold.wake();
    END IF;
END
$lh$;

-- The verb `progress`. Answers with the refusals only.
CREATE OR REPLACE FUNCTION leasehold.progress(p_reports json, p_patience integer, p_trace boolean, p_now bigint)
RETURNS SETOF leasehold.answer
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    r record;
    l leasehold.leases;
BEGIN
    PERFORM leasehold.lock_leases(p_reports, true);
    FOR r IN
        SELECT * FROM ROWS FROM (
            json_to_recordset(p_reports) AS (id text, epoch bigint, fraction double precision, note text, checkpoint text)
        ) WITH ORDINALITY AS r(id, epoch, fraction, note, checkpoint, ord)
    LOOP
        UPDATE leasehold.leases AS l SET
            progress = coalesce(r.fraction, l.progress), note = coalesce(r.note, l.note), updated_at = v_now,
            stalls_at = v_now + l.stall_us
        WHERE l.seq = (SELECT seq FROM leasehold.jobs WHERE id = r.id AND epoch < r.epoch) AND l.epoch = r.epoch
        RETURNING l.* INTO l;
        IF NOT FOUND THEN
            RETURN NEXT ROW(r.ord, NULL, leasehold.refusal(r.id, r.epoch, 'progress', v_now, true))::leasehold.answer;
            CONTINUE;
        END IF;
        IF r.checkpoint IS NOT NULL THEN
            INSERT INTO leasehold.checkpoints (seq, checkpoint) VALUES (l.seq, r.checkpoint)
            ON CONFLICT (seq) DO UPDATE SET checkpoint = excluded.checkpoint;
        END IF;
        -- What was reported before, in a transaction of the owner's, counts no more.
        UPDATE leasehold.checkpoints AS c SET
            progress = CASE WHEN r.fraction IS NULL THEN c.progress END, note = CASE WHEN r.note IS NULL THEN c.note END
        WHERE c.seq = l.seq AND (r.fraction IS NOT NULL AND c.progress IS NOT NULL OR r.note IS NOT NULL AND c.note IS NOT NULL);
        IF p_trace THEN
            PERFORM leasehold.record(
                'progressed', r.id, v_now, r.epoch, l.owner, jsonb_build_object('progress', r.fraction, 'note', r.note)
            );
        END IF;
    END LOOP;
END
$lh$;

-- The verb `add_children`. A refusal is in the row of number 0.
CREATE OR REPLACE FUNCTION leasehold.add_children(
    p_id text, p_epoch bigint, p_jobs json, p_patience integer, p_trace boolean, p_now bigint
) RETURNS SETOF leasehold.found
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_refused leasehold.found;
BEGIN
    -- To the end of this transaction the job is not taken over; its owner may renew meanwhile.
    IF leasehold.lock_lease(p_id, p_epoch, true) IS NOT NULL THEN
        RETURN QUERY SELECT * FROM leasehold.keep(p_jobs, true, p_trace, v_now);
    ELSE
        v_refused.ord := 0;
        v_refused.refusal := leasehold.refusal(p_id, p_epoch, 'add', v_now, true);
        RETURN NEXT v_refused;
    END IF;
END
$lh$;

-- The verb `begin_effect`. Answers with the effect and whether it is fresh, or with the refusal.
CREATE OR REPLACE FUNCTION leasehold.begin_effect(
    p_id text, p_epoch bigint, p_name text, p_key text, p_again boolean, p_patience integer, p_now bigint,
    OUT refusal text, OUT fresh boolean, OUT effect_key text, OUT epoch bigint, OUT outcome text
)
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_seq bigint;
    e leasehold.effects;
BEGIN
    v_seq := leasehold.lock_lease(p_id, p_epoch, false);
    IF v_seq IS NULL THEN
        refusal := leasehold.refusal(p_id, p_epoch, 'once', v_now, true);
        RETURN;
    END IF;
    SELECT * INTO e FROM leasehold.effects WHERE seq = v_seq AND name = p_name;
    fresh := NOT FOUND OR (e.outcome IS NULL AND p_again);
    IF fresh THEN
        INSERT INTO leasehold.effects AS x (seq, name, effect_key, epoch) VALUES (v_seq, p_name, p_key, p_epoch)
        ON CONFLICT (seq, name) DO UPDATE SET epoch = excluded.epoch
        RETURNING x.* INTO e;
    END IF;
    effect_key := e.effect_key;
    epoch := e.epoch;
    outcome := e.outcome;
END
$lh$;

-- The verb `end_effect`. Answers with the refusal, {"begun":false} if there is no such effect, or null.
CREATE OR REPLACE FUNCTION leasehold.end_effect(
    p_id text, p_epoch bigint, p_name text, p_outcome text, p_patience integer, p_now bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_seq bigint;
BEGIN
    v_seq := leasehold.lock_lease(p_id, p_epoch, false);
    IF v_seq IS NULL THEN
        RETURN leasehold.refusal(p_id, p_epoch, 'once', v_now, true);
    END IF;
    RETURN leasehold.conclude(v_seq, p_name, p_epoch, p_outcome);
END
$lh$;

-- The verb `record`. Keeps a note about a guarded resource as an event. The keys that an owner is about to write to are its
-- own write: answers with the refusal, and keeps nothing, if the epoch is not current. They are open from then on, until
-- they were sealed above that epoch.
CREATE OR REPLACE FUNCTION leasehold.record_note(
    p_kind text, p_id text, p_epoch bigint, p_owner text, p_facts text, p_patience integer, p_now bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_seq bigint;
BEGIN
    IF p_kind = 'guarded' THEN
        v_seq := leasehold.lock_lease(p_id, p_epoch, true);
        IF v_seq IS NULL THEN
            RETURN leasehold.refusal(p_id, p_epoch, 'seal', v_now, true);
        END IF;
        INSERT INTO leasehold.guarded (seq, guard, key, epoch)
        SELECT DISTINCT v_seq, k->>0, k->>1, p_epoch FROM json_array_elements(p_facts::json->'keys') AS k ORDER BY 2, 3
        ON CONFLICT (seq, guard, key) DO UPDATE SET epoch = excluded.epoch;
    ELSIF p_kind = 'sealed' THEN
        SELECT seq INTO v_seq FROM leasehold.jobs WHERE id = p_id;
        DELETE FROM leasehold.guarded WHERE ctid = ANY (ARRAY(
            SELECT g.ctid FROM json_array_elements(p_facts::json->'keys') AS k CROSS JOIN LATERAL (
                SELECT x.ctid FROM leasehold.guarded AS x
                WHERE x.seq = v_seq AND x.guard = k->>0 AND x.key = k->>1 AND x.epoch < p_epoch
                OFFSET 0 FOR UPDATE
            ) AS g
        ));
    END IF;
    PERFORM leasehold.record(p_kind, p_id, v_now, p_epoch, p_owner, p_facts::jsonb);
    RETURN NULL;
END
$lh$;

-- The verb `open_keys`: keys of p_guards whose job has ended without a successor. Looks at the next jobs behind p_after, and
-- at no more than have p_limit keys; the last row is null but for where to go on, if that is not the end. Forgets the keys
-- of an owner that has completed its job.
CREATE OR REPLACE FUNCTION leasehold.open_keys(
    p_guards json, p_after bigint, p_limit integer, p_patience integer, p_now bigint
) RETURNS TABLE (id text, epoch bigint, guard text, key text, following bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_guards text[] := ARRAY(SELECT json_array_elements_text(p_guards));
    v_last bigint;
    r record;
    j record;
BEGIN
    PERFORM leasehold.alone(p_now, p_patience);
    SELECT max(seq) INTO v_last
    FROM (SELECT seq FROM leasehold.guarded WHERE seq > p_after ORDER BY seq, guard, key LIMIT p_limit) AS first;
    FOR r IN SELECT * FROM leasehold.guarded WHERE seq > p_after AND seq <= v_last ORDER BY seq, guard, key LOOP
        SELECT x.id, x.status, x.epoch INTO j FROM leasehold.jobs AS x WHERE x.seq = r.seq;
        IF j.status = 'done' AND j.epoch = r.epoch THEN
            -- One that is locked is being recorded or sealed.
            DELETE FROM leasehold.guarded WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM leasehold.guarded WHERE seq = r.seq AND guard = r.guard AND key = r.key AND epoch = r.epoch
                FOR UPDATE SKIP LOCKED
            ));
        ELSIF j.status <> 'unfinished' AND r.guard = ANY (v_guards) THEN
            RETURN QUERY VALUES (j.id, j.epoch, r.guard, r.key, NULL::bigint);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM leasehold.guarded WHERE seq > v_last) THEN
        RETURN QUERY VALUES (NULL::text, NULL::bigint, NULL::text, NULL::text, v_last);
    END IF;
END
$lh$;

-- Records how an effect that was begun has ended.
CREATE OR REPLACE FUNCTION leasehold.conclude(p_seq bigint, p_name text, p_epoch bigint, p_outcome text) RETURNS text
LANGUAGE plpgsql AS $lh$
BEGIN
    IF p_outcome IS NULL THEN
        -- What is known stays known.
        DELETE FROM leasehold.effects WHERE seq = p_seq AND name = p_name AND outcome IS NULL;
        IF NOT FOUND THEN
            PERFORM FROM leasehold.effects WHERE seq = p_seq AND name = p_name;
        END IF;
    ELSE
        UPDATE leasehold.effects SET epoch = p_epoch, outcome = p_outcome WHERE seq = p_seq AND name = p_name;
    END IF;
    RETURN CASE WHEN NOT FOUND THEN '{"begun":false}' END;
END
$lh$;
