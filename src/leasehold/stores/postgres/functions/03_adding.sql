-- Adding jobs.

-- Keeps each job that is new. Answers with a row of number 0, which has the instant, and the jobs that were there before.
-- Unless p_savepoint, a savepoint is refused: it may be rolled back, and what was added here would vanish with it alone.
CREATE OR REPLACE FUNCTION leasehold.keep(
    p_jobs json, p_savepoint boolean, p_trace boolean, p_now bigint
) RETURNS SETOF leasehold.found
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    v_count integer := json_array_length(p_jobs);
    v_made text[];
    v_ords integer[] := '{}';
    v_ids text[] := '{}';
    w record;
    v_seq bigint;
    v_found text;
BEGIN
    RETURN NEXT ROW(0, p_now, NULL, NULL)::leasehold.found;
    IF v_count = 0 THEN
        RETURN;
    END IF;
    IF position('"run_at":' IN p_jobs::text) > 0 THEN
        PERFORM leasehold.lower_floors();
    END IF;
    IF position('"unique_key":' IN p_jobs::text) = 0 THEN
        -- The common path: no unique keys. (Where a payload speaks of one, the other path does as well.)
        WITH wished AS MATERIALIZED (
            SELECT * FROM json_populate_recordset(NULL::leasehold.wish, p_jobs) WITH ORDINALITY
        ), made AS (
            INSERT INTO leasehold.jobs AS j (
                seq, id, chosen, task, queue, priority, run_at, lock, lease_us, stall_us, start_within_us, parent, max_errors,
                max_reclaims, options, meta, payload, created_at, updated_at
            )
            SELECT nextval('leasehold.seqs'), w.*
            FROM (
                SELECT id, coalesce(chosen, true), task, queue, priority, coalesce(run_at, p_now + delay), lock, lease_us, stall_us, start_within_us,
                       parent, max_errors, max_reclaims, options, meta, payload, p_now, p_now AS updated
                FROM wished ORDER BY ordinality
            ) AS w
            ON CONFLICT (id) DO NOTHING
            RETURNING j.seq, j.id, j.queue, j.priority, j.run_at, j.lock
        ), ready AS (
            INSERT INTO leasehold.ready (queue, rank, run_at, seq, lock)
            SELECT queue, -priority, run_at, seq, lock FROM made WHERE run_at <= p_now
        ), scheduled AS (
            INSERT INTO leasehold.scheduled (run_at, seq, queue, rank, lock)
            SELECT run_at, seq, queue, -priority, lock FROM made WHERE run_at > p_now
        )
        SELECT array_agg(id) INTO v_made FROM made;
        IF cardinality(v_made) IS DISTINCT FROM v_count THEN
            SELECT array_agg(ord), array_agg(id) INTO v_ords, v_ids
            FROM (
                SELECT e.ord, e.job->>'id' AS id, row_number() OVER (PARTITION BY e.job->>'id' ORDER BY e.ord) AS nth
                FROM json_array_elements(p_jobs) WITH ORDINALITY AS e(job, ord)
            ) AS w
            WHERE nth > 1 OR v_made IS NULL OR id <> ALL (v_made);
        END IF;
    ELSE
        -- One by one, since each may give the next one's key away or take it.
        FOR w IN
            SELECT * FROM json_populate_recordset(NULL::leasehold.wish, p_jobs) WITH ORDINALITY
        LOOP
            v_seq := nextval('leasehold.seqs');
            LOOP
                SELECT id INTO v_found FROM leasehold.jobs WHERE id = w.id;
                EXIT WHEN FOUND;
                IF w.unique_key IS NOT NULL THEN
                    INSERT INTO leasehold.uniques (unique_key, seq) VALUES (w.unique_key, v_seq)
                    ON CONFLICT (unique_key) DO NOTHING;
                    IF NOT FOUND THEN
                        SELECT j.id INTO v_found FROM leasehold.uniques AS u JOIN leasehold.jobs AS j USING (seq)
                        WHERE u.unique_key = w.unique_key;
                        EXIT WHEN FOUND;
                        CONTINUE;  -- its job has just finished
                    END IF;
                END IF;
                INSERT INTO leasehold.jobs (
                    seq, id, chosen, task, queue, priority, run_at, lock, unique_key, lease_us, stall_us, start_within_us,
                    parent, max_errors, max_reclaims, options, meta, payload, created_at, updated_at
                ) VALUES (
                    v_seq, w.id, coalesce(w.chosen, true), w.task, w.queue, w.priority, coalesce(w.run_at, p_now + w.delay), w.lock, w.unique_key,
                    w.lease_us, w.stall_us, w.start_within_us, w.parent, w.max_errors, w.max_reclaims, w.options, w.meta,
                    w.payload, p_now, p_now
                ) ON CONFLICT (id) DO NOTHING;
                IF FOUND THEN
                    PERFORM leasehold.wait(
                        v_seq, w.queue, w.priority, coalesce(w.run_at, p_now + w.delay), w.lock, p_now
                    );
                    v_made := v_made || w.id;
                    v_found := NULL;
                    EXIT;
                END IF;
                DELETE FROM leasehold.uniques WHERE unique_key = w.unique_key AND seq = v_seq;
            END LOOP;
            IF v_found IS NOT NULL THEN
                v_ords := v_ords || w.ordinality::integer;
                v_ids := v_ids || v_found;
            END IF;
        END LOOP;
    END IF;
    IF v_made IS NOT NULL THEN
        -- A row written in a savepoint has the savepoint's own transaction id.
        IF NOT p_savepoint AND (SELECT xmin <> pg_current_xact_id()::xid FROM leasehold.jobs WHERE id = v_made[1]) THEN
            RAISE EXCEPTION USING ERRCODE = 'LH006', MESSAGE = 'in savepoint';
        END IF;
        IF position('"start_within_us":' IN p_jobs::text) > 0 THEN
            INSERT INTO leasehold.starts (start_by, seq)
            SELECT run_at + start_within_us, seq FROM leasehold.jobs
            WHERE id = ANY (v_made) AND start_within_us IS NOT NULL;
        END IF;
        IF p_trace THEN
            PERFORM leasehold.record('added', id, p_now, 0, NULL, jsonb_build_object('queue', queue))
            FROM leasehold.jobs WHERE id = ANY (v_made) ORDER BY seq;
        END IF;
        PERFORM leasehold.wake();
    END IF;
    IF v_ids <> '{}' THEN
        RETURN QUERY
        SELECT f.ord, p_now, NULL::text, s FROM unnest(v_ords, v_ids) AS f(ord, id) JOIN leasehold.seen AS s ON s.id = f.id;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF v_count < cardinality(v_ids) THEN
            -- It was there when this looked, and not any more: the next call adds it. Without a word it would be taken
            -- for added here, and be nowhere.
            RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'concurrent update';
        END IF;
    END IF;
END
$lh$;

-- The verb `add`, also inside a caller's transaction: of whatever isolation, and then on the caller's own lock_timeout,
-- which is for its later statements too; p_patience is null there. Else it is how many milliseconds this may wait for
-- another transaction that adds a job of the same id or unique key. p_savepoint: see `fence`.
CREATE OR REPLACE FUNCTION leasehold.add(
    p_store uuid, p_jobs json, p_savepoint boolean, p_trace boolean, p_patience integer, p_now bigint
) RETURNS SETOF leasehold.found
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
BEGIN
    IF p_patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_patience::text, true);
    END IF;
    PERFORM leasehold.same_store(p_store);
    RETURN QUERY SELECT * FROM leasehold.keep(p_jobs, p_savepoint, p_trace, leasehold.instant(p_now));
END
$lh$;

-- The verb `add` for jobs that differ by their ids and payloads alone, in a transaction of its own; p_wish is the first of
-- them. Answers with the instant; with null if one of them was there before, and then it has added none of them.
-- Without it, 0.7 times as many jobs per second are added (python benchmarks/postgres.py --only add_many), and an idle
-- claim gets a single one an eighth later (--only "from add to claim").
CREATE OR REPLACE FUNCTION leasehold.add_alike(
    p_ids text[], p_payloads text[], p_wish json, p_patience integer, p_now bigint
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.instant(p_now);
    v_wish leasehold.wish := json_populate_record(NULL::leasehold.wish, p_wish);
    v_run_at bigint := coalesce(v_wish.run_at, v_now + v_wish.delay);
    v_patience text := set_config('lock_timeout', p_patience::text, true);
BEGIN
    IF v_wish.run_at IS NOT NULL THEN
        PERFORM leasehold.lower_floors();
    END IF;
    WITH made AS (
        INSERT INTO leasehold.jobs (
            seq, id, chosen, task, queue, priority, run_at, lock, lease_us, stall_us, parent, max_errors, max_reclaims, options,
            meta, payload, created_at, updated_at
        )
        SELECT nextval('leasehold.seqs'), j.id, coalesce(v_wish.chosen, true), v_wish.task, v_wish.queue, v_wish.priority, v_run_at, v_wish.lock,
               v_wish.lease_us, v_wish.stall_us, v_wish.parent, v_wish.max_errors, v_wish.max_reclaims, v_wish.options,
               v_wish.meta, j.payload, v_now, v_now
        FROM unnest(p_ids, p_payloads) AS j(id, payload)
        RETURNING seq
    ), ready AS (
        INSERT INTO leasehold.ready (queue, rank, run_at, seq, lock)
        SELECT v_wish.queue, -v_wish.priority, v_run_at, seq, v_wish.lock FROM made WHERE v_run_at <= v_now
    )
    INSERT INTO leasehold.scheduled (run_at, seq, queue, rank, lock)
    SELECT v_run_at, seq, v_wish.queue, -v_wish.priority, v_wish.lock FROM made WHERE v_run_at > v_now;
    PERFORM leasehold.wake();
    RETURN v_now;
EXCEPTION WHEN unique_violation THEN
    RETURN NULL;
END
$lh$;

-- Refuses a transaction in another database than the store's: what is committed there is not committed here.
CREATE OR REPLACE FUNCTION leasehold.same_store(p_store uuid) RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    IF p_store IS DISTINCT FROM (SELECT id FROM leasehold.store) THEN
        RAISE EXCEPTION USING ERRCODE = 'LH002', MESSAGE = 'another store';
    END IF;
END
$lh$;
