-- What the worker says to the database. One block a statement; Python names the block and adds nothing.

-- name: prepare_session
-- A worker's own connection: claims and ends at READ COMMITTED whatever the role's default is.
-- Its statements are few and short and their plans known: one generic plan each, by index.
select set_config('default_transaction_isolation', 'read committed', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('jit', 'off', false),
       -- A little less than the client waits: what it has given up must not be done later.
       set_config('statement_timeout', $2, false),
       set_config('idle_in_transaction_session_timeout', '30s', false),
       set_config('idle_session_timeout', '0', false),
       set_config('application_name', $1, false)

-- name: prepare_ear
-- It says nothing for seconds, and must not be ended for it.
select set_config('idle_session_timeout', '0', false)

-- name: claim_emails
select * from notifyq.claim_emails($1, $2, $3, $4, $5, $6, $7, $8)

-- name: hurry_waiting
select notifyq.hurry_waiting()

-- name: email_sent
select * from notifyq.email_sent($1, $2, $3, $4)

-- name: email_dead
select * from notifyq.email_dead($1, $2, $3, $4, $5)

-- name: email_pending
select * from notifyq.email_pending($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: email_doubt
select * from notifyq.email_doubt($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: email_held
select * from notifyq.email_held($1, $2, $3, $4)

-- name: email_copies
select notifyq.note_copies($1, $2)

-- name: email_leases_ended
select * from notifyq.email_leases_ended($1, $2, $3)

-- name: release_lost_emails
select * from notifyq.release_lost_emails($1, $2)

-- name: running_leases
-- Leases that nobody here works under ($2, $3: the emails and tasks under way here): those of other
-- processes, and those of a claim of our own that reached the server after we gave it up. Watched until
-- they change or are over. The clock is answered even if there is none.
select statement_timestamp() as clock, l.lane, l.id, l.claim_seq, l.lease_until,
    extract(epoch from l.lease_until - l.leased_at)::double precision as length,
    extract(epoch from statement_timestamp() - l.leased_at)::double precision as age
from (values (1)) as always left join (
    (select 'email' as lane, id, claim_seq, lease_until, leased_at
     from notifyq.emails
     where status = 'processing' and (claimed_by <> $1 or id <> all ($2::bigint[]))
     limit 5000)
    union all
    (select 'task', id, claim_seq, lease_until, leased_at
     from notifyq.tasks
     where status = 'processing' and (claimed_by <> $1 or id <> all ($3::bigint[]))
     limit 5000)
) l on true

-- name: sweep_emails
select * from notifyq.sweep_emails($1, $2, $3, $4)

-- name: take_chore
select notifyq.take_chore($1, $2)

-- name: control_uid
-- The first message of ours that was accepted on this account and stream after $1: the positive
-- control. A search that does not show it is behind, and its "not there" says nothing.
select e.uid, h.at
from notifyq.history h
join notifyq.emails e on e.id = h.row_id
where h.lane = 'email' and h.event = 'accepted'
  and h.at > $1 and h.at < $1::timestamptz + interval '1 hour'
  and e.stream = $2 and e.account = $3
order by h.at
limit 1

-- name: gate_failed
select notifyq.gate_failed($1, $2, $3, $4)

-- name: gate_throttled
select notifyq.gate_throttled($1, $2, $3, $4)

-- name: gate_blocked
select notifyq.gate_blocked($1, $2)

-- name: gate_succeeded
select notifyq.gate_succeeded($1, $2)

-- name: gate_look
select notifyq.gate_look($1)

-- name: gate_mended
select notifyq.gate_mended($1)

-- name: gate_server
select notifyq.gate_server($1, $2)

-- name: durability
select current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on'

-- name: take_bell_lock
select notifyq.take_bell_lock($1, $2)

-- name: leave_bell_lock
select notifyq.leave_bell_lock($1)

-- name: unseat
select notifyq.unseat()

-- name: proof
select pg_notify($1, '')

-- name: recent_streams
select distinct e.stream
from notifyq.history h
join notifyq.emails e on e.id = h.row_id
where h.lane = 'email' and h.event in ('accepted', 'found') and h.at > clock_timestamp() - $1::interval

-- name: sent_again_uids
-- Emails that were sent again after a doubt: where a double of ours would be, if there is one.
select distinct e.uid, e.stream
from notifyq.history h
join notifyq.emails e on e.id = h.row_id
where h.lane = 'email' and h.event in ('not sent', 'resent') and h.at > clock_timestamp() - $1::interval
  and e.account = $2
limit 200

-- name: unsettled_uids
-- Emails that ended or wait without anybody knowing whether a POST of theirs was accepted.
(select id, uid, claim_seq from notifyq.emails where status = 'held' limit 5000)
union all
(select id, uid, claim_seq from notifyq.emails
 where finished_at > clock_timestamp() - $1::interval and status = 'dead' and resent limit 5000)

-- name: emails_by_uid
select id, uid, key, claim_seq, provider_message_id from notifyq.emails where uid = any ($1::uuid[])

-- name: worker_seen
select notifyq.worker_seen($1, $2, $3, $4, $5)

-- name: worker_gone
select notifyq.worker_gone($1)

-- name: claim_tasks
select * from notifyq.claim_tasks($1, $2, $3, $4, $5, $6)

-- name: task_done
select * from notifyq.task_done($1, $2, $3)

-- name: task_dead
select * from notifyq.task_dead($1, $2, $3, $4, $5)

-- name: task_pending
select * from notifyq.task_pending($1, $2, $3, $4, $5, $6)

-- name: renew_task_leases
select * from notifyq.renew_task_leases($1, $2, $3)

-- name: task_leases_ended
select * from notifyq.task_leases_ended($1, $2, $3)

-- name: release_lost_tasks
select * from notifyq.release_lost_tasks($1, $2)

-- name: purge_tasks
select notifyq.purge_tasks($1)

-- name: last_tick
select notifyq.last_tick($1)

-- name: enqueue_tick
select notifyq.enqueue_tick($1, $2, $3, $4, $5)
