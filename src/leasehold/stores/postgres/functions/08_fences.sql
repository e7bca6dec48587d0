-- The fence inside a caller's COMMIT.
--
-- A fence is a row that the caller's transaction inserts. The constraint trigger below is deferred, so the server itself
-- compares the epoch inside COMMIT, whichever program sends it: a pause before it passes nothing, and no lock is held before it.

-- Fences the caller's transaction, and notes how its COMMIT shall settle the lease. Answers with the refusal,
-- or null. p_savepoint: the caller knows that it is in a savepoint, and that it will not be rolled back. p_piped: it does
-- not wait for the answer before it goes on, so that a refusal is an error: nothing that was sent behind it can commit.
--
-- This look locks nothing: the comparison that counts is the COMMIT's. It tells the loser early, and while there is
-- a caller that can record it. All of it is one statement, since this is run in every transaction of an owner.
CREATE OR REPLACE FUNCTION leasehold.fence(
    p_store uuid, p_id text, p_epoch bigint, p_verb text, p_request json, p_savepoint boolean, p_piped boolean,
    p_trace boolean, p_now bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_place tid;
    v_sub boolean;
    v_refusal text;
BEGIN
    INSERT INTO leasehold.fences AS f (job_id, epoch, verb, request, now, trace)
    SELECT p_id, p_epoch, p_verb, p_request, p_now, p_trace
    FROM leasehold.jobs AS j JOIN leasehold.leases AS l ON l.seq = j.seq AND l.epoch > j.epoch
    WHERE j.id = p_id AND l.epoch = p_epoch AND p_store = (SELECT id FROM leasehold.store)
      AND NOT leasehold.has_settled(p_epoch)
      -- While this is held, a takeover knows that an owner may be paused in here.
      AND pg_try_advisory_xact_lock_shared(leasehold.fence_of(p_epoch))
    -- A row written in a savepoint has the savepoint's own transaction id.
    RETURNING f.ctid, f.xmin <> pg_current_xact_id()::xid INTO v_place, v_sub;
    IF v_place IS NULL THEN
        v_refusal := leasehold.not_fenced(p_store, p_id, p_epoch, p_verb, p_request, p_savepoint, p_trace, p_now);
        IF p_piped AND v_refusal IS NOT NULL THEN
            PERFORM leasehold.refuse(p_id, p_epoch, p_verb, v_refusal);
        END IF;
        RETURN v_refusal;
    END IF;
    -- The trigger is queued by the insertion, and keeps the row's values: nothing has to stay behind.
    DELETE FROM leasehold.fences WHERE ctid = v_place;
    IF v_sub AND NOT p_savepoint THEN
        RAISE EXCEPTION USING ERRCODE = 'LH006', MESSAGE = 'in savepoint';
    END IF;
    IF p_request IS NOT NULL AND p_verb <> 'progress' THEN
        PERFORM set_config('leasehold_fence.settled', leasehold.settled_here() || leasehold.fence_of(p_epoch) || ' ', true);
    END IF;
    RETURN NULL;
END
$lh$;

-- The epochs that this transaction will settle at its COMMIT, as ' n1 n2 ': every later verb under one of them is refused.
-- A setting of the transaction, since a savepoint that is rolled back takes it along, as it does the settlement.
CREATE OR REPLACE FUNCTION leasehold.settled_here() RETURNS text
LANGUAGE sql STABLE AS $lh$
    SELECT coalesce(nullif(current_setting('leasehold_fence.settled', true), ''), ' ')
$lh$;

CREATE OR REPLACE FUNCTION leasehold.has_settled(p_epoch bigint) RETURNS boolean
LANGUAGE sql STABLE AS $lh$
    SELECT position(' ' || leasehold.fence_of(p_epoch) || ' ' IN leasehold.settled_here()) > 0
$lh$;

-- Whether a job exists, as this transaction sees it: also one that it has added itself.
CREATE OR REPLACE FUNCTION leasehold.has_job(p_id text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER AS $lh$
    SELECT EXISTS (SELECT FROM leasehold.jobs WHERE id = p_id)
$lh$;

-- The refusal of a verb under an epoch that this transaction will settle, or null if it will not.
CREATE OR REPLACE FUNCTION leasehold.settled_in(p_id text, p_epoch bigint, p_verb text, p_now bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
BEGIN
    RETURN CASE WHEN leasehold.has_settled(p_epoch) THEN leasehold.settled_refusal(p_id, p_epoch, p_verb, p_now) END;
END
$lh$;

CREATE OR REPLACE FUNCTION leasehold.settled_refusal(p_id text, p_epoch bigint, p_verb text, p_now bigint) RETURNS text
LANGUAGE plpgsql AS $lh$
BEGIN
    RETURN jsonb_build_object(
        'presented', p_epoch, 'current', p_epoch, 'verb', p_verb, 'reason', NULL, 'alarm', false, 'owner', NULL,
        'by', (SELECT owner FROM leasehold.seen WHERE id = p_id AND epoch = p_epoch), 'settled', true,
        'now', leasehold.instant(p_now)
    )::text;
END
$lh$;

-- Why a transaction was not fenced; or fences it after all, once it is known who has the job.
CREATE OR REPLACE FUNCTION leasehold.not_fenced(
    p_store uuid, p_id text, p_epoch bigint, p_verb text, p_request json, p_savepoint boolean, p_trace boolean, p_now bigint
) RETURNS text
LANGUAGE plpgsql AS $lh$
DECLARE
    v_seen bigint;
    v_running boolean;
    v_latest boolean := current_setting('transaction_isolation') = 'read committed';
BEGIN
    PERFORM leasehold.same_store(p_store);
    IF leasehold.has_settled(p_epoch) THEN
        RETURN leasehold.settled_refusal(p_id, p_epoch, p_verb, p_now);
    END IF;
    SELECT epoch, status = 'running' INTO v_seen, v_running FROM leasehold.seen WHERE id = p_id;
    IF v_seen = p_epoch AND v_running THEN
        -- Another transaction is taking the job over at this moment, and has looked for fences already. Wait for the outcome.
        PERFORM pg_advisory_xact_lock_shared(leasehold.fence_of(p_epoch));
        IF v_latest THEN
            RETURN leasehold.fence(p_store, p_id, p_epoch, p_verb, p_request, p_savepoint, false, p_trace, p_now);
        END IF;
    -- Even if the same settlement is recorded: the caller's rows would be written again.
    ELSIF v_latest OR v_seen >= p_epoch OR p_epoch > leasehold.last_epoch() OR v_seen IS NULL THEN
        RETURN leasehold.refusal(p_id, p_epoch, p_verb, leasehold.instant(p_now), false);
    END IF;
    -- This snapshot knows the job from before it was claimed, or taken over. Who has it cannot be seen here.
    RAISE EXCEPTION USING ERRCODE = 'LH004', MESSAGE = 'stale snapshot';
END
$lh$;

-- Raises a refusal as an error, with its facts.
CREATE OR REPLACE FUNCTION leasehold.refuse(p_id text, p_epoch bigint, p_verb text, p_refusal text) RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'LH001',
        MESSAGE = 'stale epoch',
        DETAIL = (
            jsonb_build_object(
                'job_id', p_id, 'store', (SELECT id FROM leasehold.store), 'presented', p_epoch, 'verb', p_verb
            ) || p_refusal::jsonb  -- of a job that is gone, it has no epoch and no verb
        )::text;
END
$lh$;

-- Adds children in the caller's transaction, if the epoch is current, and fences it. A refusal is in the row of number 0.
CREATE OR REPLACE FUNCTION leasehold.fence_children(
    p_store uuid, p_id text, p_epoch bigint, p_jobs json, p_savepoint boolean, p_trace boolean, p_now bigint
) RETURNS SETOF leasehold.found
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_refused leasehold.found;
BEGIN
    v_refused.ord := 0;
    v_refused.refusal := leasehold.fence(p_store, p_id, p_epoch, 'add', NULL, p_savepoint, false, p_trace, p_now);
    IF v_refused.refusal IS NULL THEN
        RETURN QUERY SELECT * FROM leasehold.keep(p_jobs, p_savepoint, p_trace, leasehold.instant(p_now));
    ELSE
        RETURN NEXT v_refused;
    END IF;
END
$lh$;

-- Whether an epoch has been settled with these very words.
CREATE OR REPLACE FUNCTION leasehold.has_settled(p_id text, p_epoch bigint, p_fingerprint text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN EXISTS (
        SELECT FROM leasehold.jobs AS j
        LEFT JOIN leasehold.ownerships AS o ON o.seq = j.seq AND o.epoch = p_epoch
        WHERE j.id = p_id
          AND p_fingerprint = CASE WHEN o.seq IS NOT NULL THEN o.settlement WHEN j.epoch = p_epoch THEN j.settlement END
    );
END
$lh$;

-- What COMMIT does with a fence. It runs with the rights of the schema's owner: the caller's role need not have any on
-- the leases (trap 14).
CREATE OR REPLACE FUNCTION leasehold.at_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_refusal text;
    v_place tid;
    v_seq bigint;
BEGIN
    IF current_query() NOT IN ('COMMIT', 'commit', 'COMMIT;', 'commit;') THEN
        IF current_query() ~*
            '(?:^|;)(?:\s|/\*.*?\*/|--[^\n\r]*[\n\r])*prepare(?:\s|/\*.*?\*/|--[^\n\r]*[\n\r])+transaction\y'
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'LH007',
                MESSAGE = 'a transaction that is fenced by a lease cannot be prepared',
                HINT = 'It would keep the lease locked until it is committed, over restarts too. Commit it in one phase.';
        END IF;
        -- SET CONSTRAINTS ALL IMMEDIATE, say. To compare now would be to lock the lease to the end of the transaction,
        -- and an owner that is paused in it would hold up its successor (trap 15): so it is put off to the COMMIT again. If
        -- this is a COMMIT in other words, the trigger fires again in the same statement, and compares.
        IF NEW.put_off_at IS DISTINCT FROM statement_timestamp() THEN
            SET CONSTRAINTS leasehold.at_commit DEFERRED;
            INSERT INTO leasehold.fences AS f (job_id, epoch, verb, request, now, trace, put_off_at)
            VALUES (NEW.job_id, NEW.epoch, NEW.verb, NEW.request, NEW.now, NEW.trace, statement_timestamp())
            RETURNING f.ctid INTO v_place;
            DELETE FROM leasehold.fences WHERE ctid = v_place;
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.request IS NOT NULL AND NEW.verb <> 'progress' THEN
        SELECT leasehold.settle_one(
            NEW.job_id, NEW.epoch, s.outcome, s.result, s.error, s.retry, s.delay, s.fingerprint, s.followed_by, true, NEW.trace,
            leasehold.instant(NEW.now)
        ) INTO v_refusal
        FROM ROWS FROM (
            json_to_record(NEW.request) AS (
                outcome text, result text, error text, retry boolean, delay bigint, fingerprint text, "then" json
            )
        ) AS s(outcome, result, error, retry, delay, fingerprint, followed_by);
    ELSE
        -- FOR KEY SHARE waits for a takeover, which deletes the row, and makes it wait; a renewal does neither, at any
        -- isolation. (FOR SHARE let an owner's own renewal end its transaction under REPEATABLE READ: trap 14.)
        SELECT l.seq INTO v_seq FROM leasehold.jobs AS j JOIN leasehold.leases AS l ON l.seq = j.seq AND l.epoch > j.epoch
        WHERE j.id = NEW.job_id AND l.epoch = NEW.epoch FOR KEY SHARE OF l;
        IF NOT FOUND THEN
            v_refusal := leasehold.refusal(NEW.job_id, NEW.epoch, NEW.verb, leasehold.instant(NEW.now), false);
        ELSIF NEW.request IS NOT NULL THEN
            PERFORM leasehold.progress_in_commit(v_seq, NEW);
        END IF;
    END IF;
    IF v_refusal IS NOT NULL THEN
        PERFORM leasehold.refuse(NEW.job_id, NEW.epoch, NEW.verb, v_refusal);
    END IF;
    RETURN NULL;
END
$lh$;

-- Keeps a report of progress that was made in a caller's transaction: in a row of its own, since a renewal may have changed
-- the lease's since the snapshot of that transaction, and then REPEATABLE READ would not let it be written.
CREATE OR REPLACE FUNCTION leasehold.progress_in_commit(p_seq bigint, f leasehold.fences) RETURNS void
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.instant(f.now);
    r record;
BEGIN
    SELECT * INTO r FROM json_to_record(f.request) AS s(fraction double precision, note text, checkpoint text);
    INSERT INTO leasehold.checkpoints AS c (seq, checkpoint, epoch, progress, note, moved_at)
    VALUES (p_seq, r.checkpoint, f.epoch, r.fraction, r.note, v_now)
    ON CONFLICT (seq) DO UPDATE SET
        checkpoint = coalesce(excluded.checkpoint, c.checkpoint), epoch = excluded.epoch,
        progress = coalesce(excluded.progress, c.progress), note = coalesce(excluded.note, c.note),
        moved_at = excluded.moved_at;
    IF f.trace THEN
        PERFORM leasehold.record(
            'progressed', f.job_id, v_now, f.epoch, (SELECT owner FROM leasehold.seen WHERE id = f.job_id),
            jsonb_build_object('progress', r.fraction, 'note', r.note)
        );
    END IF;
END
$lh$;

DO $lh$
BEGIN
    -- Once: to make it anew would wait for every transaction that is fenced at this moment.
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = 'leasehold.fences'::regclass AND tgname = 'at_commit'
    ) THEN
        CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON leasehold.fences
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION leasehold.at_commit();
        -- Also where a session has set session_replication_role to replica (trap 13).
        ALTER TABLE leasehold.fences ENABLE ALWAYS TRIGGER at_commit;
    END IF;
END
$lh$;
