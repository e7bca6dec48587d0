-- How an owner ends its lease.

-- Makes the job of a lease done, and answers with its number.
CREATE OR REPLACE FUNCTION leasehold.complete_one(l leasehold.leases, p_result text, p_fingerprint text, p_now bigint)
RETURNS bigint
LANGUAGE plpgsql AS $lh$
DECLARE
    v_seq bigint;
    v_unique text;
    v_keep bigint;
BEGIN
    UPDATE leasehold.jobs AS j SET
        status = 'done', result = p_result, last_error = NULL, cause = NULL, epoch = l.epoch, reason = l.reason, owner = l.owner,
        granted_at = l.granted_at, expires_at = l.expires_at, settlement = p_fingerprint,
        progress = coalesce(l.progress, j.progress), note = coalesce(l.note, j.note), updated_at = p_now,
        finished_at = p_now
    WHERE j.seq = l.seq AND j.epoch < l.epoch
    RETURNING j.seq, j.unique_key, (j.options::json->>'keep_us')::bigint INTO v_seq, v_unique, v_keep;
    IF v_seq IS NULL THEN
        -- A settlement at REPEATABLE READ, which this has waited for, has ended the lease and left its row. The store calls
        -- again, and is refused.
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'concurrent update';
    END IF;
    INSERT INTO leasehold.finished (finished_at, status, seqs, keep_us) VALUES (p_now, 'done', ARRAY[v_seq], v_keep);
    IF v_unique IS NOT NULL THEN
        DELETE FROM leasehold.uniques WHERE unique_key = v_unique AND seq = v_seq;
    END IF;
    RETURN v_seq;
END
$lh$;

-- Settles one lease. Answers with the refusal, or null. The lease is locked, or is locked here; with p_joined, this runs
-- inside a caller's COMMIT, in whatever isolation.
CREATE OR REPLACE FUNCTION leasehold.settle_one(
    p_id text, p_epoch bigint, p_outcome text, p_result text, p_error text, p_retry boolean, p_delay bigint, p_fingerprint text,
    p_then json, p_joined boolean, p_trace boolean, p_now bigint
) RETURNS text
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    j leasehold.jobs;
    l leasehold.leases;
    v_seq bigint;
    v_snapshot boolean := current_setting('transaction_isolation') <> 'read committed';
    v_before text;
    v_errors integer;
    v_reclaims integer;
    v_cause json;
    v_final boolean := false;
    v_kept boolean := p_outcome = 'release' AND p_error IS NULL;  -- whether the last error stays what it was
    v_how text;
    v_run_at bigint;
BEGIN
    -- A lease that was renewed since the snapshot of this transaction could not be deleted here; its key can be locked.
    v_seq := leasehold.lock_lease(p_id, p_epoch, v_snapshot);
    SELECT * INTO l FROM leasehold.leases WHERE seq = v_seq AND epoch = p_epoch;
    SELECT * INTO j FROM leasehold.jobs WHERE id = p_id;
    IF l.seq IS NULL OR j.seq IS NULL OR l.epoch <= j.epoch THEN
        v_before := CASE WHEN j.epoch = p_epoch THEN j.settlement END;
        v_before := coalesce(
            (SELECT settlement FROM leasehold.ownerships WHERE seq = j.seq AND epoch = p_epoch), v_before
        );
        IF v_before = p_fingerprint THEN
            RETURN NULL;  -- a repetition, which is recorded already
        END IF;
        RETURN leasehold.refusal(p_id, p_epoch, p_outcome, p_now, NOT p_joined);
    END IF;

    IF p_outcome = 'complete' THEN
        PERFORM leasehold.complete_one(l, p_result, p_fingerprint, p_now);
    ELSE
        v_errors := j.errors + (p_outcome = 'fail')::integer;
        v_reclaims := j.reclaims + (p_outcome = 'crash')::integer;
        IF p_outcome = 'crash' THEN
            v_final := v_reclaims > j.max_reclaims;
            v_cause := leasehold.cause('crash', NULL, v_reclaims, j.max_reclaims);
        ELSE
            v_final := p_outcome = 'fail' AND NOT (p_retry AND v_errors < j.max_errors);
        END IF;
        v_how := CASE WHEN v_final THEN 'failed' WHEN p_outcome = 'fail' THEN 'retry' WHEN p_outcome = 'crash' THEN 'recovery'
                      ELSE 'release' END;
        PERFORM leasehold.archive(l, v_how, p_now, l.owner, p_error, v_cause::text, p_fingerprint);
        -- Without a delay it is due at once, also if it was transferred before its time had come.
        v_run_at := CASE WHEN v_final THEN j.run_at WHEN p_delay > 0 THEN p_now + p_delay ELSE least(j.run_at, p_now) END;
        UPDATE leasehold.jobs SET
            status = CASE WHEN v_final THEN 'failed' ELSE 'unfinished' END,
            epoch = l.epoch, reason = CASE WHEN v_final THEN l.reason ELSE v_how END,
            attempt = j.attempt + (NOT v_final)::integer, errors = v_errors, reclaims = v_reclaims,
            last_error = CASE WHEN v_kept THEN last_error ELSE p_error END,
            cause = CASE WHEN v_kept THEN cause ELSE v_cause::text END,
            run_at = v_run_at,
            progress = coalesce(l.progress, progress), note = coalesce(l.note, note), updated_at = p_now,
            finished_at = CASE WHEN v_final THEN p_now END
        WHERE seq = l.seq;
        IF v_final THEN
            PERFORM leasehold.finish(j, 'failed', p_now);
            PERFORM leasehold.record(
                'failed', j.id, p_now, l.epoch, l.owner, jsonb_build_object('error', p_error, 'errors', v_errors, 'cause', v_cause)
            );
        ELSE
            PERFORM leasehold.wait(j.seq, j.queue, j.priority, v_run_at, j.lock, p_now);
            PERFORM leasehold.record(
                CASE p_outcome WHEN 'fail' THEN 'retried' WHEN 'crash' THEN 'crashed' ELSE 'released' END, j.id, p_now,
                l.epoch, l.owner, jsonb_build_object('error', p_error, 'run_us', v_run_at, 'cause', v_cause)
            );
        END IF;
    END IF;

    IF v_snapshot THEN
        -- The job is now at the lease's own epoch, so the lease is over; the next claim removes its row.
        INSERT INTO leasehold.freed (lock, seq, epoch) VALUES (l.lock, l.seq, l.epoch);
    ELSE
        DELETE FROM leasehold.leases WHERE seq = l.seq;
        IF l.lock IS NOT NULL THEN
            INSERT INTO leasehold.freed (lock) VALUES (l.lock);
        END IF;
    END IF;
    IF p_then IS NOT NULL THEN  -- only now: a follow-up may have the unique key that the job gave back
        PERFORM FROM leasehold.keep(p_then, true, p_trace, p_now);
    END IF;
    IF p_trace AND p_outcome = 'complete' THEN
        PERFORM leasehold.record('completed', j.id, p_now, l.epoch, l.owner, '{}');
    END IF;
    IF p_outcome <> 'complete' OR l.lock IS NOT NULL THEN
        PERFORM leasehold.wake();
    END IF;
    RETURN NULL;
END
$lh$;

-- The verb `settle` for completions without follow-ups, of different jobs. Answers with the numbers of those that it has
-- done, null for all; the others are for the function below. No results: all of them null.
-- Without it, a quarter as many jobs per second are claimed and completed in batches
-- (python benchmarks/postgres.py --only "batches of 100, one process").
CREATE OR REPLACE FUNCTION leasehold.complete(
    p_ids text[], p_epochs bigint[], p_results text[], p_fingerprints text[], p_patience integer, p_now bigint
) RETURNS integer[]
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    l leasehold.leases;
    v_ended bigint;
    v_ords integer[];
    v_locks text[];
    v_uniques text[];
    v_seqs bigint[];  -- of those with a unique key
BEGIN
    IF cardinality(p_ids) = 1 THEN
        -- The same in small statements, which take half as long as the one for many.
        DELETE FROM leasehold.leases
        WHERE seq = (SELECT seq FROM leasehold.jobs WHERE id = p_ids[1] AND epoch < p_epochs[1]) AND epoch = p_epochs[1]
        RETURNING * INTO l;
        IF NOT FOUND THEN
            RETURN '{}';
        END IF;
        PERFORM leasehold.complete_one(l, coalesce(p_results[1], 'null'), coalesce(p_fingerprints[1], 'complete'), v_now);
        IF l.lock IS NOT NULL THEN
            INSERT INTO leasehold.freed (lock) VALUES (l.lock);
            PERFORM leasehold.wake();
        END IF;
        RETURN NULL;
    END IF;
    WITH holders AS MATERIALIZED (
        -- LATERAL with OFFSET 0: one look into an index for each, whatever the tables looked like when this was planned.
        SELECT s.ord, s.result, s.fingerprint, j.place AS job, l.place AS lease
        FROM unnest(p_ids, p_epochs, p_results, p_fingerprints) WITH ORDINALITY AS s(id, epoch, result, fingerprint, ord)
        CROSS JOIN LATERAL (SELECT ctid AS place, seq, epoch FROM leasehold.jobs WHERE id = s.id OFFSET 0) AS j
        CROSS JOIN LATERAL (
            -- The epoch alone decides. A paused owner keeps its name. A lease that is not above its job was ended by a
            -- caller's transaction; of that, only its row was left.
            SELECT ctid AS place FROM leasehold.leases WHERE seq = j.seq AND epoch = s.epoch AND epoch > j.epoch OFFSET 0
        ) AS l
        -- The rows are then deleted in this order: two batches cannot wait for each other (trap 11).
        ORDER BY j.seq
    ), ended AS (
        -- A row that was changed since our snapshot has another place; then it is not ours to end here.
        DELETE FROM leasehold.leases AS l USING holders AS s WHERE l.ctid = s.lease
        RETURNING l.epoch, l.reason, l.owner, l.granted_at, l.expires_at, l.progress, l.note, l.lock,
                  s.ord, s.result, s.fingerprint, s.job
    ), done AS (
        UPDATE leasehold.jobs AS j SET
            status = 'done', result = coalesce(e.result, 'null'), last_error = NULL, cause = NULL, epoch = e.epoch,
            reason = e.reason, owner = e.owner, granted_at = e.granted_at, expires_at = e.expires_at,
            settlement = coalesce(e.fingerprint, 'complete'), progress = coalesce(e.progress, j.progress),
            note = coalesce(e.note, j.note), updated_at = v_now, finished_at = v_now
        -- The epoch too: some versions of PostgreSQL do not compare a place again after they have waited.
        FROM ended AS e WHERE j.ctid = e.job AND j.epoch < e.epoch
        RETURNING j.seq, j.unique_key, (j.options::json->>'keep_us')::bigint AS keep_us, e.ord, e.lock
    ), finished AS (
        INSERT INTO leasehold.finished (finished_at, status, seqs, keep_us)
        SELECT v_now, 'done', array_agg(seq), keep_us FROM done GROUP BY keep_us
    )
    SELECT (SELECT count(*) FROM ended), array_agg(ord), array_agg(lock) FILTER (WHERE lock IS NOT NULL),
           array_agg(unique_key) FILTER (WHERE unique_key IS NOT NULL), array_agg(seq) FILTER (WHERE unique_key IS NOT NULL)
    INTO v_ended, v_ords, v_locks, v_uniques, v_seqs FROM done;
    IF v_ended <> coalesce(cardinality(v_ords), 0) THEN
        -- As in `complete_one`.
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'concurrent update';
    END IF;
    IF v_uniques IS NOT NULL THEN
        DELETE FROM leasehold.uniques WHERE unique_key = ANY (v_uniques) AND seq = ANY (v_seqs);
    END IF;
    IF v_locks IS NOT NULL THEN
        INSERT INTO leasehold.freed (lock) SELECT unnest(v_locks);
        PERFORM leasehold.wake();
    END IF;
    RETURN CASE WHEN v_ended < cardinality(p_ids) THEN coalesce(v_ords, '{}') END;
END
$lh$;

-- The verb `settle`. Answers with the refusals only.
CREATE OR REPLACE FUNCTION leasehold.settle(p_settlements json, p_patience integer, p_trace boolean, p_now bigint)
RETURNS SETOF leasehold.answer
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    s record;
    v_refusal text;
BEGIN
    -- What was committed while this waited is seen by the next statement.
    PERFORM leasehold.lock_leases(p_settlements, false);
    -- One by one and in order: each may meet its own repetition, or what an earlier one added.
    FOR s IN
        SELECT * FROM ROWS FROM (
            json_to_recordset(p_settlements) AS (
                id text, epoch bigint, outcome text, result text, error text, retry boolean, delay bigint, fingerprint text,
                "then" json
            )
        ) WITH ORDINALITY AS s(id, epoch, outcome, result, error, retry, delay, fingerprint, followed_by, ord)
    LOOP
        v_refusal := leasehold.settle_one(
            s.id, s.epoch, s.outcome, s.result, s.error, s.retry, s.delay, s.fingerprint, s.followed_by, false, p_trace, v_now
        );
        IF v_refusal IS NOT NULL THEN
            RETURN NEXT ROW(s.ord, NULL, v_refusal)::leasehold.answer;
        END IF;
    END LOOP;
END
$lh$;
