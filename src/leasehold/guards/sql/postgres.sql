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
    recent bigint[] NOT NULL, -- of the last 16 writes: so a writer whose COMMIT got no reply finds its own
    CONSTRAINT readable CHECK (epoch > 0 AND epoch < 9007199254740992 AND counter > 0)
) WITH (fillfactor = 50); -- so that a new version of a row finds room on its page, and no index changes

-- Empty, but for the moment of an insertion. Unlogged: what a crash takes away was not committed.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold_guard.fences (
    fence text NOT NULL,
    put_off_at timestamptz
);

CREATE OR REPLACE FUNCTION leasehold_guard.version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $lh$ SELECT 2 $lh$;

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

-- Raises the mark of one key and returns it, or raises an error: LG001 if the key admits only newer owners, LG005 if its
-- mark cannot be read. p is what the caller presents; the same facts come back in the error's DETAIL.
CREATE OR REPLACE FUNCTION leasehold_guard.admit(p_key text, p json, p_verb text) RETURNS leasehold_guard.marks
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
DECLARE
    v_mark leasehold_guard.marks;
    v_facts jsonb := p::jsonb - 'keys' || jsonb_build_object('key', p_key, 'verb', p_verb);
BEGIN
    INSERT INTO leasehold_guard.marks AS m (key, epoch, counter, owner, store, recent)
    VALUES (p_key, (p->>'epoch')::bigint, 1, p->>'owner', p->>'store', ARRAY[(p->>'nonce')::bigint])
    ON CONFLICT (key) DO UPDATE SET
        epoch = excluded.epoch, counter = m.counter + 1, owner = excluded.owner, store = excluded.store,
        recent = (excluded.recent || m.recent)[1:16]
    WHERE m.epoch <= excluded.epoch AND m.epoch > 0 AND m.counter > 0
      AND (m.store = excluded.store OR m.epoch < excluded.epoch)
      AND (m.store = excluded.store OR NOT (p->>'strict')::boolean)
    RETURNING m.* INTO v_mark;
    IF NOT FOUND THEN
        SELECT * INTO v_mark FROM leasehold_guard.marks AS m WHERE m.key = p_key;
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN v_mark.epoch > 0 AND v_mark.counter > 0 THEN 'LG001' ELSE 'LG005' END,
            MESSAGE = CASE WHEN v_mark.epoch > 0 AND v_mark.counter > 0 THEN 'stale epoch' ELSE 'unreadable mark' END,
            DETAIL = (v_facts || jsonb_build_object('mark', to_jsonb(v_mark)))::text;
    END IF;
    RETURN v_mark;
END
$lh$;

-- Fences the caller's transaction, and returns the marks as they stand, the number of the transaction, and which database
-- this is. Also if one of them refuses: a caller that ignores the refusal is refused again by its COMMIT.
CREATE OR REPLACE FUNCTION leasehold_guard.fence(p text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
DECLARE
    v_place tid;
    v_sub boolean;
BEGIN
    INSERT INTO leasehold_guard.fences AS f (fence) VALUES (p)
    -- A row written in a savepoint has the savepoint's own transaction id.
    RETURNING f.ctid, f.xmin <> pg_current_xact_id()::xid INTO v_place, v_sub;
    -- The trigger is queued by the insertion, and keeps the row's values: nothing has to stay behind.
    DELETE FROM leasehold_guard.fences WHERE ctid = v_place;
    IF v_sub AND NOT (p::json->>'savepoint')::boolean THEN
        RAISE EXCEPTION USING ERRCODE = 'LG006', MESSAGE = 'in savepoint';
    END IF;
    RETURN json_build_object(
        'number', pg_current_xact_id()::text,
        'place', leasehold_guard.place(),
        'marks', (
            SELECT json_agg(m) FROM leasehold_guard.marks AS m
            WHERE m.key IN (SELECT json_array_elements_text(p::json->'keys'))
        )
    )::text;
END
$lh$;

-- Raises the mark of a key without a write; durable when the statement's own COMMIT returns.
CREATE OR REPLACE FUNCTION leasehold_guard.seal(p text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $lh$
DECLARE
    v_before leasehold_guard.marks;
    v_key text := p::json->'keys'->>0;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM set_config('lock_timeout', p::json->>'busy_ms', true);
    SELECT * INTO v_before FROM leasehold_guard.marks AS m WHERE m.key = v_key;
    RETURN json_build_object(
        'before', CASE WHEN v_before.key IS NOT NULL THEN row_to_json(v_before) END,
        'mark', row_to_json(leasehold_guard.admit(v_key, p::json, 'seal'))
    )::text;
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
    v_key text;
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
            INSERT INTO leasehold_guard.fences AS f (fence, put_off_at) VALUES (NEW.fence, statement_timestamp())
            RETURNING f.ctid INTO v_place;
            DELETE FROM leasehold_guard.fences WHERE ctid = v_place;
            RETURN NULL;
        END IF;
    END IF;
    -- In sorted order, as they come: two transactions that fence the same keys do not wait for each other in a circle.
    FOR v_key IN SELECT json_array_elements_text(NEW.fence::json->'keys') LOOP
        IF current_setting('transaction_isolation') = 'read committed' THEN
            PERFORM leasehold_guard.admit(v_key, NEW.fence::json, 'write');
        ELSE
            BEGIN
                PERFORM leasehold_guard.admit(v_key, NEW.fence::json, 'write');
            EXCEPTION WHEN serialization_failure THEN
                -- The mark has changed since this transaction's snapshot, which cannot tell who changed it.
                RAISE EXCEPTION USING
                    ERRCODE = 'serialization_failure',
                    MESSAGE = 'stale snapshot',
                    DETAIL = (NEW.fence::jsonb - 'keys' || jsonb_build_object('key', v_key, 'verb', 'write'))::text,
                    HINT = 'Run the transaction again, unless StaleEpoch.find(error) returns a refusal.';
            END;
        END IF;
    END LOOP;
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
REVOKE ALL ON FUNCTION leasehold_guard.admit(text, json, text), leasehold_guard.at_commit() FROM PUBLIC;
