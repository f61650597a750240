-- What the demo looks at and does beside the public way in.

-- name: demo_rows
-- The newest rows of both lanes with all that happened to each, in the order in which they were made.
select *
from (
    select
        'email' as lane, e.id, e.key as name, e.uid::text as uid, e.status, e.reason, e.attempts,
        extract(epoch from e.created_at)::double precision as created_at,
        array(
            select h.event from notifyq.history h where h.lane = 'email' and h.row_id = e.id order by h.id
        ) as events
    from notifyq.emails e
    union all
    select
        'task', t.id, t.name || coalesce(' ' || t.key, ''), null, t.status, t.reason, t.attempts,
        extract(epoch from t.created_at)::double precision,
        array(
            select h.event from notifyq.history h where h.lane = 'task' and h.row_id = t.id order by h.id
        )
    from notifyq.tasks t
    order by created_at desc
    limit $1
) newest
order by created_at, lane, id

-- name: demo_retry_email
select id, status, changed from notifyq.retry_email($1)
