-- Pruning: by the verb `prune`, and in portions by the policy of `tend`.

-- Removes jobs from the record of those that finished at that instant.
CREATE OR REPLACE FUNCTION leasehold.forget_finished(p_at bigint, p_seqs bigint[]) RETURNS void
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    c_status CONSTANT text[] := '{done,failed,cancelled,narrow}';
BEGIN
    UPDATE leasehold.finished SET seqs = ARRAY(SELECT u.seq FROM unnest(seqs) AS u(seq) WHERE u.seq <> ALL (p_seqs))
    WHERE status = ANY (c_status) AND finished_at = p_at AND seqs && p_seqs;
    DELETE FROM leasehold.finished WHERE status = ANY (c_status) AND finished_at = p_at AND seqs = '{}';
END
$lh$;

-- Removes jobs that are finished and locked, with all that is kept of them, and answers with how many. One whose id the
-- caller chose leaves a narrow row, unless it finished before p_ids_before.
CREATE OR REPLACE FUNCTION leasehold.remove(p_seqs bigint[], p_ids_before bigint) RETURNS integer
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    v_seqs bigint[];
    v_instants bigint[];
    v_instant bigint;
BEGIN
    SELECT array_agg(seq), array_agg(DISTINCT finished_at) INTO v_seqs, v_instants
    FROM leasehold.jobs WHERE seq = ANY (p_seqs);
    FOREACH v_instant IN ARRAY coalesce(v_instants, '{}') LOOP
        PERFORM leasehold.forget_finished(v_instant, v_seqs);
    END LOOP;
    WITH narrowed AS (
        UPDATE leasehold.jobs SET
            narrow = true, task = NULL, queue = '', priority = 0, run_at = finished_at, lock = NULL, unique_key = NULL,
            lease_us = NULL, stall_us = NULL, start_within_us = NULL, parent = NULL, max_errors = 5, max_reclaims = 3,
            options = NULL, meta = NULL, payload = '',
            attempt = 0, errors = 0, reclaims = 0, result = NULL, last_error = NULL, cause = NULL, progress = NULL, note = NULL,
            created_at = finished_at, updated_at = finished_at, owner = NULL, granted_at = NULL, expires_at = NULL,
            settlement = NULL
        WHERE seq = ANY (v_seqs) AND chosen AND finished_at >= p_ids_before
        RETURNING seq, finished_at
    )
    INSERT INTO leasehold.finished (finished_at, status, seqs)
    SELECT finished_at, 'narrow', array_agg(seq) FROM narrowed GROUP BY finished_at;
    DELETE FROM leasehold.jobs WHERE seq = ANY (v_seqs) AND NOT narrow;
    DELETE FROM leasehold.ownerships WHERE seq = ANY (v_seqs);
    DELETE FROM leasehold.effects WHERE seq = ANY (v_seqs);
    DELETE FROM leasehold.checkpoints WHERE seq = ANY (v_seqs);
    DELETE FROM leasehold.guarded WHERE seq = ANY (v_seqs);
    RETURN coalesce(cardinality(v_seqs), 0);
END
$lh$;

-- Removes up to p_limit narrow rows of jobs that finished before p_before, and answers with how many.
CREATE OR REPLACE FUNCTION leasehold.forget_ids(p_before bigint, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $lh$
#variable_conflict use_column
DECLARE
    v_seqs bigint[];
    v_instants bigint[];
    v_instant bigint;
BEGIN
    WITH removed AS (
        DELETE FROM leasehold.jobs WHERE narrow AND seq = ANY (ARRAY(
            SELECT u.seq
            FROM (SELECT seqs FROM leasehold.finished WHERE status = 'narrow' AND finished_at < p_before
                  ORDER BY finished_at OFFSET 0) AS f
            CROSS JOIN LATERAL unnest(f.seqs) AS u(seq)
            LIMIT p_limit
        )) RETURNING seq, finished_at
    )
    SELECT array_agg(seq), array_agg(DISTINCT finished_at) INTO v_seqs, v_instants FROM removed;
    FOREACH v_instant IN ARRAY coalesce(v_instants, '{}') LOOP
        PERFORM leasehold.forget_finished(v_instant, v_seqs);
    END LOOP;
    RETURN coalesce(cardinality(v_seqs), 0);
END
$lh$;

-- Removes up to p_limit processes that hold no lease, and whose workers, if they have any, no longer report.
CREATE OR REPLACE FUNCTION leasehold.forget_processes(p_limit integer) RETURNS void
LANGUAGE plpgsql AS $lh$
BEGIN
    -- One statement, and so one snapshot: a process that has just claimed its first job is seen with its lease, or not at
    -- all (trap 20b). A process without a worker that is claiming its next job at this moment may lose its row; then that
    -- lease ends by its deadline only. The leases are read once, and not once for each process: no index has their
    -- processes.
    DELETE FROM leasehold.processes WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM leasehold.processes AS p
        WHERE p.id <> ALL (ARRAY(SELECT DISTINCT l.process FROM leasehold.leases AS l WHERE l.process IS NOT NULL))
          AND jsonb_build_array(p.host, p.boot, p.namespace, p.pid, p.started) <> ALL (ARRAY(
              SELECT w.process::jsonb FROM leasehold.workers AS w WHERE w.process IS NOT NULL
          ))
        ORDER BY p.id LIMIT p_limit
    ));
END
$lh$;

-- The verb `prune`, which is one portion: p_limit jobs, and p_events of what else is kept. Answers with how many of
-- each it removed. No owner waits for it: it locks what is finished, and no more of it than is soon done.
CREATE OR REPLACE FUNCTION leasehold.prune(
    p_keep_us bigint, p_limit integer, p_events integer, p_keep_ids_us bigint, p_patience integer, p_now bigint,
    OUT jobs integer, OUT events integer, OUT ids integer
)
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_before bigint := v_now - p_keep_us;
    v_ids_before bigint := coalesce(v_now - p_keep_ids_us, 0);
    v_seqs bigint[];
BEGIN
    -- Rows that an operator is replaying are left to the next call. One after the other, and the parents in a subquery of
    -- their own: a join might go through all jobs for each portion. A child stays as long as its parent can be replayed,
    -- and would ask for it again. A job stays until its open keys (see `open_keys`) are sealed.
    SELECT array_agg(seq) INTO v_seqs FROM (
        SELECT j.seq
        FROM (
            SELECT seqs FROM (
                SELECT finished_at, seqs FROM leasehold.finished WHERE status = 'done' AND finished_at < v_before
                UNION ALL
                SELECT finished_at, seqs FROM leasehold.finished WHERE status = 'failed' AND finished_at < v_before
                UNION ALL
                SELECT finished_at, seqs FROM leasehold.finished WHERE status = 'cancelled' AND finished_at < v_before
            ) AS every ORDER BY finished_at OFFSET 0
        ) AS f
        CROSS JOIN LATERAL unnest(f.seqs) AS u(seq)
        CROSS JOIN LATERAL (
            SELECT x.seq FROM leasehold.jobs AS x
            WHERE x.seq = u.seq
              AND NOT EXISTS (SELECT FROM leasehold.jobs AS p WHERE p.id = x.parent AND NOT p.narrow OFFSET 0)
              AND NOT EXISTS (
                  SELECT FROM leasehold.guarded AS g
                  WHERE g.seq = x.seq AND (x.status <> 'done' OR g.epoch <> x.epoch) OFFSET 0
              )
            OFFSET 0 FOR UPDATE OF x SKIP LOCKED
        ) AS j
        LIMIT p_limit
    ) AS old;
    -- What was replayed before it was locked here is unfinished now, or has finished again since.
    jobs := leasehold.remove(ARRAY(
        SELECT seq FROM leasehold.jobs
        WHERE seq = ANY (v_seqs) AND status <> 'unfinished' AND NOT narrow AND finished_at < v_before
    ), v_ids_before);
    DELETE FROM leasehold.events WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM leasehold.events AS e
        WHERE at < v_before AND (
            kind <> 'guarded'
            OR NOT EXISTS (
                SELECT FROM leasehold.jobs AS j
                WHERE j.id = e.job_id AND (
                    j.status = 'unfinished' OR EXISTS (SELECT FROM leasehold.guarded AS g WHERE g.seq = j.seq)
                ) OFFSET 0
            )
        ) ORDER BY at LIMIT p_events
    ));
    GET DIAGNOSTICS events = ROW_COUNT;
    ids := leasehold.forget_ids(v_ids_before, p_limit);
    PERFORM leasehold.forget_processes(p_events);
END
$lh$;

-- The verb `prune_job`. Answers with null, or with why not.
CREATE OR REPLACE FUNCTION leasehold.prune_job(
    p_id text, p_epoch bigint, p_by text, p_note text, p_keep_ids_us bigint, p_patience integer, p_now bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    h record;
    j leasehold.jobs;
    l leasehold.leases;
    v_parent text;
    v_effect text;
    v_open boolean;
BEGIN
    SELECT * INTO h FROM leasehold.hold(p_id);
    j := h.j;
    l := h.l;
    IF j.seq IS NULL OR coalesce(l.epoch, j.epoch) <> p_epoch THEN
        RETURN leasehold.refusal(p_id, p_epoch, 'prune', v_now, true, p_by);
    ELSIF j.narrow THEN
        RETURN '{"narrow":true}';
    END IF;
    -- As in `prune_due`.
    v_parent := (SELECT id FROM leasehold.jobs WHERE id = j.parent AND NOT narrow);
    v_effect := (SELECT min(name) FROM leasehold.effects WHERE seq = j.seq AND outcome IS NULL);
    v_open := EXISTS (
        SELECT FROM leasehold.guarded AS g WHERE g.seq = j.seq AND (j.status <> 'done' OR g.epoch <> j.epoch)
    );
    IF j.status = 'unfinished' OR v_parent IS NOT NULL OR v_effect IS NOT NULL OR v_open THEN
        RETURN json_build_object(
            'kept', CASE WHEN l.seq IS NOT NULL THEN 'running' WHEN j.status = 'unfinished' THEN 'pending' ELSE j.status END,
            'parent', v_parent, 'effect', v_effect
        );
    END IF;
    PERFORM leasehold.remove(ARRAY[j.seq], coalesce(v_now - p_keep_ids_us, 0));
    PERFORM leasehold.record('pruned', p_id, v_now, p_epoch, NULL, jsonb_build_object('by', p_by, 'note', p_note));
    RETURN NULL;
END
$lh$;

-- The part of the verb `tend` that prunes jobs: one portion of those of the status p_kind that finished more than p_keep_us
-- ago, or, for 'kept', of those whose own time is over; from the instant p_from on, and all of one instant together. Answers
-- with how many it removed, and where the next portion begins; null at the end.
CREATE OR REPLACE FUNCTION leasehold.prune_due(
    p_kind text, p_keep_us bigint, p_from bigint, p_limit integer, p_keep_ids_us bigint, p_patience integer, p_now bigint,
    OUT jobs integer, OUT following bigint
)
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_now bigint := leasehold.alone(p_now, p_patience);
    v_before bigint := v_now - p_keep_us;
    v_last bigint;
    v_seen integer := 0;
    v_seqs bigint[] := '{}';
    f record;
BEGIN
    FOR f IN
        SELECT finished_at AS at, seqs, keep_us IS NOT NULL AS own FROM leasehold.finished
        WHERE status = p_kind AND finished_at >= p_from AND finished_at < v_before
        UNION ALL
        SELECT finished_at + keep_us, seqs, false FROM leasehold.finished
        WHERE p_kind = 'kept' AND keep_us IS NOT NULL AND finished_at + keep_us >= p_from AND finished_at + keep_us < v_before
        ORDER BY 1
    LOOP
        IF v_seen >= p_limit AND f.at > v_last THEN
            following := f.at;
            EXIT;
        END IF;
        v_last := f.at;
        v_seen := v_seen + cardinality(f.seqs);
        IF NOT f.own THEN
            v_seqs := v_seqs || f.seqs;
        END IF;
    END LOOP;
    -- As in `prune`; and an effect in doubt has to be resolved first.
    v_seqs := ARRAY(
        SELECT j.seq FROM unnest(v_seqs) AS u(seq)
        CROSS JOIN LATERAL (
            SELECT x.seq FROM leasehold.jobs AS x
            WHERE x.seq = u.seq
              AND NOT EXISTS (SELECT FROM leasehold.jobs AS p WHERE p.id = x.parent AND NOT p.narrow OFFSET 0)
              AND NOT EXISTS (SELECT FROM leasehold.effects AS e WHERE e.seq = x.seq AND e.outcome IS NULL OFFSET 0)
              AND NOT EXISTS (
                  SELECT FROM leasehold.guarded AS g
                  WHERE g.seq = x.seq AND (x.status <> 'done' OR g.epoch <> x.epoch) OFFSET 0
              )
            OFFSET 0 FOR UPDATE OF x SKIP LOCKED
        ) AS j
    );
    jobs := leasehold.remove(ARRAY(
        SELECT seq FROM leasehold.jobs
        WHERE seq = ANY (v_seqs) AND status <> 'unfinished' AND NOT narrow
          AND finished_at + coalesce((options::json->>'keep_us')::bigint, 0) < v_before
    ), coalesce(v_now - p_keep_ids_us, 0));
END
$lh$;

-- The part of the verb `tend` that prunes events: one portion of those numbered above p_from, but for those of unfinished
-- jobs, and those that name open keys. Answers with how many it removed, and where the next portion begins; null at the end.
CREATE OR REPLACE FUNCTION leasehold.prune_events(
    p_keep_us bigint, p_from bigint, p_limit integer, p_patience integer, p_now bigint,
    OUT events integer, OUT following bigint
)
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
#variable_conflict use_column
DECLARE
    v_before bigint := leasehold.alone(p_now, p_patience) - p_keep_us;
    v_numbers bigint[];
BEGIN
    SELECT array_agg(number) FILTER (WHERE at < v_before) INTO v_numbers
    FROM (SELECT number, at FROM leasehold.events WHERE number > p_from ORDER BY number LIMIT p_limit) AS first;
    DELETE FROM leasehold.events AS e
    WHERE e.number = ANY (v_numbers)
      AND NOT EXISTS (
          SELECT FROM leasehold.jobs AS j
          WHERE j.id = e.job_id AND (
              j.status = 'unfinished'
              OR e.kind = 'guarded' AND EXISTS (SELECT FROM leasehold.guarded AS g WHERE g.seq = j.seq)
          ) OFFSET 0
      );
    GET DIAGNOSTICS events = ROW_COUNT;
    IF cardinality(v_numbers) = p_limit THEN
        following := v_numbers[p_limit];
    END IF;
END
$lh$;

-- The part of the verb `tend` that forgets ids, and processes that hold nothing. Answers with how many ids.
CREATE OR REPLACE FUNCTION leasehold.prune_ids(p_keep_us bigint, p_limit integer, p_patience integer, p_now bigint)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $lh$
DECLARE
    v_before bigint := leasehold.alone(p_now, p_patience) - p_keep_us;
BEGIN
    PERFORM leasehold.forget_processes(p_limit);
    RETURN leasehold.forget_ids(v_before, p_limit);
END
$lh$;
