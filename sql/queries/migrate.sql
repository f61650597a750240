-- What migrate and the worker's start-up check ask.

-- name: take_the_time
-- A role's limits are for its app's statements; a migration ends when it has ended.
select set_config('statement_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '0', true)

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

-- name: drop_older_signatures
-- "create or replace" leaves a function of the same name and other arguments beside the new one. Just after
-- all of ours were replaced, the older ones are those of another transaction than the youngest. One goes at
-- once if a call could mean both (it would be refused as ambiguous), else with the last worker that calls
-- it: sql/README.md. What somebody else's view or trigger calls stays, and so does a name that is not ours.
do $$
declare
    v_now constant xid := (select p.xmin from pg_proc p where p.pronamespace = 'notifyq'::regnamespace
                           order by age(p.xmin) limit 1);
    v_no_older_worker constant boolean := (select max(oldest_worker) >= max(version) from notifyq.migrations);
    v_old regprocedure;
begin
    for v_old in
        select p.oid from pg_proc p
        where p.pronamespace = 'notifyq'::regnamespace and p.prokind = 'f' and p.xmin <> v_now
          and exists (
              select from pg_proc q
              where q.pronamespace = p.pronamespace and q.proname = p.proname and q.xmin = v_now
                and (v_no_older_worker or (p.pronargs - p.pronargdefaults <= q.pronargs
                                           and q.pronargs - q.pronargdefaults <= p.pronargs)))
    loop
        begin
            execute format('drop function %s', v_old);
        exception when dependent_objects_still_exist then
            raise notice 'the older function % is still used', v_old;
        end;
    end loop;
end $$

-- name: record_functions
insert into notifyq.chores (name, last_at, detail) values ('functions', clock_timestamp(), $1)
on conflict (name) do update set last_at = excluded.last_at, detail = excluded.detail
