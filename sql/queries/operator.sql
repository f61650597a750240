-- What an operator does: the command and the page. Each act is fenced by the claim_seq that the
-- person saw, and leaves a line with the person's name in the history.

-- name: act_as
-- Who acts, until the end of the transaction.
select set_config('notifyq.actor', $1, true)

-- name: act_wait_briefly
select set_config('lock_timeout', $1, false)

-- name: act_retry_email
select id, status, changed from notifyq.retry_email($1, $2)

-- name: act_cancel_email
select id, status, changed from notifyq.cancel_email($1, $2)

-- name: act_resolve_email
select id, status, changed from notifyq.resolve_email($1, $2, $3)

-- name: act_retry_task
select id, status, changed from notifyq.retry_task($1, $2)

-- name: act_cancel_task
select id, status, changed from notifyq.cancel_task($1, $2)

-- name: act_retry_dead_emails
-- One batch of the dead emails of one reason, in the order of their ids, from $2 (not included) to $3.
-- What is purged already cannot be sent and is passed over.
select r.id, r.changed
from (
    select e.id, e.claim_seq from notifyq.emails e
    where e.status = 'dead' and e.reason = $1 and e.id > $2 and e.id <= $3 and e.message is not null
    order by e.id limit $4
) seen
cross join lateral notifyq.retry_email(seen.id, seen.claim_seq) r

-- name: act_retry_dead_tasks
select seen.id, r.changed
from (
    select t.id, t.claim_seq from notifyq.tasks t
    where t.status = 'dead' and t.reason = $1 and t.id > $2 and t.id <= $3
    order by t.id limit $4
) seen
cross join lateral notifyq.retry_task(seen.id, seen.claim_seq) r
