-- The tables of one store. This file is for reading: it equals the sum of migrations/, and a test keeps it so.
--
-- `leasehold.` becomes the Router's `schema`. Instants (…_at) and durations (…_us) are whole microseconds; documents are
-- JSON text, never jsonb, which would refuse an escaped NUL. Names compare by their bytes (COLLATE "C"): no upgrade of the
-- operating system's collations can damage an index.
--
-- Every unfinished job is in exactly one of ready, scheduled, parked, leases. Claims, renewals and reclaims touch those
-- narrow rows; the wide row of the job itself is written when it is added, and when a lease on it ends. That write is a
-- HOT update: nothing that it changes is in an index of `jobs`, nor in an index's WHERE. So what must be found by status
-- has narrow tables of its own: `finished` and `uniques`.
--
-- What must hold within a row is checked by `verify`, and the two most important rules are constraints too. Each is read and
-- compiled anew for each statement that writes: both together take 40 to 90 µs of an add or of a claim and its completion
-- one by one (2 to 3 % with durable commits), and nothing of a batch. So the others stay with `verify`.

-- Epochs. CACHE 1: a session that kept some in reserve would issue them after greater ones.
CREATE SEQUENCE leasehold.epochs AS bigint MINVALUE 1 MAXVALUE 9007199254740991 CACHE 1 NO CYCLE;

-- The order of insertion.
CREATE SEQUENCE leasehold.seqs AS bigint CACHE 1 NO CYCLE;

-- Rises whenever a job comes to wait before others: floors that were found earlier do not hold (functions/04_claiming.sql).
CREATE SEQUENCE leasehold.lowered AS bigint MINVALUE 0 CACHE 1 CYCLE;

-- One row: what holds for the store as a whole.
CREATE TABLE leasehold.store (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema_version  integer NOT NULL,
    oldest_code     integer NOT NULL,  -- code of this version or a later one works with the schema as it is
    id              uuid NOT NULL,
    fingerprint     text NOT NULL  -- of the server that issued the last epoch: see functions/02_epochs.sql
);

-- A job: what the producer asked for, and what has become of it.
CREATE TABLE leasehold.jobs (
    -- What has a fixed length and is never null comes first: to read a later column is to step over the earlier ones.
    seq           bigint PRIMARY KEY,
    epoch         bigint NOT NULL DEFAULT 0,  -- of what happened last; a live lease has a greater one
    run_at        bigint NOT NULL,
    created_at    bigint NOT NULL,
    updated_at    bigint NOT NULL,
    priority      integer NOT NULL,
    attempt       integer NOT NULL DEFAULT 0,
    errors        integer NOT NULL DEFAULT 0,
    reclaims      integer NOT NULL DEFAULT 0,
    max_errors    integer NOT NULL,
    max_reclaims  integer NOT NULL,
    chosen        boolean NOT NULL DEFAULT true,   -- whether the caller chose the id
    narrow        boolean NOT NULL DEFAULT false,  -- whether the job was pruned, and its id is kept
    id            text COLLATE "C" NOT NULL UNIQUE,
    payload       text NOT NULL,  -- '' of a narrow row
    queue         text COLLATE "C" NOT NULL,
    status        text NOT NULL DEFAULT 'unfinished',  -- or done, failed, cancelled
    reason        text NOT NULL DEFAULT 'claim',
    task          text COLLATE "C",
    lock          text COLLATE "C",
    unique_key    text COLLATE "C",
    lease_us      bigint,
    stall_us      bigint,
    start_within_us bigint,
    parent        text COLLATE "C",
    options       text,  -- what no statement compares, as JSON; null: the defaults (core/options.py)
    meta          text,  -- a JSON object of the producer's, without NUL; null: none. It never changes
    result        text,
    last_error    text,
    cause         text,  -- what the store did to it, as JSON, of which `cause_text` makes the last error; null: as it stands
    progress      double precision,
    note          text,
    finished_at   bigint,
    -- The ownership that completed it. All other ended ownerships are rows of their own.
    granted_at    bigint,
    expires_at    bigint,
    owner         text COLLATE "C",
    settlement    text,
    CHECK ((status = 'unfinished') = (finished_at IS NULL))
) WITH (fillfactor = 45);  -- a batch ends all jobs of a page at once, and the new versions must fit beside the old

CREATE INDEX jobs_parent ON leasehold.jobs (parent) WHERE parent IS NOT NULL;

-- Finished jobs, for those who count or prune them: a row for those that finished together.
CREATE TABLE leasehold.finished (
    finished_at  bigint NOT NULL,
    status       text NOT NULL,  -- or narrow
    seqs         bigint[] NOT NULL,
    keep_us      bigint  -- how long they are kept, if they say so themselves (core/options.py)
);

CREATE INDEX finished_order ON leasehold.finished (status, finished_at);
CREATE INDEX finished_keep ON leasehold.finished ((finished_at + keep_us)) WHERE keep_us IS NOT NULL;

-- The unique keys of unfinished jobs.
CREATE TABLE leasehold.uniques (
    unique_key  text COLLATE "C" PRIMARY KEY,
    seq         bigint NOT NULL
);

-- Jobs that are due, in the order of their claim. rank is minus the priority.
CREATE TABLE leasehold.ready (
    queue   text COLLATE "C" NOT NULL,
    rank    integer NOT NULL,
    run_at  bigint NOT NULL,
    seq     bigint NOT NULL,
    lock    text COLLATE "C",
    PRIMARY KEY (queue, rank, run_at, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_scale_factor = 0.5);

-- Jobs that are not due yet.
CREATE TABLE leasehold.scheduled (
    run_at  bigint NOT NULL,
    seq     bigint NOT NULL,
    queue   text COLLATE "C" NOT NULL,
    rank    integer NOT NULL,
    lock    text COLLATE "C",
    PRIMARY KEY (run_at, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Until when jobs must have been claimed for the first time, if their producers say so. A claim leaves the row as it is: it
-- is looked at when its time has come.
CREATE TABLE leasehold.starts (
    start_by  bigint NOT NULL,
    seq       bigint NOT NULL,
    PRIMARY KEY (start_by, seq)
);

-- Due jobs behind something: a lock key that another job holds ('lock'), or a task that the claimer did not know ('task';
-- the name is '' for a job without one). A claim that knows the task takes its jobs from here.
CREATE TABLE leasehold.parked (
    kind       text COLLATE "C" NOT NULL,
    behind     text COLLATE "C" NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    rank       integer NOT NULL,
    run_at     bigint NOT NULL,
    seq        bigint NOT NULL,
    lock       text COLLATE "C",
    parked_by  text COLLATE "C" NOT NULL,  -- whose claim passed it over
    PRIMARY KEY (kind, behind, queue, rank, run_at, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- What the next claim has to see to, before it looks for jobs: a key that became free, and maybe a lease that a caller's
-- transaction ended and could not remove. A transaction that frees a key leaves a row here and takes no lock for it.
CREATE TABLE leasehold.freed (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lock    text COLLATE "C",
    seq     bigint,
    epoch   bigint
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX freed_leases ON leasehold.freed (seq) WHERE seq IS NOT NULL;

-- Jobs that an owner works on. The primary key is P2's "one owner"; the index on lock is its other half. The epoch of a
-- row never changes: a takeover deletes the row, which waits for a fence's FOR KEY SHARE, and a renewal does not.
CREATE TABLE leasehold.leases (
    seq         bigint PRIMARY KEY,
    epoch       bigint NOT NULL CHECK (epoch > 0),
    granted_at  bigint NOT NULL,
    expires_at  bigint NOT NULL,
    lease_us    bigint NOT NULL,
    updated_at  bigint NOT NULL,
    picked_up   boolean NOT NULL DEFAULT true,  -- false: transferred, and its owner has yet to ask for it
    owner       text COLLATE "C" NOT NULL,
    reason      text NOT NULL,
    claim_id    text,
    process     bigint,
    lock        text COLLATE "C",
    stalls_at   bigint,
    stall_us    bigint,
    progress    double precision,
    note        text,
    renewed_at  bigint  -- null: not since it was granted
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX leases_expiry ON leasehold.leases (expires_at);
CREATE INDEX leases_stall ON leasehold.leases (stalls_at) WHERE stalls_at IS NOT NULL;
CREATE UNIQUE INDEX leases_lock ON leasehold.leases (lock) WHERE lock IS NOT NULL;
CREATE INDEX leases_transferred ON leasehold.leases (owner) WHERE NOT picked_up;

-- Apart from the job, so that a long checkpoint is not rewritten with every other change.
CREATE TABLE leasehold.checkpoints (
    seq         bigint PRIMARY KEY,
    checkpoint  text,
    -- What was reported last inside a transaction of the owner's: it counts before what the lease and the job say, until
    -- the next report outside of one takes its place.
    epoch       bigint,
    progress    double precision,
    note        text,
    moved_at    bigint
);

-- Queues that are configured; most are not, and have no row.
CREATE TABLE leasehold.queues (
    name         text COLLATE "C" PRIMARY KEY,
    paused_at    bigint,  -- null: not paused
    paused_by    text COLLATE "C",
    paused_note  text
);

CREATE INDEX queues_paused ON leasehold.queues (name) WHERE paused_at IS NOT NULL;

-- Processes that have claimed jobs here, so that their death can be proved.
CREATE TABLE leasehold.processes (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host       text NOT NULL,
    boot       text NOT NULL,
    namespace  text NOT NULL,
    pid        bigint NOT NULL,
    started    bigint NOT NULL,
    UNIQUE (pid, started, namespace, boot, host)
);

-- Workers that have reported. name is the owner's name of their leases; process, queues and tasks are JSON.
CREATE TABLE leasehold.workers (
    name         text COLLATE "C" PRIMARY KEY,
    given_name   text COLLATE "C" NOT NULL,
    process      text,
    queues       text,  -- null: all
    tasks        text NOT NULL,
    concurrency  integer NOT NULL,
    running      integer NOT NULL,
    started_at   bigint NOT NULL,
    seen_at      bigint NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX workers_given_name ON leasehold.workers (given_name);

-- Ownerships that ended in any other way than with a completion. settlement is the fingerprint of the owner's, if there was one.
CREATE TABLE leasehold.ownerships (
    seq         bigint NOT NULL,
    epoch       bigint NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    began       text NOT NULL,
    granted_at  bigint NOT NULL,
    expires_at  bigint NOT NULL,
    ended       text NOT NULL,
    ended_at    bigint NOT NULL,
    ended_by    text COLLATE "C" NOT NULL,
    note        text,
    cause       text,  -- of which the note is made, as JSON; null: as it stands
    settlement  text,
    PRIMARY KEY (seq, epoch)
);

-- Named effects: begun, and maybe ended.
CREATE TABLE leasehold.effects (
    seq         bigint NOT NULL,
    name        text COLLATE "C" NOT NULL,
    effect_key  text NOT NULL,
    epoch       bigint NOT NULL,
    outcome     text,  -- null: in doubt
    PRIMARY KEY (seq, name)
);

-- Guarded keys that an owner is about to write to, until they need no seal any more: see `open_keys`.
CREATE TABLE leasehold.guarded (
    seq    bigint NOT NULL,
    guard  text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    epoch  bigint NOT NULL,  -- of the owner that has recorded it last
    PRIMARY KEY (seq, guard, key)
);

-- What happened, for people.
CREATE TABLE leasehold.events (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      bigint NOT NULL,
    kind    text NOT NULL,
    job_id  text COLLATE "C",
    epoch   bigint,
    owner   text COLLATE "C",
    facts   text NOT NULL
);

CREATE INDEX events_job ON leasehold.events (job_id, number) WHERE job_id IS NOT NULL;
CREATE INDEX events_at ON leasehold.events (at);

-- What upkeep has observed and recorded, until it has ended. job_id, epoch and owner are those of its events.
CREATE TABLE leasehold.observations (
    kind      text COLLATE "C" NOT NULL,
    subject   text COLLATE "C" NOT NULL,
    task      text COLLATE "C" NOT NULL,
    noted_at  bigint NOT NULL,
    job_id    text COLLATE "C",
    epoch     bigint,
    owner     text COLLATE "C",
    facts     text NOT NULL,
    PRIMARY KEY (kind, subject, task)
);

-- At most one row: how often upkeep has looked, and when it did last.
CREATE TABLE leasehold.rounds (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    round      bigint NOT NULL,
    looked_at  bigint NOT NULL
);

-- Where a caller's transaction is fenced: a row is inserted and deleted at once, and the trigger that this has queued runs
-- inside COMMIT (see functions/08_fences.sql). Unlogged, since nothing ever stays here.
CREATE UNLOGGED TABLE leasehold.fences (
    job_id  text NOT NULL,
    epoch   bigint NOT NULL,
    verb    text NOT NULL,
    request json,  -- a settlement or a report, to be made inside the COMMIT
    now     bigint,  -- on a clock moved by hand; null: the server's
    trace   boolean NOT NULL,
    put_off_at timestamptz  -- which statement would have had it compared before the COMMIT
);

-- Epochs that were taken over while transactions were fenced by them, until those are ended. Unlogged: a crash ends them.
CREATE UNLOGGED TABLE leasehold.outlived (
    epoch  bigint PRIMARY KEY
);

-- Processes that wait for a job to claim, so that NOTIFY is sent when one listens. Unlogged: a crash ends every wait.
CREATE UNLOGGED TABLE leasehold.waiters (
    id     text COLLATE "C" PRIMARY KEY,
    until  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A job as a reader sees it.
CREATE VIEW leasehold.seen AS
SELECT j.id, j.payload, j.task, j.queue, j.priority, j.lock, j.unique_key, j.lease_us, j.stall_us,
       j.start_within_us, j.parent, j.max_errors, j.max_reclaims, j.options, j.meta,
       CASE WHEN j.status <> 'unfinished' THEN j.status WHEN l.seq IS NULL THEN 'pending' ELSE 'running' END AS status,
       coalesce(l.epoch, j.epoch) AS epoch, l.owner, coalesce(l.reason, j.reason) AS reason,
       j.attempt, j.errors, j.reclaims, j.run_at, l.granted_at, l.expires_at,
       coalesce(c.progress, l.progress, j.progress) AS progress, coalesce(c.note, l.note, j.note) AS note, c.checkpoint,
       j.result, j.last_error, j.created_at, greatest(l.updated_at, j.updated_at, c.moved_at) AS updated_at, j.finished_at,
       j.seq,
       CASE WHEN j.status = 'unfinished' AND l.seq IS NULL THEN (
           SELECT json_build_array(b.kind, b.behind, p.parked_by)::text
           FROM (VALUES ('lock', j.lock), ('task', coalesce(j.task, ''))) AS b(kind, behind)
           CROSS JOIN LATERAL (
               SELECT x.parked_by FROM leasehold.parked AS x
               WHERE x.kind = b.kind AND x.behind = b.behind AND x.queue = j.queue AND x.rank = -j.priority
                 AND x.run_at = j.run_at AND x.seq = j.seq OFFSET 0
           ) AS p LIMIT 1
       ) END AS parked,
       coalesce(l.renewed_at, l.granted_at) AS renewed_at,
       j.cause
FROM leasehold.jobs AS j
-- A lease that is not above its job has been ended by a transaction that could not remove it.
LEFT JOIN leasehold.leases AS l ON l.seq = j.seq AND l.epoch > j.epoch
LEFT JOIN leasehold.checkpoints AS c ON c.seq = j.seq;

-- A job as a claim needs it. others is what most jobs do not have: null, or a JSON array of all of it. (An object with
-- names, for each job that has some: 7.4 µs instead of 1.8 µs.)
CREATE VIEW leasehold.claimable AS
SELECT j.seq, j.id, j.payload, j.task, j.queue, j.reason, j.lock, j.lease_us, j.stall_us,
       CASE WHEN j.reason <> 'claim' OR j.attempt <> 0 OR j.errors <> 0 OR j.priority <> 0
                OR j.max_errors <> 5 OR j.max_reclaims <> 3  -- core.retry.DEFAULT_RETRY
                OR num_nonnulls(j.lock, j.unique_key, j.lease_us, j.stall_us, j.start_within_us, j.parent, j.options,
                                j.meta) > 0
           THEN json_build_array(
               j.reason, j.attempt, j.errors,
               -- The first owner finds none.
               CASE WHEN j.attempt > 0 THEN (SELECT c.checkpoint FROM leasehold.checkpoints AS c WHERE c.seq = j.seq) END,
               j.priority, j.lock, j.unique_key, j.lease_us, j.stall_us, j.start_within_us, j.parent, j.max_errors,
               j.max_reclaims, j.options, j.meta
           )::text END AS others
FROM leasehold.jobs AS j;

-- A live lease, in the shape of a grant.
CREATE VIEW leasehold.granted AS
SELECT j.id, j.payload, j.task, j.queue, j.priority, j.lock, j.unique_key, j.lease_us, j.stall_us,
       j.start_within_us, j.parent, j.max_errors, j.max_reclaims, j.options, j.meta, l.epoch, l.owner, l.reason, j.attempt, j.errors, c.checkpoint, l.claim_id, l.granted_at, l.expires_at,
       l.lease_us AS lasts_us, p.host, p.boot, p.namespace, p.pid, p.started
FROM leasehold.leases AS l
JOIN leasehold.jobs AS j ON j.seq = l.seq AND l.epoch > j.epoch
LEFT JOIN leasehold.checkpoints AS c ON c.seq = l.seq
LEFT JOIN leasehold.processes AS p ON p.id = l.process;

-- A job as `add` takes it, in JSON with these names.
CREATE TYPE leasehold.wish AS (
    id text, payload text, task text, queue text, priority integer, run_at bigint, delay bigint, lock text,
    unique_key text, lease_us bigint, stall_us bigint, start_within_us bigint, parent text, max_errors integer, max_reclaims integer, options text,
    meta text, chosen boolean  -- null: it is chosen
);

-- What functions answer with. A job or a lease is nested: its columns are those of its view, and the call expands them. (As
-- JSON, a row of `seen` takes 29 µs from the table to Python, nested 8.7 µs, flat 6.1 µs.)
CREATE TYPE leasehold.found AS (
    ord integer, now bigint,
    refusal text,  -- why nothing was added, as JSON
    job leasehold.seen
);
CREATE TYPE leasehold.moved AS (
    answer text, fenced bigint[],  -- answer: why not, as JSON; null: done. fenced: the epochs that open fences still name
    job leasehold.seen
);
CREATE TYPE leasehold.transferred AS (
    answer text, fenced bigint[], lease leasehold.granted
);
CREATE TYPE leasehold.claimed AS (
    facts text,  -- in the first row: about all grants, as JSON (see `claim`)
    -- The grants, up to a hundred in a row. Null tasks: none has one; queues: all are of "default"; others: nothing that
    -- is not mostly so. (A row for each grant takes the client twice as long.)
    epochs bigint[], ids text[], payloads text[], tasks text[], queues text[], others text[]
);
CREATE TYPE leasehold.taken_back AS (
    job_id text, epoch bigint, owner text, began text, granted_at bigint, expires_at bigint, ended text, ended_at bigint,
    ended_by text, cause text, fenced boolean
);
CREATE TYPE leasehold.answer AS (ord integer, at bigint, refusal text);
