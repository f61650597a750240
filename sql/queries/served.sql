-- Which names nobody serves: rows that wait for a worker which knows their task or builder.

-- name: unserved_names
-- Flat in cost: each name is one step in the index of pending rows, whatever waits behind it. rows is
-- counted up to 1,000. A worker lives while it has written its line within 150 seconds.
with recursive task_names as (
    (select t.name from notifyq.tasks t where t.status = 'pending' order by t.name limit 1)
    union all
    select (select t.name from notifyq.tasks t where t.status = 'pending' and t.name > n.name
            order by t.name limit 1)
    from task_names n where n.name is not null
), builder_names as (
    (select e.builder from notifyq.emails e where e.status = 'pending' and e.builder > ''
     order by e.builder limit 1)
    union all
    select (select e.builder from notifyq.emails e where e.status = 'pending' and e.builder > n.builder
            order by e.builder limit 1)
    from builder_names n where n.builder is not null
), live as (
    select w.tasks, w.builders from notifyq.workers w
    where w.seen_at > clock_timestamp() - interval '150 seconds'
)
select 'task' as lane, n.name,
       (select count(*) from (select from notifyq.tasks t
                              where t.status = 'pending' and t.name = n.name limit 1000) counted) as rows
from task_names n
where n.name is not null and not exists (select from live l where n.name = any (l.tasks))
union all
select 'email', n.builder,
       (select count(*) from (select from notifyq.emails e
                              where e.status = 'pending' and e.builder = n.builder limit 1000) counted)
from builder_names n
where n.builder is not null and not exists (select from live l where n.builder = any (l.builders))
order by lane desc, name
