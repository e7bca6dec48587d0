-- What SqlGuard installs in a PostgreSQL database: marks, and the fence inside COMMIT.
--
-- A fence is a row that the caller's transaction inserts. The constraint trigger below is deferred, so the server itself
-- compares and raises the mark inside COMMIT, whichever client sends it. Nothing is locked before that: an owner that is
-- paused in its transaction cannot block the seal of its successor.

CREATE SCHEMA IF NOT EXISTS leasehold_guard;

-- One row per key, for ever: a mark that is removed lets a stale owner in.
CREATE TABLE IF NOT EXISTS leasehold_guard.marks (
    key text COLLATE "C" PRIMARY KEY,
    epoch bigint NOT NULL,
    counter bigint NOT NULL,
    owner text NOT NULL,
    store text NOT NULL,
    -- Of the last 16 writes, so that a writer whose COMMIT got no reply finds its own. There is no CHECK constraint, which
    -- PostgreSQL would parse anew for every write; `admit` refuses what is not a mark.
    recent bigint[] NOT NULL
) WITH (fillfactor = 50); -- so that a new version of a row finds room on its page, and no index changes

-- Empty, but for the moment of an insertion. Unlogged: what a crash takes away was not committed.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold_guard.fences (
    key text NOT NULL,
    epoch bigint NOT NULL,
    owner text NOT NULL,
    store text NOT NULL,
    job text,
    nonce bigint NOT NULL,
    token text NOT NULL,
    same_store boolean NOT NULL, -- whether the key may not pass to another store
    put_off_at timestamptz
);

CREATE OR REPLACE FUNCTION leasehold_guard.version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $lh$ SELECT 3 $lh$;

-- Which database this is. Another one with this schema has other marks, also if it is a copy of this one. The session
-- remembers it: to read it takes 40 µs, from a file of the server.
CREATE OR REPLACE FUNCTION leasehold_guard.place() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
DECLARE
    v_place text := current_setting('leasehold.place', true);
BEGIN
    IF v_place IS NULL OR v_place = '' THEN
        SELECT c.system_identifier || '/' || d.oid INTO v_place
        FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = current_database();
        PERFORM set_config('leasehold.place', v_place, false);
    END IF;
    RETURN v_place;
END
$lh$;

-- A mark as JSON, or null.
CREATE OR REPLACE FUNCTION leasehold_guard.mark(p_key text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
    SELECT pg_catalog.row_to_json(m)::text FROM leasehold_guard.marks AS m WHERE m.key = p_key
$lh$;

-- Raises the mark of one key, or raises an error: LG001 if the key admits only newer owners, LG005 if its mark cannot be
-- read. The error's DETAIL has the facts. It has the rights of the functions below, which are its only callers.
CREATE OR REPLACE FUNCTION leasehold_guard.admit(f leasehold_guard.fences, p_verb text) RETURNS void
LANGUAGE plpgsql AS $lh$
DECLARE
    v_mark leasehold_guard.marks;
BEGIN
    INSERT INTO leasehold_guard.marks AS m (key, epoch, counter, owner, store, recent)
    VALUES (f.key, f.epoch, 1, f.owner, f.store, ARRAY[f.nonce])
    ON CONFLICT (key) DO UPDATE SET
        epoch = excluded.epoch, counter = m.counter + 1, owner = excluded.owner, store = excluded.store,
        recent = (excluded.recent || m.recent)[1:16]
    WHERE m.epoch <= excluded.epoch AND m.epoch > 0 AND m.counter > 0
      AND (m.store = excluded.store OR m.epoch < excluded.epoch)
      AND (m.store = excluded.store OR NOT f.same_store);
    IF NOT FOUND THEN
        SELECT * INTO v_mark FROM leasehold_guard.marks AS m WHERE m.key = f.key;
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN v_mark.epoch > 0 AND v_mark.counter > 0 THEN 'LG001' ELSE 'LG005' END,
            MESSAGE = CASE WHEN v_mark.epoch > 0 AND v_mark.counter > 0 THEN 'stale epoch' ELSE 'unreadable mark' END,
            DETAIL = (to_jsonb(f) || jsonb_build_object('verb', p_verb, 'mark', to_jsonb(v_mark)))::text;
    END IF;
END
$lh$;

-- Fences the caller's transaction for one key. Returns the number of the transaction and which database this is, and behind
-- them the mark as JSON if it is of another store or refuses. Refusing is left to COMMIT: a caller that ignores the refusal
-- is refused again.
CREATE OR REPLACE FUNCTION leasehold_guard.fence(
    p_key text, p_epoch bigint, p_owner text, p_store text, p_job text, p_nonce bigint, p_token text, p_same_store boolean,
    p_savepoint boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
DECLARE
    v_place tid;
    v_sub boolean;
    v_unusual boolean;
BEGIN
    INSERT INTO leasehold_guard.fences AS f (key, epoch, owner, store, job, nonce, token, same_store)
    VALUES (p_key, p_epoch, p_owner, p_store, p_job, p_nonce, p_token, p_same_store)
    -- A row written in a savepoint has the savepoint's own transaction id.
    RETURNING f.ctid, f.xmin <> pg_current_xact_id()::xid, EXISTS (
        SELECT FROM leasehold_guard.marks AS m
        WHERE m.key = p_key AND NOT (m.store = p_store AND m.epoch <= p_epoch AND m.epoch > 0 AND m.counter > 0)
    ) INTO v_place, v_sub, v_unusual;
    -- The trigger is queued by the insertion, and keeps the row's values: nothing has to stay behind.
    DELETE FROM leasehold_guard.fences WHERE ctid = v_place;
    IF v_sub AND NOT p_savepoint THEN
        RAISE EXCEPTION USING ERRCODE = 'LG006', MESSAGE = 'in savepoint';
    END IF;
    IF v_unusual THEN
        RETURN concat_ws(' ', pg_current_xact_id(), leasehold_guard.place(), leasehold_guard.mark(p_key));
    END IF;
    RETURN pg_current_xact_id() || ' ' || coalesce(
        nullif(current_setting('leasehold.place', true), ''), leasehold_guard.place()
    );
END
$lh$;

-- Raises the mark of a key without a write; durable when the statement's own COMMIT returns.
CREATE OR REPLACE FUNCTION leasehold_guard.seal(
    p_key text, p_epoch bigint, p_owner text, p_store text, p_job text, p_nonce bigint, p_token text, p_same_store boolean,
    p_busy_ms bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
DECLARE
    v_before text := leasehold_guard.mark(p_key);
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM set_config('lock_timeout', p_busy_ms::text, true);
    PERFORM leasehold_guard.admit(
        ROW(p_key, p_epoch, p_owner, p_store, p_job, p_nonce, p_token, p_same_store, NULL)::leasehold_guard.fences, 'seal'
    );
    RETURN json_build_object('before', v_before::json, 'mark', leasehold_guard.mark(p_key)::json)::text;
END
$lh$;

-- Which sessions have a mark locked: for the message of a seal that waited in vain.
CREATE OR REPLACE FUNCTION leasehold_guard.holders() RETURNS SETOF integer
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
    SELECT DISTINCT pid FROM pg_catalog.pg_locks
    WHERE relation = 'leasehold_guard.marks'::regclass AND mode = 'RowExclusiveLock' AND granted
      AND pid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
$lh$;

-- Removes the mark of a proof; of no other key.
CREATE OR REPLACE FUNCTION leasehold_guard.end_proof(p_key text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
    DELETE FROM leasehold_guard.marks WHERE key = p_key AND key LIKE 'leasehold prove %'
$lh$;

-- What COMMIT does with a fence. It runs with the rights of the schema's owner: the caller's role needs none on the marks.
CREATE OR REPLACE FUNCTION leasehold_guard.at_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
DECLARE
    v_place tid;
BEGIN
    IF current_query() NOT IN ('COMMIT', 'commit', 'COMMIT;', 'commit;') THEN
        IF current_query() ~*
            '(?:^|;)(?:\s|/\*.*?\*/|--[^\n\r]*[\n\r])*prepare(?:\s|/\*.*?\*/|--[^\n\r]*[\n\r])+transaction\y'
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'LG007',
                MESSAGE = 'a transaction that is fenced by a guard cannot be prepared',
                HINT = 'It would keep the marks locked until it is committed, over restarts too. Commit it in one phase.';
        END IF;
        -- SET CONSTRAINTS ALL IMMEDIATE, for example. To compare now would lock the mark to the end of the transaction,
        -- and an owner that is paused in it would block its successor: so it is put off to the COMMIT again. If this is
        -- a COMMIT in other words, the trigger fires again in the same statement, and compares.
        IF NEW.put_off_at IS DISTINCT FROM statement_timestamp() THEN
            SET CONSTRAINTS leasehold_guard.at_commit DEFERRED;
            NEW.put_off_at := statement_timestamp();
            INSERT INTO leasehold_guard.fences AS f VALUES (NEW.*)
            RETURNING f.ctid INTO v_place;
            DELETE FROM leasehold_guard.fences WHERE ctid = v_place;
            RETURN NULL;
        END IF;
    END IF;
    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM leasehold_guard.admit(NEW, 'write');
    ELSE
        BEGIN
            PERFORM leasehold_guard.admit(NEW, 'write');
        EXCEPTION WHEN serialization_failure THEN
            -- The mark has changed since this transaction's snapshot, which cannot tell who changed it.
            RAISE EXCEPTION USING
                ERRCODE = 'serialization_failure',
                MESSAGE = 'stale snapshot',
                DETAIL = (to_jsonb(NEW) || jsonb_build_object('verb', 'write'))::text,
                HINT = 'Run the transaction again, unless StaleEpoch.find(error) returns a refusal.';
        END;
    END IF;
    RETURN NULL;
END
$lh$;

DO $lh$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_trigger
        WHERE tgrelid = 'leasehold_guard.fences'::regclass AND tgname = 'at_commit'
    ) THEN
        CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON leasehold_guard.fences
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION leasehold_guard.at_commit();
        -- Also where a session has set session_replication_role to replica.
        ALTER TABLE leasehold_guard.fences ENABLE ALWAYS TRIGGER at_commit;
    END IF;
END
$lh$;

-- `admit` would let a role raise a mark past the fence, and only the functions above call it.
REVOKE ALL ON FUNCTION leasehold_guard.admit(leasehold_guard.fences, text), leasehold_guard.at_commit() FROM PUBLIC;
