-- What the verbs share: time, places, records and refusals.
--
-- No function here writes a sentence that a reader sees. It answers with facts: a code, names, numbers. core/ makes the sentence,
-- for all stores. The MESSAGE of an error is for a person at psql; its SQLSTATE and DETAIL are for Python.
--
-- The functions of this folder are replaced whenever a newer schema is installed. A verb is one call, so it is one round
-- trip, and no verb can leave a transaction half done. They run with the rights of the schema's owner (SECURITY DEFINER)
-- and name every table with its schema. schema.py gives all of those the same settings. Under a fixed search_path, neither
-- a caller's own nor a temporary table can put something else in the place of a table.
--
-- They look up rows by their keys, whatever the statistics say: of a table that was empty when the plan was made, or that
-- was never analyzed, PostgreSQL would rather read all of it. Hence enable_seqscan and the others. (Measured with
-- 20,000 jobs added and none analyzed: 3,700 jobs/s without, in batches of 100.)
--
-- Nor do they join a batch with a table: whatever is disabled, a plan that was made while the table was nearly empty may go
-- through all of it, and find each row's partner in the batch; and it is kept. Hence LATERAL with OFFSET 0, which asks for
-- one row after the other, and ctid, by which there is only one way to go.
--
-- All of them are PL/pgSQL: a function in plain SQL that is not inlined is planned anew in each transaction.
--
-- The order of locks: the key of a transfer, leases by seq, jobs, places. A verb that needs an earlier one while it holds a
-- later one releases that first (`hold`). Claims, sweeps and prunes pass over what is locked. One exception: a lease that a
-- caller's transaction has ended and could not remove is removed by the claim or the transfer that has the place of its
-- job; other operators leave it alone.
--
-- "Trap 6" is an entry of docs/explanation/traps.md, "P2" a promise of docs/explanation/promises.md.

-- The instant: the caller's, if its store has a clock of its own (a test's), else the server's.
CREATE OR REPLACE FUNCTION leasehold.instant(p_now bigint) RETURNS bigint
LANGUAGE plpgsql AS $lh$
DECLARE
    v_now bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
BEGIN
    IF v_now >= 4503599627370496 THEN
        RAISE EXCEPTION USING ERRCODE = 'LH003', MESSAGE = 'wrong clock', DETAIL = v_now::text;
    END IF;
    RETURN v_now;
END
$lh$;

-- The beginning of a verb in a transaction of its own; p_patience is how many milliseconds it may wait for a lock.
CREATE OR REPLACE FUNCTION leasehold.alone(p_now bigint, p_patience integer) RETURNS bigint
LANGUAGE plpgsql AS $lh$
DECLARE
    v_now bigint := coalesce(p_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    v_patience text := set_config('lock_timeout', p_patience::text, true);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off'
        OR v_now >= 4503599627370496
    THEN
        -- Each statement of a verb must see what was committed while the one before it waited for a lock (trap 6).
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION USING ERRCODE = 'LH005', MESSAGE = 'wrong isolation';
        END IF;
        -- An epoch that a crash could take back might be issued twice (trap 2).
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        PERFORM leasehold.instant(v_now);  -- which refuses it
    END IF;
    RETURN v_now;
END
$lh$;

-- Whether a worker that reported last at p_seen counts as alive: core.workers.DEAD_AFTER_US.
CREATE OR REPLACE FUNCTION leasehold.is_alive(p_seen bigint, p_now bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $lh$
    SELECT p_now - p_seen < 30000000
$lh$;

-- Keeps an event.
CREATE OR REPLACE FUNCTION leasehold.record(
    p_kind text, p_job_id text, p_now bigint, p_epoch bigint, p_owner text, p_facts jsonb
) RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    INSERT INTO leasehold.events (at, kind, job_id, epoch, owner, facts)
    VALUES (p_now, p_kind, p_job_id, p_epoch, p_owner, jsonb_strip_nulls(p_facts)::text);
END
$lh$;

-- Puts a pending job where it waits.
CREATE OR REPLACE FUNCTION leasehold.wait(
    p_seq bigint, p_queue text, p_priority integer, p_run_at bigint, p_lock text, p_now bigint
) RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    IF p_run_at > p_now THEN
        INSERT INTO leasehold.scheduled (run_at, seq, queue, rank, lock)
        VALUES (p_run_at, p_seq, p_queue, -p_priority, p_lock);
    ELSE
        PERFORM leasehold.lower_floors();
        INSERT INTO leasehold.ready (queue, rank, run_at, seq, lock)
        VALUES (p_queue, -p_priority, p_run_at, p_seq, p_lock);
    END IF;
END
$lh$;

-- Says that a job comes to wait that may be before others which were claimed already: see the floors of a claim.
CREATE OR REPLACE FUNCTION leasehold.lower_floors() RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    PERFORM nextval('leasehold.lowered');
END
$lh$;

-- Keeps the record of a lease that ends. A sentence about it is made in Python: p_cause has its facts (`cause`).
CREATE OR REPLACE FUNCTION leasehold.archive(
    l leasehold.leases, p_how text, p_now bigint, p_by text, p_note text, p_cause text, p_fingerprint text
) RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    INSERT INTO leasehold.ownerships
        (seq, epoch, owner, began, granted_at, expires_at, ended, ended_at, ended_by, note, cause, settlement)
    VALUES (l.seq, l.epoch, l.owner, l.reason, l.granted_at, l.expires_at, p_how, p_now, p_by, p_note, p_cause,
            p_fingerprint);
END
$lh$;

-- The name of the advisory lock that stands for a lock key of this store. Two keys may share one: then they only wait
-- for each other for a moment.
CREATE OR REPLACE FUNCTION leasehold.key_of(p_lock text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $lh$
BEGIN
    RETURN hashtextextended(p_lock, 'leasehold.store'::regclass::oid::bigint);
END
$lh$;

-- The name of the advisory lock that a transaction fenced by this epoch holds: the epoch, which has 53 bits, behind
-- some bits of the store's table, so that two stores in one database have different ones.
CREATE OR REPLACE FUNCTION leasehold.fence_of(p_epoch bigint) RETURNS bigint
LANGUAGE sql STABLE AS $lh$
    SELECT (('leasehold.store'::regclass::oid::bigint & 1023) << 53) | p_epoch
$lh$;

-- Whether an open transaction is fenced by an epoch that has just ended; if so, it is noted, for the upkeep that ends it. From
-- here to the end of this transaction none can begin. An exclusive lock that is only tried costs no look at other locks.
CREATE OR REPLACE FUNCTION leasehold.is_fenced(p_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $lh$
BEGIN
    IF pg_try_advisory_xact_lock(leasehold.fence_of(p_epoch)) THEN
        RETURN false;
    END IF;
    INSERT INTO leasehold.outlived (epoch) VALUES (p_epoch) ON CONFLICT DO NOTHING;
    RETURN true;
END
$lh$;

-- Why an epoch may not write, as JSON; null if it may. It is recorded, unless p_record says that it cannot be here, or it is
-- the check of an owner that has settled the job itself.
CREATE OR REPLACE FUNCTION leasehold.refusal(
    p_id text, p_epoch bigint, p_verb text, p_now bigint, p_record boolean, p_by text DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql AS $lh$
DECLARE
    h record;
    j leasehold.jobs;
    l leasehold.leases;
    o leasehold.ownerships;
    v_current bigint;
    v_reason text;
    v_by text;
    v_settled boolean := false;
    v_facts jsonb;
    v_ending jsonb;
BEGIN
    -- In one look: between two, a lease that a transfer had granted may end, and neither would show an epoch of it.
    SELECT x AS j, y AS l INTO h FROM leasehold.jobs AS x
    LEFT JOIN leasehold.leases AS y ON y.seq = x.seq AND y.epoch > x.epoch WHERE x.id = p_id;
    IF NOT FOUND THEN
        RETURN '{"unknown":true}';
    END IF;
    j := h.j;
    l := h.l;
    v_current := coalesce(l.epoch, j.epoch);
    IF v_current > 0 THEN
        v_reason := coalesce(l.reason, j.reason);
    END IF;
    -- The epoch of a narrow row is that of who ended the job; its settlement is not kept.
    IF l.seq IS NULL AND j.epoch = p_epoch AND (j.settlement IS NOT NULL OR j.narrow) THEN
        v_settled := true;
        v_reason := NULL;
        v_by := j.owner;
    END IF;
    SELECT * INTO o FROM leasehold.ownerships WHERE seq = j.seq AND epoch = p_epoch;
    IF FOUND THEN
        v_by := o.owner;
        v_settled := o.settlement IS NOT NULL;
        v_reason := CASE WHEN o.settlement IS NULL THEN o.ended END;
    END IF;
    v_facts := jsonb_build_object(
        'presented', p_epoch, 'current', v_current, 'verb', p_verb, 'reason', v_reason, 'by', coalesce(p_by, v_by)
    );
    v_facts := v_facts || jsonb_build_object('alarm', p_epoch > leasehold.last_epoch());
    IF p_record AND NOT (v_settled AND p_verb = 'check') THEN
        PERFORM leasehold.record_refusal(p_id, l.owner, v_facts, p_now);
    END IF;
    -- What core.lifecycle.ending makes a sentence's facts of: the job's end, and that of this and its newest ownership.
    v_ending := jsonb_build_object(
        'status', CASE WHEN l.seq IS NULL THEN j.status END, 'reason', j.reason, 'finished_at', j.finished_at,
        'done_by', j.owner, 'moved', CASE WHEN NOT v_settled THEN jsonb_build_array(o.ended_by, o.note, o.cause) END,
        'last', (SELECT jsonb_build_array(ended, ended_at, ended_by) FROM leasehold.ownerships
                 WHERE seq = j.seq ORDER BY epoch DESC LIMIT 1)
    );
    RETURN (
        v_facts || jsonb_build_object('owner', l.owner, 'settled', v_settled, 'now', p_now, 'ending', v_ending)
    )::text;
END
$lh$;

-- Keeps the record of a refusal: in the transaction of the verb, or, for one in a caller's transaction, afterwards.
CREATE OR REPLACE FUNCTION leasehold.record_refusal(p_id text, p_owner text, p_facts jsonb, p_now bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_facts jsonb := p_facts - 'alarm' - 'owner' - 'settled' - 'now' - 'ending' - 'job_id' - 'store';
BEGIN
    IF (p_facts->>'alarm')::boolean THEN
        PERFORM leasehold.record('alarm', p_id, p_now, (p_facts->>'current')::bigint, p_owner, v_facts);
    END IF;
    PERFORM leasehold.record('refused', p_id, p_now, (p_facts->>'current')::bigint, p_owner, v_facts);
END
$lh$;

-- Locks the lease of this epoch, if it is current, and answers with the number of its job, else with null. With p_share
-- its owner may renew meanwhile, and the job cannot be taken over; without, only this transaction may change it.
--
-- By one row after the other, not by a join: a plan that was made while `leases` was nearly empty might go the wrong way
-- round, and read all of it.
CREATE OR REPLACE FUNCTION leasehold.lock_lease(p_id text, p_epoch bigint, p_share boolean) RETURNS bigint
LANGUAGE plpgsql AS $lh$
DECLARE
    v_seq bigint := (SELECT seq FROM leasehold.jobs WHERE id = p_id);
BEGIN
    IF p_share THEN
        PERFORM FROM leasehold.leases WHERE seq = v_seq AND epoch = p_epoch FOR KEY SHARE;
    ELSE
        PERFORM FROM leasehold.leases WHERE seq = v_seq AND epoch = p_epoch FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- A statement of its own, which sees what was committed while the one before it waited. A lease that is not above its
    -- job has been ended by a transaction that could not remove it.
    RETURN (SELECT seq FROM leasehold.jobs WHERE seq = v_seq AND epoch < p_epoch);
END
$lh$;

-- Locks the leases that a batch speaks of, in the order of seq: two batches cannot wait for each other (trap 11). With
-- p_weak they are to be changed, and not to be deleted: then a fence is not waited for.
CREATE OR REPLACE FUNCTION leasehold.lock_leases(p_holders json, p_weak boolean) RETURNS void
LANGUAGE plpgsql AS $lh$
DECLARE
    h record;
BEGIN
    FOR h IN
        SELECT s.epoch, j.seq FROM json_to_recordset(p_holders) AS s(id text, epoch bigint)
        CROSS JOIN LATERAL (SELECT seq FROM leasehold.jobs WHERE id = s.id OFFSET 0) AS j
        ORDER BY j.seq
    LOOP
        IF p_weak THEN
            PERFORM FROM leasehold.leases WHERE seq = h.seq AND epoch = h.epoch FOR NO KEY UPDATE;
        ELSE
            PERFORM FROM leasehold.leases WHERE seq = h.seq AND epoch = h.epoch FOR UPDATE;
        END IF;
    END LOOP;
END
$lh$;

-- Wakes the claims that wait, if any do; NOTIFY itself sends one of many that are equal, at the commit.
CREATE OR REPLACE FUNCTION leasehold.wake() RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    -- NOTIFY takes a lock over all databases at the commit, so it is sent only if a claim waits. A waiter that registers after this look and
    -- before our commit finds the job at its next poll (trap 9).
    IF EXISTS (SELECT FROM leasehold.waiters WHERE until > clock_timestamp()) THEN
        PERFORM pg_notify('leasehold:' || 'leasehold.store'::regclass::oid, '');
    END IF;
END
$lh$;

-- Registers a process that waits for jobs, for some seconds, and answers with the channel to listen to.
CREATE OR REPLACE FUNCTION leasehold.await_jobs(p_name text, p_seconds double precision) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
BEGIN
    DELETE FROM leasehold.waiters WHERE until < clock_timestamp() - interval '1 hour';
    INSERT INTO leasehold.waiters (id, until) VALUES (p_name, clock_timestamp() + make_interval(secs => p_seconds))
    ON CONFLICT (id) DO UPDATE SET until = excluded.until;
    RETURN 'leasehold:' || 'leasehold.store'::regclass::oid;
END
$lh$;
