-- What an operator looks at. Nothing here scans finished rows: each count has its partial index.

-- name: read_pending_emails
select
    count(*) as pending,
    count(*) filter (where e.run_after <= now()) as due,
    extract(epoch from now() - min(e.run_after))::double precision as due_for,
    count(*) filter (where e.waits > 0) as misconfigured,
    count(*) filter (where e.send_before <= now() + interval '1 hour') as expiring
from notifyq.emails e
where e.status = 'pending'

-- name: read_oldest_due_email
select e.id from notifyq.emails e
where e.status = 'pending' and e.run_after <= now()
order by e.run_after, e.id
limit 1

-- name: read_working_emails
select
    count(*) as processing,
    count(distinct e.claimed_by) as at_work,
    extract(epoch from now() - min(e.lease_until))::double precision as lease_over_for
from notifyq.emails e
where e.status = 'processing'

-- name: read_doubtful_emails
select
    count(*) as doubt,
    extract(epoch from now() - min(e.doubt_since))::double precision as doubt_for
from notifyq.emails e
where e.status = 'doubt' and e.doubt_since is not null

-- name: read_held_emails
select
    count(*) as held,
    extract(epoch from now() - min(e.doubt_since))::double precision as held_for,
    (array_agg(e.id order by e.id))[1:5] as examples
from notifyq.emails e
where e.status = 'held'

-- name: read_dead_emails
select count(*) as dead from notifyq.emails e where e.status = 'dead'

-- name: read_dead_emails_by_reason
-- Of the newest 10,000, so that years of old addresses cost nothing.
select newest.reason, count(*) as emails
from (
    select e.reason from notifyq.emails e where e.status = 'dead' order by e.id desc limit 10000
) newest
group by newest.reason
order by emails desc, newest.reason

-- name: read_ended_emails
-- The last day by its end; emails_finished is ordered by it.
select
    count(*) filter (where e.status = 'sent' and e.finished_at > now() - interval '1 hour') as sent_last_hour,
    count(*) filter (where e.status = 'sent') as sent_last_day,
    count(*) filter (where e.reason = 'exhausted') as exhausted_last_day,
    count(*) filter (where e.reason = 'unrenderable') as unrenderable_last_day
from notifyq.emails e
where e.finished_at > now() - interval '1 day'

-- name: read_misconfigured_emails
select e.last_error as error, count(*) as emails, min(e.id) as example
from notifyq.emails e
where e.status = 'pending' and e.waits > 0
group by e.last_error
order by emails desc, example
limit 5

-- name: read_duplicates
-- Emails of the last day that the provider accepted more than once.
select distinct h.row_id as id
from notifyq.history h
where h.lane = 'email' and h.event = 'duplicate' and h.at > now() - interval '1 day'
order by h.row_id
limit 20

-- name: read_gates
select
    g.account, g.state, g.reason, g.failures, g.pace::double precision as pace, g.server, g.changed_at,
    extract(epoch from g.until - now())::double precision as wait,
    notifyq.gate_forsaken(g.account, g.until) as forsaken
from notifyq.gates g
order by g.state = 'open', g.account

-- name: read_workers
-- A worker writes its line once a minute; one that was killed stays for ten.
select
    w.name, w.started_at, w.listening, w.tasks, w.builders,
    extract(epoch from now() - w.seen_at)::double precision as seen_ago
from notifyq.workers w
where w.seen_at > now() - interval '150 seconds'
order by w.started_at, w.name

-- name: read_worker_connections
-- Each worker that was ever busy keeps one connection of this name.
select count(*) as connected
from pg_stat_activity a
where a.datname = current_database() and a.application_name = 'notifyq worker claims'

-- name: read_tasks
select
    count(*) filter (where t.status = 'pending') as pending,
    count(*) filter (where t.status = 'pending' and t.run_after <= now()) as due,
    extract(epoch from now() - min(t.run_after) filter (where t.status = 'pending'))::double precision as due_for,
    count(*) filter (where t.status = 'processing') as processing,
    count(distinct t.claimed_by) filter (where t.status = 'processing') as at_work
from notifyq.tasks t
where t.status in ('pending', 'processing')

-- name: read_ended_tasks
select
    count(*) filter (where t.status = 'done' and t.finished_at > now() - interval '1 hour') as done_last_hour,
    count(*) filter (where t.status = 'done') as done_last_day,
    count(*) filter (where t.status = 'dead' and t.reason <> 'cancelled') as dead_last_day
from notifyq.tasks t
where t.finished_at > now() - interval '1 day'

-- name: read_dead_tasks
select t.reason, count(*) as tasks from notifyq.tasks t where t.status = 'dead' group by t.reason
order by tasks desc, t.reason

-- name: read_emails
-- One page, newest first. Every condition may be null.
select
    e.id, e.key, e.status, e.reason, e.attempts, e.max_attempts, e.priority, e.run_after, e.send_before,
    e.on_doubt, e.lease_until, e.doubt_since, e.last_error, e.created_at, e.finished_at,
    e.provider_message_id, now() as seen_at
from notifyq.emails e
where ($1::text is null or e.status = $1)
  and ($2::text is null or (e.status = 'dead' and e.reason = $2))
  and ($3::text is null or e.key = $3)
  and ($4::bigint is null or e.id < $4)
order by e.id desc
limit $5

-- name: read_task_calls
select
    t.id, t.name, t.key, t.status, t.reason, t.attempts, t.max_attempts, t.priority, t.run_after,
    t.lease_until, t.last_error, t.created_at, t.finished_at, now() as seen_at
from notifyq.tasks t
where ($1::text is null or t.status = $1)
  and ($2::text is null or (t.status = 'dead' and t.reason = $2))
  and ($3::text is null or t.key = $3)
  and ($4::bigint is null or t.id < $4)
order by t.id desc
limit $5

-- name: read_email
select
    e.id, e.uid, e.key, e.status, e.reason, e.attempts, e.max_attempts, e.priority, e.run_after,
    e.send_before, e.on_doubt, e.stream, e.builder, e.account, e.claim_seq, e.claimed_by, e.lease_until,
    e.doubt_since, e.misses, e.asks, e.resent, e.ordered, e.waits, e.last_error, e.created_at,
    e.finished_at, e.provider_message_id, e.sent_at, e.message::text as message, now() as seen_at
from notifyq.emails e
where e.id = $1

-- name: read_task_call
select
    t.id, t.name, t.key, t.args::text as args, t.status, t.reason, t.attempts, t.max_attempts, t.priority,
    t.run_after, t.claim_seq, t.claimed_by, t.lease_until, t.last_error, t.created_at, t.finished_at,
    now() as seen_at
from notifyq.tasks t
where t.id = $1

-- name: read_story
select h.at, h.event, h.detail, h.actor, h.claim_seq
from notifyq.history h
where h.lane = $1 and h.row_id = $2
order by h.id

-- name: read_email_fence
-- What a person decides by: small, without the message.
select e.status, e.claim_seq, e.message is null as purged from notifyq.emails e where e.id = $1

-- name: read_task_fence
select t.status, t.claim_seq, false as purged from notifyq.tasks t where t.id = $1

-- name: read_dead_emails_of
select count(*) as rows, max(e.id) as last
from notifyq.emails e
where e.status = 'dead' and e.reason = $1 and e.message is not null

-- name: read_dead_tasks_of
select count(*) as rows, max(t.id) as last from notifyq.tasks t where t.status = 'dead' and t.reason = $1

-- name: read_email_end
select e.status, e.reason, e.provider_message_id, e.last_error from notifyq.emails e where e.id = $1
