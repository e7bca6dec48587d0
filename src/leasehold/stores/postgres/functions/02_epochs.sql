-- Epochs, and how the store notices that it may have forgotten some.

-- Refuses what a standby cannot answer: it follows another server, and knows only what that one was a while ago.
CREATE OR REPLACE FUNCTION leasehold.refuse_standby() RETURNS void
LANGUAGE plpgsql VOLATILE AS $lh$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = '25006', MESSAGE = 'in recovery';
    END IF;
END
$lh$;

-- What differs between this server and any other that could have the same data: a promoted standby (timeline), a copied
-- data directory or one after a crash (start of the postmaster), a restored dump (OIDs). See traps 1 to 3. The start of
-- the postmaster, to the microsecond, also stands for the system identifier, which would be read from a file each time.
-- Plain SQL, which is put in the place of its call; not for a standby.
CREATE OR REPLACE FUNCTION leasehold.here() RETURNS text
LANGUAGE sql VOLATILE AS $lh$
    SELECT concat_ws(
        '/',
        -- pg_control_checkpoint() would still show the old timeline after a promotion.
        left(pg_walfile_name(pg_current_wal_lsn()), 8),
        pg_relation_filepath('leasehold.store'::regclass),  -- it begins with the database's OID
        'leasehold.store'::regclass::oid,
        extract(epoch FROM pg_postmaster_start_time())
    )
$lh$;

-- What this transaction writes into the row of the store: where it is, and its own number, which the row will have as its
-- xmin. A row that was put back from a dump, into the same table of the same server, has another.
CREATE OR REPLACE FUNCTION leasehold.fingerprint() RETURNS text
LANGUAGE plpgsql VOLATILE AS $lh$
BEGIN
    RETURN concat_ws('/', leasehold.here(), pg_current_xact_id()::xid);
END
$lh$;

-- The highest epoch that was issued.
CREATE OR REPLACE FUNCTION leasehold.last_epoch() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $lh$
BEGIN
    RETURN (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM leasehold.epochs);
END
$lh$;

-- Makes the next epoch be at least p_least, and above all that were issued.
CREATE OR REPLACE FUNCTION leasehold.raise_epochs(p_least bigint) RETURNS bigint
LANGUAGE plpgsql AS $lh$
DECLARE
    v_next bigint;
BEGIN
    -- No epoch may be drawn between our look and our change, or an epoch could be issued twice. ALTER SEQUENCE takes a lock
    -- that conflicts with nextval's until the commit, setval does not; so alter first, to nothing new, and then look.
    ALTER SEQUENCE leasehold.epochs NO CYCLE;
    v_next := greatest(leasehold.last_epoch() + 1, p_least);
    EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', 'leasehold.epochs'::regclass, v_next);
    RETURN v_next;
END
$lh$;

-- Called by every verb that issues epochs, before it draws: connections survive promotions, so it is not enough to look
-- once per connection (trap 3).
CREATE OR REPLACE FUNCTION leasehold.trust_epochs(p_now bigint) RETURNS void
LANGUAGE plpgsql AS $lh$
DECLARE
    v_here text;
    v_was text;
    v_known boolean;
    v_next bigint;
BEGIN
    PERFORM leasehold.refuse_standby();
    v_here := leasehold.here();
    IF EXISTS (SELECT FROM leasehold.store WHERE fingerprint = concat_ws('/', v_here, xmin)) THEN
        RETURN;
    END IF;
    SELECT fingerprint, fingerprint = concat_ws('/', v_here, xmin) INTO v_was, v_known FROM leasehold.store FOR UPDATE;
    IF v_known THEN
        RETURN;  -- another transaction has just done it
    END IF;
    v_next := leasehold.raise_epochs(p_now);
    UPDATE leasehold.store SET fingerprint = leasehold.fingerprint();
    -- What was claimed and forgotten waits again, below the floors; and the number by which they are known was forgotten too.
    PERFORM setval('leasehold.lowered', v_next);
    PERFORM leasehold.record(
        'advanced', NULL, p_now, v_next, NULL,
        jsonb_build_object('was', v_was, 'is', v_here)
    );
END
$lh$;

-- Draws an epoch that no owner gets, above everything that was issued, the clock and p_above.
CREATE OR REPLACE FUNCTION leasehold.advance(p_above bigint, p_patience integer, p_now bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_epoch bigint;
BEGIN
    PERFORM FROM leasehold.store FOR UPDATE;
    PERFORM leasehold.raise_epochs(greatest(v_now, p_above + 1));
    v_epoch := nextval('leasehold.epochs');
    UPDATE leasehold.store SET fingerprint = leasehold.fingerprint();
    PERFORM leasehold.record('advanced', NULL, v_now, v_epoch, NULL, jsonb_build_object('above', p_above));
    RETURN v_epoch;
END
$lh$;
