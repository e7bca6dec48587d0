-- Queues that are paused: claims pass over their jobs (04_claiming.sql), and nothing else changes.

-- The verb `pause`. Answers with the instant.
--
-- A claim looks at the table in a statement of its own, so one that begins after this has committed sees the row, whatever
-- its client has kept of earlier claims (floors). One that began before may still take jobs.
CREATE OR REPLACE FUNCTION leasehold.pause(p_queue text, p_by text, p_note text, p_patience integer, p_now bigint)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
BEGIN
    INSERT INTO leasehold.queues (name, paused_at, paused_by, paused_note) VALUES (p_queue, v_now, p_by, p_note)
    ON CONFLICT (name) DO UPDATE SET
        paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_note = excluded.paused_note;
    PERFORM leasehold.record(
        'paused', NULL, v_now, NULL, NULL, jsonb_build_object('queue', p_queue, 'by', p_by, 'note', p_note)
    );
    RETURN v_now;
END
$lh$;

-- The verb `resume`. A floor that a client keeps of the queue is as good as it was: what came to wait below it meanwhile
-- has lowered the floors (lower_floors).
CREATE OR REPLACE FUNCTION leasehold.resume(p_queue text, p_by text, p_patience integer, p_now bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
BEGIN
    DELETE FROM leasehold.queues WHERE name = p_queue;
    IF FOUND THEN
        PERFORM leasehold.record(
            'resumed', NULL, v_now, NULL, NULL, jsonb_build_object('queue', p_queue, 'by', p_by)
        );
        PERFORM leasehold.wake();
    END IF;
END
$lh$;

-- The queues that are configured. A worker that ends when nothing is left asks too.
CREATE OR REPLACE FUNCTION leasehold.known_queues() RETURNS SETOF leasehold.queues
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $lh$
BEGIN
    RETURN QUERY SELECT * FROM leasehold.queues AS q ORDER BY q.name;
END
$lh$;
