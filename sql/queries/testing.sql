-- What notifyq.testing asks: databases for tests, and whether a drain has come to its end.

-- name: test_database_statement
-- Identifiers cannot be parameters, so the server itself writes the statement. 'file_copy' (15 and
-- later) is faster than the default for a template that nobody uses.
select format('create database %I template %I', $1::text, $2::text)
       || case when current_setting('server_version_num')::int >= 150000 then ' strategy file_copy' else '' end

-- name: empty_database_statement
select format('create database %I', $1::text)

-- name: drop_database_statement
select format('drop database if exists %I with (force)', $1::text)

-- name: waiting_to_be_set_up
select id, last_error from notifyq.emails where status = 'pending' and waits > 0 order by id limit 20

-- name: unfinished
-- Due, under way or in doubt, in one snapshot. Calls of tasks that the test does not declare stay.
select 'email' as lane, id, status
from notifyq.emails
where status in ('processing', 'doubt')
   or status = 'pending' and run_after <= clock_timestamp()
union all
select 'task', id, status
from notifyq.tasks
where name = any ($1)
  and (status = 'processing' or status = 'pending' and run_after <= clock_timestamp())
order by lane, id
limit 20
