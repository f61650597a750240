-- What migrate and the worker's start-up check ask.

-- name: lock_migrations
-- Two migrators at once: the second waits for the first and then finds nothing to do.
select pg_advisory_xact_lock(7236837240123)

-- name: installed
select to_regclass('notifyq.migrations') is not null

-- name: versions
select coalesce(max(version), 0) as version, coalesce(max(oldest_worker), 0) as oldest_worker
from notifyq.migrations

-- name: applied
select version from notifyq.migrations order by version

-- name: record_migration
insert into notifyq.migrations (version, name, oldest_worker) values ($1, $2, $3)

-- name: functions_digest
select detail from notifyq.chores where name = 'functions'

-- name: record_functions
insert into notifyq.chores (name, last_at, detail) values ('functions', clock_timestamp(), $1)
on conflict (name) do update set last_at = excluded.last_at, detail = excluded.detail
