-- The first schema. schema.sql explains it.

-- One row: what holds for the store as a whole.
CREATE TABLE leasehold_store (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version  INTEGER NOT NULL,
    id              TEXT NOT NULL,
    last_epoch      INTEGER NOT NULL CHECK (last_epoch BETWEEN 0 AND 9007199254740991)
) STRICT;

-- A job: what the producer asked for, and what has become of it.
CREATE TABLE leasehold_jobs (
    seq          INTEGER PRIMARY KEY,  -- the order of insertion
    id           TEXT NOT NULL UNIQUE CHECK (id <> ''),
    chosen       INTEGER NOT NULL DEFAULT 1 CHECK (chosen IN (0, 1)),  -- whether the caller chose the id
    narrow       INTEGER NOT NULL DEFAULT 0 CHECK (narrow IN (0, 1)),  -- whether the job was pruned, and its id is kept
    status       TEXT NOT NULL DEFAULT 'unfinished' CHECK (status IN ('unfinished', 'done', 'failed', 'cancelled')),
    task         TEXT,
    queue        TEXT NOT NULL,
    priority     INTEGER NOT NULL,
    run_at       INTEGER NOT NULL,
    lock         TEXT,
    unique_key   TEXT,
    lease_us     INTEGER CHECK (lease_us > 0),
    stall_us     INTEGER CHECK (stall_us > 0),
    start_within_us INTEGER CHECK (start_within_us > 0),
    parent       TEXT,
    max_errors   INTEGER NOT NULL CHECK (max_errors > 0),
    max_reclaims INTEGER NOT NULL CHECK (max_reclaims >= 0),
    options      TEXT,  -- what no statement compares, as JSON; null: the defaults (core/options.py)
    meta         TEXT,  -- a JSON object of the producer's; null: none. It never changes
    payload      TEXT NOT NULL,  -- '' of a narrow row
    attempt      INTEGER NOT NULL DEFAULT 0,
    errors       INTEGER NOT NULL DEFAULT 0,
    reclaims     INTEGER NOT NULL DEFAULT 0,
    epoch        INTEGER NOT NULL DEFAULT 0,  -- while it is leased, the lease has the current one
    reason       TEXT NOT NULL DEFAULT 'claim',
    result       TEXT,
    last_error   TEXT,
    progress     REAL,
    note         TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    finished_at  INTEGER,
    -- The ownership that completed it. All other ended ownerships are rows of their own.
    owner        TEXT,
    granted_at   INTEGER,
    expires_at   INTEGER,
    settlement   TEXT,
    CHECK ((status = 'unfinished') = (finished_at IS NULL)),
    CHECK ((owner IS NULL) = (settlement IS NULL) AND (owner IS NULL) = (granted_at IS NULL)),
    CHECK (owner IS NULL OR status = 'done'),
    CHECK (narrow = (payload = '') AND (narrow = 0 OR finished_at IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX leasehold_jobs_unique ON leasehold_jobs (unique_key)
    WHERE unique_key IS NOT NULL AND status = 'unfinished';
CREATE INDEX leasehold_jobs_finished ON leasehold_jobs (narrow, status, finished_at) WHERE finished_at IS NOT NULL;
-- Until when a job is kept that says so itself.
CREATE INDEX leasehold_jobs_keep ON leasehold_jobs (finished_at + json_extract(options, '$.keep_us'))
    WHERE finished_at IS NOT NULL AND options IS NOT NULL;
CREATE INDEX leasehold_jobs_parent ON leasehold_jobs (parent) WHERE parent IS NOT NULL;

-- Jobs that are due, in the order of their claim. rank is minus the priority.
CREATE TABLE leasehold_ready (
    queue   TEXT NOT NULL,
    rank    INTEGER NOT NULL,
    run_at  INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (queue, rank, run_at, seq)
) STRICT, WITHOUT ROWID;

-- Jobs that are not due yet.
CREATE TABLE leasehold_scheduled (
    run_at  INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    queue   TEXT NOT NULL,
    PRIMARY KEY (run_at, seq)
) STRICT, WITHOUT ROWID;

-- Until when jobs must have been claimed for the first time, if their producers say so. A claim leaves the row as it is: it
-- is looked at when its time has come.
CREATE TABLE leasehold_starts (
    start_by  INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    PRIMARY KEY (start_by, seq)
) STRICT, WITHOUT ROWID;

-- Due jobs behind something: a lock key that another job holds ('lock'), or a task that the claimer did not know ('task';
-- the name is '' for a job without one). A claim that knows the task takes its jobs from here.
CREATE TABLE leasehold_parked (
    kind       TEXT NOT NULL CHECK (kind IN ('lock', 'task')),
    behind     TEXT NOT NULL,
    queue      TEXT NOT NULL,
    rank       INTEGER NOT NULL,
    run_at     INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    parked_by  TEXT NOT NULL,  -- whose claim passed it over
    PRIMARY KEY (kind, behind, queue, rank, run_at, seq)
) STRICT, WITHOUT ROWID;

-- Jobs that an owner works on. The primary key is P2's "one owner"; the index on lock is its other half.
CREATE TABLE leasehold_leases (
    seq         INTEGER PRIMARY KEY,
    epoch       INTEGER NOT NULL CHECK (epoch > 0),
    owner       TEXT NOT NULL CHECK (owner <> ''),
    reason      TEXT NOT NULL,
    claim_id    TEXT,
    process     INTEGER,
    lock        TEXT,
    granted_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    lease_us    INTEGER NOT NULL CHECK (lease_us > 0),
    stalls_at   INTEGER,
    stall_us    INTEGER,
    updated_at  INTEGER NOT NULL,
    progress    REAL,
    note        TEXT,
    picked_up   INTEGER NOT NULL DEFAULT 1 CHECK (picked_up IN (0, 1)),  -- 0: transferred, and its owner has yet to ask
    renewed_at  INTEGER,  -- null: not since it was granted
    CHECK ((stalls_at IS NULL) = (stall_us IS NULL))
) STRICT;

CREATE INDEX leasehold_leases_expiry ON leasehold_leases (expires_at);
CREATE INDEX leasehold_leases_stall ON leasehold_leases (stalls_at) WHERE stalls_at IS NOT NULL;
CREATE UNIQUE INDEX leasehold_leases_lock ON leasehold_leases (lock) WHERE lock IS NOT NULL;
CREATE INDEX leasehold_leases_transferred ON leasehold_leases (owner) WHERE picked_up = 0;

-- Apart from the job, so that a long checkpoint is not rewritten with every other change.
CREATE TABLE leasehold_checkpoints (
    seq         INTEGER PRIMARY KEY,
    checkpoint  TEXT NOT NULL
) STRICT;

-- Queues that are configured; most are not, and have no row.
CREATE TABLE leasehold_queues (
    name         TEXT PRIMARY KEY CHECK (name <> ''),
    paused_at    INTEGER,  -- null: not paused
    paused_by    TEXT,
    paused_note  TEXT,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX leasehold_queues_paused ON leasehold_queues (name) WHERE paused_at IS NOT NULL;

-- Processes that have claimed jobs here, so that their death can be proved. id is a digest of the rest.
CREATE TABLE leasehold_processes (
    id         INTEGER PRIMARY KEY,
    host       TEXT NOT NULL,
    boot       TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    started    INTEGER NOT NULL
) STRICT;

-- Workers that have reported. name is the owner's name of their leases; process, queues and tasks are JSON.
CREATE TABLE leasehold_workers (
    name         TEXT PRIMARY KEY CHECK (name <> ''),
    given_name   TEXT NOT NULL,
    process      TEXT,
    queues       TEXT,  -- null: all
    tasks        TEXT NOT NULL,
    concurrency  INTEGER NOT NULL,
    running      INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    seen_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Ownerships that ended in any other way than with a completion. settlement is the fingerprint of the owner's, if there was one.
CREATE TABLE leasehold_ownerships (
    seq         INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    owner       TEXT NOT NULL,
    began       TEXT NOT NULL,
    granted_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    ended       TEXT NOT NULL,
    ended_at    INTEGER NOT NULL,
    ended_by    TEXT NOT NULL,
    note        TEXT,
    settlement  TEXT,
    PRIMARY KEY (seq, epoch)
) STRICT, WITHOUT ROWID;

-- Named effects: begun, and maybe ended.
CREATE TABLE leasehold_effects (
    seq         INTEGER NOT NULL,
    name        TEXT NOT NULL,
    effect_key  TEXT NOT NULL,
    epoch       INTEGER NOT NULL,
    outcome     TEXT,  -- null: in doubt
    PRIMARY KEY (seq, name)
) STRICT, WITHOUT ROWID;

-- Guarded keys that an owner is about to write to, until they need no seal any more: see the verb `open_keys`.
CREATE TABLE leasehold_guarded (
    seq    INTEGER NOT NULL,
    guard  TEXT NOT NULL,
    key    TEXT NOT NULL,
    epoch  INTEGER NOT NULL,  -- of the owner that has recorded it last
    PRIMARY KEY (seq, guard, key)
) STRICT, WITHOUT ROWID;

-- What happened, for people.
CREATE TABLE leasehold_events (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice, so that a reader can go on behind the last one
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    job_id  TEXT,
    epoch   INTEGER,
    owner   TEXT,
    facts   TEXT NOT NULL
) STRICT;

CREATE INDEX leasehold_events_job ON leasehold_events (job_id, number) WHERE job_id IS NOT NULL;
CREATE INDEX leasehold_events_at ON leasehold_events (at);

-- What upkeep has observed and recorded, until it has ended. job_id, epoch and owner are those of its events.
CREATE TABLE leasehold_observations (
    kind      TEXT NOT NULL,
    subject   TEXT NOT NULL,
    task      TEXT NOT NULL,
    noted_at  INTEGER NOT NULL,
    job_id    TEXT,
    epoch     INTEGER,
    owner     TEXT,
    facts     TEXT NOT NULL,
    PRIMARY KEY (kind, subject, task)
) STRICT, WITHOUT ROWID;

-- At most one row: how often upkeep has looked, and when it did last.
CREATE TABLE leasehold_rounds (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    round      INTEGER NOT NULL,
    looked_at  INTEGER NOT NULL
) STRICT;
