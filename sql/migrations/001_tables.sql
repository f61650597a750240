-- oldest worker: 1
--
-- The tables. Emails and tasks read alike: one vocabulary, one life cycle (DESIGN: the state table is
-- notifyq/lifecycle.py, the verbs are sql/functions/emails.sql and tasks.sql).
--
-- Constraints make wrong rows impossible: whoever bypasses the functions meets them.

create schema if not exists notifyq;

-- What a single value may be is said by a type. A check of the table would be read anew by every statement
-- that writes a row, and each email is written three times; a type is read once a session, and asks
-- only for what is written: a table's check of the message would fetch the body at each of them.
create domain notifyq.email_status as text constraint status_known
    check (value in ('pending', 'processing', 'doubt', 'sent', 'held', 'dead'));
create domain notifyq.email_reason as text constraint reason_known
    check (value in ('rejected', 'suppressed', 'exhausted', 'expired', 'cancelled', 'unrenderable'));
create domain notifyq.task_status as text constraint status_known
    check (value in ('pending', 'processing', 'done', 'dead'));
create domain notifyq.task_reason as text constraint reason_known
    check (value in ('exhausted', 'gave_up', 'cancelled', 'invalid'));
create domain notifyq.doubt_policy as text constraint on_doubt_known check (value in ('ask', 'resend', 'hold'));
create domain notifyq.message as jsonb constraint message_is_an_object check (jsonb_typeof(value) = 'object');
create domain notifyq.args as jsonb constraint args_are_an_object check (jsonb_typeof(value) = 'object');
create domain notifyq.attempts as int constraint attempts_counted check (value >= 0);
create domain notifyq.max_attempts as int constraint attempts_counted check (value >= 1);
create domain notifyq.key as text constraint key_length check (char_length(value) between 1 and 500);
create domain notifyq.error_text as text constraint last_error_length check (char_length(value) <= 1000);
-- Arithmetic on infinity fails, and one such row would stop every claim; no driver reads the year 20000.
create domain notifyq.moment as timestamptz constraint times_are_within_reach
    check (value > '0001-01-02' and value < '9999-12-30');

create table notifyq.migrations (
    version       int primary key,
    name          text not null,
    oldest_worker int not null,          -- the oldest worker that may run beside this schema
    applied_at    timestamptz not null default clock_timestamp()
);

create table notifyq.emails (
    id                  bigint generated always as identity primary key,
    uid                 uuid not null default gen_random_uuid(),  -- the only name that leaves the database
    key                 notifyq.key not null unique,              -- once ever: the business rule
    message             notifyq.message,                          -- emptied by retention, never before the end
    -- Copies of two members of the message, so that no claim and no ask has to fetch the body.
    builder             text not null generated always as (coalesce(message ->> 'builder', '')) stored,
    stream              text not null generated always as (coalesce(message ->> 'stream', 'outbound')) stored,

    status              notifyq.email_status not null default 'pending',
    reason              notifyq.email_reason,
    attempts            notifyq.attempts not null default 0,      -- sends; an ask is not one
    max_attempts        notifyq.max_attempts not null default 10,
    run_after           notifyq.moment not null default now(),
    send_before         notifyq.moment,
    priority            int not null default 0,                   -- lower goes first, below 0 is urgent
    on_doubt            notifyq.doubt_policy not null default 'ask',

    lease_until         timestamptz,
    leased_at           timestamptz,
    claimed_by          text,
    claim_seq           bigint not null default 0,                -- the fence: up at every claim, never down
    account             text,                                     -- where the last send went: asked there only

    doubt_since         notifyq.moment,                            -- a POST may have been accepted; settle runs from here
    misses              smallint not null default 0,              -- conclusive "not there" answers, from settle on
    asks                smallint not null default 0,              -- answers from settle on that proved nothing
    resent              boolean not null default false,           -- on_doubt 'resend' is used up
    ordered             boolean not null default false,           -- an operator said: send it, unless it is found
    waits               smallint not null default 0,              -- times put off because its sender or stream is not set up
    postponed           boolean not null default false,           -- put off by the provider: the gate pulls it forward
    receipt             text,                                     -- accepted under an older claim, while a newer one runs

    last_error          notifyq.error_text,
    created_at          notifyq.moment not null default clock_timestamp(),
    finished_at         timestamptz,
    provider_message_id text,
    sent_at             timestamptz,

    constraint message_until_the_end check (message is not null or finished_at is not null),
    constraint reason_exactly_when_dead check ((reason is not null) = (status = 'dead')),
    constraint leased_exactly_while_processing check (
        num_nonnulls(lease_until, leased_at, claimed_by) = case when status = 'processing' then 3 else 0 end),
    constraint receipted_exactly_when_sent check (
        num_nonnulls(provider_message_id, sent_at) = case when status = 'sent' then 2 else 0 end),
    constraint finished_exactly_at_the_end check ((finished_at is not null) = (status in ('sent', 'dead'))),
    constraint doubt_has_a_beginning check (status not in ('doubt', 'held') or doubt_since is not null),
    constraint early_receipt_only_under_a_claim check (receipt is null or status = 'processing')
) with (
    toast_tuple_target = 128,           -- the body lies outside the hot page: a change of state does not copy it
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Only the body may be pushed out: whatever a claim or a list reads stays in the row.
alter table notifyq.emails
    alter column key set storage main,
    alter column builder set storage main,
    alter column stream set storage main,
    alter column status set storage main,
    alter column on_doubt set storage main,
    alter column claimed_by set storage main,
    alter column account set storage main,
    alter column receipt set storage main,
    alter column last_error set storage main,
    alter column provider_message_id set storage main;

-- One partial index for each hot question. None of them grows with finished rows.
create index emails_pending on notifyq.emails (builder, priority, run_after, id) where status = 'pending';
-- Two of them name no status, which is what they mean: else a plan made in a quiet night, when all are empty,
-- may look for them in emails_pending, and walk over the whole of the next backlog.
create index emails_postponed on notifyq.emails (run_after, id)
    where postponed and finished_at is null and lease_until is null;
create index emails_waiting on notifyq.emails (id) where status = 'pending' and waits > 0;
create index emails_expiring on notifyq.emails (send_before)
    where send_before is not null and finished_at is null and lease_until is null and doubt_since is null;
create index emails_doubt on notifyq.emails (run_after, id)
    where status in ('pending', 'doubt') and doubt_since is not null;
create index emails_processing on notifyq.emails (lease_until, id) where status = 'processing';
create index emails_finished on notifyq.emails (finished_at) where finished_at is not null;
create index emails_failed on notifyq.emails (status, id) where status in ('held', 'dead');

create table notifyq.tasks (
    id           bigint generated always as identity primary key,
    name         text not null,
    key          notifyq.key,           -- once among active calls; null: no rule
    args         notifyq.args not null default '{}',

    status       notifyq.task_status not null default 'pending',
    reason       notifyq.task_reason,
    attempts     notifyq.attempts not null default 0,
    max_attempts notifyq.max_attempts not null default 10,
    run_after    notifyq.moment not null default now(),
    priority     int not null default 0,

    lease_until  timestamptz,
    leased_at    timestamptz,
    claimed_by   text,
    claim_seq    bigint not null default 0,

    last_error   notifyq.error_text,
    created_at   notifyq.moment not null default clock_timestamp(),
    finished_at  timestamptz,

    constraint name_length check (char_length(name) between 1 and 200),
    constraint reason_exactly_when_dead check ((reason is not null) = (status = 'dead')),
    constraint leased_exactly_while_processing check (
        num_nonnulls(lease_until, leased_at, claimed_by) = case when status = 'processing' then 3 else 0 end),
    constraint finished_exactly_at_the_end check ((finished_at is not null) = (status in ('done', 'dead')))
) with (
    toast_tuple_target = 128,
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

alter table notifyq.tasks
    alter column name set storage main,
    alter column key set storage main,
    alter column status set storage main,
    alter column claimed_by set storage main;

create unique index tasks_active_key on notifyq.tasks (name, key) where status in ('pending', 'processing');
create index tasks_pending on notifyq.tasks (name, priority, run_after, id) where status = 'pending';
create index tasks_processing on notifyq.tasks (name, lease_until, id) where status = 'processing';
create index tasks_finished on notifyq.tasks (finished_at) where finished_at is not null;
create index tasks_failed on notifyq.tasks (status, id) where status = 'dead';

-- What happened to a row. Append-only; nothing decides by it, people read it.
create table notifyq.history (
    id        bigint generated always as identity primary key,
    at        timestamptz not null default clock_timestamp(),
    lane      text not null check (lane in ('email', 'task')),
    row_id    bigint not null,
    claim_seq bigint not null,
    event     text not null,
    detail    text,
    actor     text                      -- the operator, for an operator's act
);

create index history_row on notifyq.history (row_id, lane);
create index history_at on notifyq.history using brin (at);

-- The gate: what the fleet knows of one provider account.
create table notifyq.gates (
    account    text primary key,        -- the provider and a hash of the token
    state      text not null default 'open' check (state in ('open', 'closed', 'blocked')),
    reason     text,
    until      timestamptz,             -- closed: when the next probe may go; blocked: when to look again
    failures   int not null default 0,  -- in a row, with no success between
    step       int not null default 0,  -- how often probing has failed
    changed_at timestamptz not null default clock_timestamp(),
    pace       real,                    -- emails a second while it recovers; null: as fast as they come
    growth     real not null default 2, -- the pace is multiplied by this each second
    tokens     real not null default 0,
    paced_at   timestamptz,
    server     text,                    -- the provider's own name of the account; outlives a change of token
    probes     bigint not null default 0,
    constraint until_exactly_while_shut check ((until is not null) = (state <> 'open'))
);

-- Which priorities the emails of a builder have had (a trigger notes them): few, and never fewer. Not unique: with a unique key
-- the first email of a kind, in a long transaction, would hold up every other one until it ends. The few
-- that begin at once write a line each.
create table notifyq.kinds (
    lane     text not null,
    name     text not null,
    priority int not null
);
create index kinds_known on notifyq.kinds (lane, name, priority);
insert into notifyq.kinds (lane, name, priority) values ('email', '', 0);

-- Work that one worker does for all, at most once in a while.
create table notifyq.chores (
    name    text primary key,
    last_at timestamptz not null,
    detail  text
);

-- Who works. A worker writes its line when it starts and once a minute, and takes it away when it ends.
create table notifyq.workers (
    name       text primary key,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    account    text,                    -- the provider account that it sends with
    listening  boolean not null,        -- the bell has proven that it is heard
    tasks      text[] not null,         -- the task names that it knows
    builders   text[] not null
);

-- The last tick of each periodic task. Moved forward in the transaction that enqueues, so that a tick is
-- enqueued once however many workers see it (a key cannot do that: a quick call is done before a late
-- worker asks).
create table notifyq.periodic (
    name      text primary key,
    last_tick timestamptz not null
);
