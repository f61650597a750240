-- What the operator's page reads. Every statement is flat: it costs the same with a thousand rows and with
-- a million, because it walks an index from a cursor and stops at a limit. Where a filter has no index, the
-- walk looks at $scan rows and says how far it came; the page tells the reader so.

-- ---------------------------------------------------------------- overview

-- name: page_pulse
-- The one query a second a process, while a page is open: all that the headline says. Counts stop at 10,001.
with recursive
newest as (
    select (select max(e.id) from notifyq.emails e) as email,
           (select max(t.id) from notifyq.tasks t) as task,
           (select max(h.id) from notifyq.history h) as history
), counts as (
    select
        (select count(*) from (select from notifyq.emails where status = 'pending' limit 10001) c) as pending,
        (select count(*) from (select from notifyq.emails where status = 'processing' limit 10001) c) as processing,
        (select count(*) from (select from notifyq.emails
                               where status = 'doubt' and doubt_since is not null limit 10001) c) as doubt,
        (select count(*) from (select from notifyq.emails where status = 'held' limit 10001) c) as held,
        (select count(*) from (select from notifyq.emails where status = 'dead' limit 10001) c) as dead,
        (select count(*) from (select from notifyq.emails
                               where status = 'pending' and waits > 0 limit 10001) c) as to_set_up,
        (select count(*) from (select from notifyq.tasks where status = 'pending' limit 10001) c) as tasks_pending,
        (select count(*) from (select from notifyq.tasks where status = 'processing' limit 10001) c) as tasks_processing,
        (select count(*) from (select from notifyq.tasks where status = 'dead' limit 10001) c) as tasks_dead
), recently as (
    -- What a person has yet to look at: a suppression and a cancellation are nobody's fault.
    select (select count(*) from (
                select from notifyq.emails e
                where e.status = 'dead' and e.reason not in ('suppressed', 'cancelled')
                  and e.finished_at > clock_timestamp() - interval '7 days'
                limit 10001) c) as failed,
           (select count(*) from (
                select t.reason, t.finished_at from notifyq.tasks t
                where t.status = 'dead' order by t.id desc limit 10001) c
            where c.reason <> 'cancelled' and c.finished_at > clock_timestamp() - interval '7 days'
           ) as tasks_failed
), live as (
    select w.tasks, w.builders, w.listening, w.seen_at
    from notifyq.workers w where w.seen_at > clock_timestamp() - interval '150 seconds'
), email_queues as (
    (select e.builder as name, e.priority from notifyq.emails e
     where e.status = 'pending' order by e.builder, e.priority limit 1)
    union all
    select n.builder, n.priority
    from email_queues q cross join lateral (
        select e.builder, e.priority from notifyq.emails e
        where e.status = 'pending' and (e.builder, e.priority) > (q.name, q.priority)
        order by e.builder, e.priority limit 1
    ) n
), task_queues as (
    (select t.name, t.priority from notifyq.tasks t
     where t.status = 'pending' order by t.name, t.priority limit 1)
    union all
    select n.name, n.priority
    from task_queues q cross join lateral (
        select t.name, t.priority from notifyq.tasks t
        where t.status = 'pending' and (t.name, t.priority) > (q.name, q.priority)
        order by t.name, t.priority limit 1
    ) n
), queues as materialized (
    -- served: some worker knows the name, or there is no worker to ask.
    select 'email' as lane, q.name, q.priority,
           q.name = '' or not exists (select from live) or exists (select from live l where q.name = any (l.builders))
               as served
    from (select * from email_queues limit 100) q
    union all
    select 'task', q.name, q.priority,
           not exists (select from live) or exists (select from live l where q.name = any (l.tasks))
    from (select * from task_queues limit 100) q
), due as (
    select min(o.run_after) filter (where o.lane = 'email') as email, min(o.run_after) filter (where o.lane = 'task') as task
    from (
        (select 'email' as lane, o.run_after
         from queues q cross join lateral (
            select e.run_after from notifyq.emails e
            where e.status = 'pending' and e.builder = q.name and e.priority = q.priority
            order by e.run_after limit 1
         ) o
         where q.lane = 'email' and q.served)
        union all
        (select 'task', o.run_after
         from queues q cross join lateral (
            select t.run_after from notifyq.tasks t
            where t.status = 'pending' and t.name = q.name and t.priority = q.priority
            order by t.run_after limit 1
         ) o
         where q.lane = 'task' and q.served)
    ) o
), connected as (
    -- Workers write their line once a minute; one that was killed leaves its line, but none of its sessions.
    -- hidden: this role may not see who is connected, so the lines are believed.
    select count(*) filter (where a.application_name like 'notifyq worker%') as sessions,
           coalesce(bool_or(a.query = '<insufficient privilege>'), false) as hidden
    from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid()
), gates as (
    select g.account, g.state, g.reason, g.until, g.failures, g.changed_at, g.pace, g.server,
           notifyq.gate_forsaken(g.account, g.until) as forsaken
    from notifyq.gates g
    order by (g.state <> 'open') desc, g.account
    limit 20
)
select newest.*, counts.*, recently.*, connected.*,
       clock_timestamp() as now,
       case when due.email <= clock_timestamp() then due.email end as oldest_due,
       case when due.task <= clock_timestamp() then due.task end as oldest_task,
       (select e.finished_at
        from (select * from notifyq.emails where finished_at is not null order by finished_at desc limit 1000) e
        where e.status = 'sent' limit 1) as last_sent,
       -- A live session holds the bell's seat: its holder listens and proves itself (notifyq.ring).
       exists (select from pg_locks l
               where l.locktype = 'advisory' and l.classid = 1852798834 and l.objid = 2 and l.granted
                 and l.database = (select d.oid from pg_database d where d.datname = current_database())
       ) as seated,
       (select count(*) from live) as workers,
       (select max(l.seen_at) from live l where l.listening) as heard_at,
       array(select q.name from queues q where q.lane = 'email' and not q.served group by q.name order by q.name)
           as unserved_builders,
       array(select q.name from queues q where q.lane = 'task' and not q.served group by q.name order by q.name)
           as unserved_tasks,
       (select coalesce(json_agg(g), '[]') from gates g)::text as gates
from newest, counts, recently, connected, due

-- name: page_to_mend
-- The newest rows that a person has yet to look at: held first.
(select e.id, e.key, e.status, e.reason, e.run_after, e.finished_at, e.last_error, e.subject, e.builder
 from notifyq.emails e
 where e.status = 'held' order by e.id desc limit 5)
union all
(select e.id, e.key, e.status, e.reason, e.run_after, e.finished_at, e.last_error, e.subject, e.builder
 from notifyq.emails e
 where e.status = 'dead' and e.reason not in ('suppressed', 'cancelled')
   and e.finished_at > clock_timestamp() - interval '7 days'
 order by e.finished_at desc limit 5)

-- name: page_to_set_up
-- Why rows wait for a person to set something up: the reasons of the newest 1,000, the most frequent first.
select w.last_error as error, count(*) as emails
from (select e.last_error from notifyq.emails e where e.status = 'pending' and e.waits > 0
      order by e.id desc limit 1000) w
group by w.last_error
order by emails desc, error
limit 3

-- name: page_changed
-- Rows that something happened to since a history id: open pages of these look again.
select h.lane, h.row_id from notifyq.history h where h.id > $1 order by h.id desc limit 500

-- name: page_kept
-- How many rows there are: counted up to 10,001, beyond it as the planner believes.
select (select count(*) from (select from notifyq.emails limit 10001) c) as emails,
       (select count(*) from (select from notifyq.tasks limit 10001) c) as tasks,
       greatest(0, max(c.reltuples) filter (where c.relname = 'emails'))::bigint as about_emails,
       greatest(0, max(c.reltuples) filter (where c.relname = 'tasks'))::bigint as about_tasks
from pg_class c
where c.oid in ('notifyq.emails'::regclass, 'notifyq.tasks'::regclass)

-- name: page_timeline
-- One stretch of the timeline: emails that ended in it, by minute, and how long the sent ones took, in
-- steps of a quarter (bin 0 is below 1 ms). A scheduled email counts from when it was due.
select date_trunc('minute', e.finished_at) as minute,
       e.status = 'sent' as sent,
       case when e.status = 'sent' then
           greatest(0, least(99, ceil(ln(greatest(extract(epoch from e.sent_at
               - case when e.attempts <= 1 then greatest(e.created_at, e.run_after) else e.created_at end), 0.001)
               / 0.001) / ln(1.25))))::int
       end as bin,
       count(*) as count
from notifyq.emails e
where e.finished_at >= $1 and e.finished_at < $2 and e.reason is distinct from 'cancelled'
group by 1, 2, 3

-- ---------------------------------------------------------------- lists

-- name: page_email_at
-- The first id that was enqueued at $1 or later, found by halving: ids rise with time.
with recursive halves as (
    select (select min(e.id) from notifyq.emails e) as low,
           (select max(e.id) + 1 from notifyq.emails e) as high
    union all
    select case when m.before then m.id + 1 else h.low end,
           case when m.before then h.high else h.low + (h.high - h.low) / 2 end
    from halves h cross join lateral (
        select e.id, e.created_at < $1 as before from notifyq.emails e
        where e.id >= h.low + (h.high - h.low) / 2 order by e.id limit 1
    ) m
    where h.low < h.high
)
select min(h.high) from halves h

-- name: page_task_at
with recursive halves as (
    select (select min(t.id) from notifyq.tasks t) as low,
           (select max(t.id) + 1 from notifyq.tasks t) as high
    union all
    select case when m.before then m.id + 1 else h.low end,
           case when m.before then h.high else h.low + (h.high - h.low) / 2 end
    from halves h cross join lateral (
        select t.id, t.created_at < $1 as before from notifyq.tasks t
        where t.id >= h.low + (h.high - h.low) / 2 order by t.id limit 1
    ) m
    where h.low < h.high
)
select min(h.high) from halves h

-- The lists share their parameters: $1 below this id, $2 from this id on, $3 status, $4 reason ('failed': dead
-- and somebody's fault; 'setup': waits to be set up), $5 beginning of the key, $6 builder, $7 tag, $8 rows wanted,
-- $9 rows to look at. The walk decides what is looked at; `offset 0` keeps the planner from another idea (a rare
-- reason is no reason to read a million rows).

-- name: page_emails_newest
-- By id, newest first: any filter, as far as the walk goes. One row more at the end says how far it came.
with walk as not materialized (
    select e.* from notifyq.emails e where e.id < $1 and e.id >= $2 order by e.id desc limit $9
), wanted as materialized (
    select w.id from walk w
    where ($3::text is null or w.status = $3)
      and ($4::text is null or w.reason = $4)
      and ($5::text is null or starts_with(w.key, $5))
      and ($6::text is null or w.builder = $6)
      and ($7::text is null or w.tag = $7)
    order by w.id desc limit $8
)
select e.id, e.key, e.status, e.reason, e.attempts, e.max_attempts, e.run_after, e.created_at, e.finished_at,
       e.last_error, e.claim_seq, e.recipient, e.subject, e.tag, e.builder, e.on_doubt
from wanted w cross join lateral (select * from notifyq.emails e where e.id = w.id offset 0) e
order by e.id desc

-- name: page_emails_reach
-- Where a walk of $3 rows below $1 ends: null if it comes to $2, the end.
select e.id from notifyq.emails e where e.id < $1 and e.id >= $2 order by e.id desc offset $3 limit 1

-- name: page_emails_failed
-- Held and dead, by their own index.
with walk as not materialized (
    (select e.id from notifyq.emails e
     where $3 = 'held' and e.status = 'held' and e.id < $1 and e.id >= $2 order by e.id desc limit $9)
    union all
    (select e.id from notifyq.emails e
     where $3 = 'dead' and e.status = 'dead' and e.id < $1 and e.id >= $2 order by e.id desc limit $9)
)
select e.id, e.key, e.status, e.reason, e.attempts, e.max_attempts, e.run_after, e.created_at, e.finished_at,
       e.last_error, e.claim_seq, e.recipient, e.subject, e.tag, e.builder, e.on_doubt
from walk w cross join lateral (select * from notifyq.emails e where e.id = w.id offset 0) e
where ($4::text is null or e.reason = $4 or ($4 = 'failed' and e.reason not in ('suppressed', 'cancelled')))
  and ($5::text is null or starts_with(e.key, $5))
  and ($6::text is null or e.builder = $6)
  and ($7::text is null or e.tag = $7)
order by w.id desc limit $8

-- name: page_emails_failed_reach
(select e.id from notifyq.emails e
 where $4 = 'held' and e.status = 'held' and e.id < $1 and e.id >= $2 order by e.id desc offset $3 limit 1)
union all
(select e.id from notifyq.emails e
 where $4 = 'dead' and e.status = 'dead' and e.id < $1 and e.id >= $2 order by e.id desc offset $3 limit 1)

-- name: page_emails_under_way
-- Pending, processing and doubt, by their own indexes.
with walk as materialized (
    (select e.id from notifyq.emails e
     where $3 = 'pending' and $4::text is null and e.status = 'pending' limit $9)
    union all
    (select e.id from notifyq.emails e
     where $3 = 'pending' and $4 = 'setup' and e.status = 'pending' and e.waits > 0 and e.id < $1 and e.id >= $2
     order by e.id desc limit $9)
    union all
    (select e.id from notifyq.emails e where $3 = 'processing' and e.status = 'processing' limit $9)
    union all
    (select e.id from notifyq.emails e
     where $3 = 'doubt' and e.status = 'doubt' and e.doubt_since is not null limit $9)
)
select e.id, e.key, e.status, e.reason, e.attempts, e.max_attempts, e.run_after, e.created_at, e.finished_at,
       e.last_error, e.claim_seq, e.recipient, e.subject, e.tag, e.builder, e.on_doubt
from walk w cross join lateral (select * from notifyq.emails e where e.id = w.id offset 0) e
where e.id < $1 and e.id >= $2 and e.status = $3
  and ($5::text is null or starts_with(e.key, $5))
  and ($6::text is null or e.builder = $6)
  and ($7::text is null or e.tag = $7)
order by e.id desc limit $8

-- name: page_emails_to
-- To $10. As the first recipient wherever it is: by its index, and by those of the rows under way. As another
-- one, or in cc or bcc, among the newest $11 rows (of those that are held or dead, if they are asked for): that
-- is in the message, which lies outside the row, so each one costs.
with read as not materialized (
    (select e.id, e.message from notifyq.emails e
     where coalesce($3, '') not in ('held', 'dead') and e.id < $1 and e.id >= $2 order by e.id desc limit $11)
    union all
    (select e.id, e.message from notifyq.emails e
     where $3 = 'held' and e.status = 'held' and e.id < $1 and e.id >= $2 order by e.id desc limit $11)
    union all
    (select e.id, e.message from notifyq.emails e
     where $3 = 'dead' and e.status = 'dead' and e.id < $1 and e.id >= $2 order by e.id desc limit $11)
), walk as materialized (
    select r.id from read r cross join lateral jsonb_to_record(r.message) as m ("to" jsonb, cc jsonb, bcc jsonb)
    where position('"email": ' || to_json($10::text)::text in lower(concat(m."to", m.cc, m.bcc))) > 0
    union
    (select e.id from notifyq.emails e
     where e.finished_at is not null and e.recipient = $10 and e.id < $1 and e.id >= $2
     order by e.recipient desc, e.id desc limit $9)
    union
    select u.id
    from (
        (select e.id, e.recipient from notifyq.emails e where e.status = 'pending' limit $9)
        union all
        (select e.id, e.recipient from notifyq.emails e where e.status = 'processing' limit $9)
        union all
        (select e.id, e.recipient from notifyq.emails e
         where e.status = 'doubt' and e.doubt_since is not null limit $9)
        union all
        (select e.id, e.recipient from notifyq.emails e where e.status = 'held' limit $9)
    ) u
    where u.recipient = $10
)
select e.id, e.key, e.status, e.reason, e.attempts, e.max_attempts, e.run_after, e.created_at, e.finished_at,
       e.last_error, e.claim_seq, e.recipient, e.subject, e.tag, e.builder, e.on_doubt
from walk w cross join lateral (select * from notifyq.emails e where e.id = w.id offset 0) e
where e.id < $1 and e.id >= $2
  and ($3::text is null or e.status = $3)
  and ($4::text is null or e.reason = $4 or ($4 = 'failed' and e.reason not in ('suppressed', 'cancelled'))
       or ($4 = 'setup' and e.waits > 0))
  and ($5::text is null or starts_with(e.key, $5))
  and ($6::text is null or e.builder = $6)
  and ($7::text is null or e.tag = $7)
order by e.id desc limit $8

-- name: page_email_many
-- Are there so many rows under way that sorting them by id would be slow?
select case $1
    when 'pending' then exists (select from notifyq.emails where status = 'pending' offset $2)
    when 'processing' then exists (select from notifyq.emails where status = 'processing' offset $2)
    when 'doubt' then exists (select from notifyq.emails where status = 'doubt' and doubt_since is not null offset $2)
end

-- name: page_task_many
select case $1
    when 'pending' then exists (select from notifyq.tasks where status = 'pending' offset $2)
    when 'processing' then exists (select from notifyq.tasks where status = 'processing' offset $2)
    else false
end

-- name: page_emails_key
select e.id, e.key, e.status, e.reason, e.attempts, e.max_attempts, e.run_after, e.created_at, e.finished_at,
       e.last_error, e.claim_seq, e.recipient, e.subject, e.tag, e.builder, e.on_doubt, e.waits,
       $2::text is null or position('"email": ' || to_json($2::text)::text
           in lower(concat(e.message -> 'to', e.message -> 'cc', e.message -> 'bcc'))) > 0 as addressed
from notifyq.emails e
where e.key = $1

-- name: page_tasks_newest
-- As page_emails_newest; $6 is the task's name.
with walk as not materialized (
    select t.* from notifyq.tasks t where t.id < $1 and t.id >= $2 order by t.id desc limit $8
), wanted as materialized (
    select w.id from walk w
    where ($3::text is null or w.status = $3)
      and ($4::text is null or w.reason = $4)
      and ($5::text is null or starts_with(w.key, $5))
      and ($6::text is null or w.name = $6)
    order by w.id desc limit $7
)
select t.id, t.name, t.key, t.status, t.reason, t.attempts, t.max_attempts, t.run_after, t.created_at,
       t.finished_at, t.last_error, t.claim_seq
from wanted w cross join lateral (select * from notifyq.tasks t where t.id = w.id offset 0) t
order by t.id desc

-- name: page_tasks_reach
select t.id from notifyq.tasks t where t.id < $1 and t.id >= $2 order by t.id desc offset $3 limit 1

-- name: page_tasks_indexed
-- Pending, processing and dead, by their own indexes.
with walk as materialized (
    (select t.id from notifyq.tasks t where $3 = 'pending' and t.status = 'pending' limit $8)
    union all
    (select t.id from notifyq.tasks t where $3 = 'processing' and t.status = 'processing' limit $8)
    union all
    (select t.id from notifyq.tasks t
     where $3 = 'dead' and t.status = 'dead' and t.id < $1 and t.id >= $2 order by t.id desc limit $8)
)
select t.id, t.name, t.key, t.status, t.reason, t.attempts, t.max_attempts, t.run_after, t.created_at,
       t.finished_at, t.last_error, t.claim_seq
from walk w cross join lateral (select * from notifyq.tasks t where t.id = w.id offset 0) t
where t.id < $1 and t.id >= $2
  and ($4::text is null or t.reason = $4 or ($4 = 'failed' and t.reason <> 'cancelled'))
  and ($5::text is null or starts_with(t.key, $5))
  and ($6::text is null or t.name = $6)
order by t.id desc limit $7

-- ---------------------------------------------------------------- one row

-- name: page_email
select e.id, e.uid, e.key, e.message::text as message, e.builder, e.stream, e.status, e.reason, e.attempts,
       e.max_attempts, e.run_after, e.send_before, e.priority, e.on_doubt, e.lease_until, e.leased_at,
       e.claimed_by, e.claim_seq, e.account, e.doubt_since, e.misses, e.asks, e.ordered, e.resent, e.waits,
       e.postponed, e.last_error, e.created_at, e.finished_at, e.provider_message_id, e.sent_at,
       g.state as gate, g.reason as gate_reason, clock_timestamp() as now
from notifyq.emails e left join notifyq.gates g on g.account = e.account
where e.id = $1

-- name: page_email_html
select e.message ->> 'html' as html,
       case when e.message ->> 'html' like '%cid:%' then (e.message -> 'attachments')::text end as attachments
from notifyq.emails e
where e.id = $1

-- name: page_email_attachment
select a ->> 'name' as name, a ->> 'content' as content
from notifyq.emails e cross join lateral jsonb_array_element(e.message -> 'attachments', $2) a
where e.id = $1 and jsonb_typeof(a) = 'object'

-- name: page_task
select t.id, t.name, t.key, t.args::text as args, t.status, t.reason, t.attempts, t.max_attempts, t.run_after,
       t.priority, t.lease_until, t.leased_at, t.claimed_by, t.claim_seq, t.last_error, t.created_at,
       t.finished_at, clock_timestamp() as now
from notifyq.tasks t
where t.id = $1

-- name: page_history
-- The last 500 things that happened to a row, oldest first.
select h.id, h.at, h.claim_seq, h.event, h.detail, h.actor
from (
    select * from notifyq.history h where h.row_id = $1 and h.lane = $2 order by h.id desc limit 500
) h
order by h.id

-- ---------------------------------------------------------------- what an operator does

-- name: page_actor
select set_config('notifyq.actor', $1, true)

-- name: page_retry_emails
-- Fenced: a row that has moved on since it was shown stays as it is. Locks in the order of the ids.
select r.id, r.status, r.changed
from (select * from unnest($1::bigint[], $2::bigint[]) as u (id, claim_seq) order by u.id) u
cross join lateral notifyq.retry_email(u.id, u.claim_seq) r

-- name: page_cancel_emails
select r.id, r.status, r.changed
from (select * from unnest($1::bigint[], $2::bigint[]) as u (id, claim_seq) order by u.id) u
cross join lateral notifyq.cancel_email(u.id, u.claim_seq) r

-- name: page_retry_tasks
select r.id, r.status, r.changed
from (select * from unnest($1::bigint[], $2::bigint[]) as u (id, claim_seq) order by u.id) u
cross join lateral notifyq.retry_task(u.id, u.claim_seq) r

-- name: page_cancel_tasks
select r.id, r.status, r.changed
from (select * from unnest($1::bigint[], $2::bigint[]) as u (id, claim_seq) order by u.id) u
cross join lateral notifyq.cancel_task(u.id, u.claim_seq) r

-- name: page_resolve_email
select r.id, r.status, r.changed from notifyq.resolve_email($1, $2, $3) r

-- name: page_copy
-- The message of $1 under a new key; with $3 to that address alone.
select n.id, n.created
from notifyq.emails e
cross join lateral notifyq.enqueue_email(
    $2, case when $3::text is null then e.message
             else (e.message - 'cc' - 'bcc') || jsonb_build_object('to', $3::text::jsonb) end) n
where e.id = $1 and e.message ? 'to'

-- name: page_note
select notifyq.note_act('email', $1, e.claim_seq, $2, $3, clock_timestamp()) from notifyq.emails e where e.id = $1
