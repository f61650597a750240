-- What emails and tasks share: durability, the bell, the history.

-- A claim that a crash can forget would be sent blindly again, so the commit of every change of state
-- is made durable even where the role or the database says otherwise. Raised only from 'off' and
-- 'local': 'remote_apply' is more than 'on', not less. (A SET clause on the function would be undone
-- before the commit, when it matters.)
create or replace function notifyq.be_durable() returns void language plpgsql as $$
begin
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end $$;

-- The bell: a hint that work may be due, without payload (any role may listen), at most one NOTIFY a
-- transaction (Postgres merges equal ones). Custom setting notifyq.bell:
--
-- 'asleep' (default): NOTIFY only if a worker sleeps. A notifying commit takes a lock of the whole
--          cluster over its flush, so that a NOTIFY in every commit is what makes an outbox slow.
-- 'always': NOTIFY every time.     'off': never; the workers' timer finds the row.
--
-- Whether somebody sleeps is asked without a race: a sleeper holds the advisory lock SLEEP. If the
-- shared try fails, somebody sleeps or is about to, and is rung. If it succeeds, nobody sleeps, and the
-- shared lock, kept to the end of this transaction, is the promise that nobody falls asleep before this
-- row is visible: the sleeper waits for it, and claims once more after the grant (notifyq/bell.py).
create or replace function notifyq.ring() returns void language plpgsql as $$
declare
    v_bell text := coalesce(nullif(current_setting('notifyq.bell', true), ''), 'asleep');
begin
    if v_bell = 'off' then
        return;
    end if;
    if v_bell = 'always' or not pg_try_advisory_xact_lock_shared(1852798834, 1) then
        perform pg_notify('notifyq', '');
    end if;
end $$;

-- One worker sleeps for all: it has the SEAT (lock 2) and then, while it sleeps, SLEEP (lock 1). Both
-- are session locks: Postgres frees them when their holder dies. Waits are short, since a session that
-- waits holds a snapshot, and so holds vacuum back. Answers whether the lock was got.
create or replace function notifyq.take_bell_lock(p_lock int, p_wait interval) returns boolean
language plpgsql as $$
begin
    perform set_config('lock_timeout', (extract(epoch from p_wait) * 1000)::int::text, true);
    perform pg_advisory_lock(1852798834, p_lock);
    return true;
exception when lock_not_available then
    return false;
end $$;

create or replace function notifyq.leave_bell_lock(p_lock int) returns void language plpgsql as $$
begin
    perform pg_advisory_unlock(1852798834, p_lock);
end $$;

-- The holder of the seat does not hear (frozen, half-open): end its session, so that another can sit.
-- Not one that has shown a sign of life: a holder proves itself through that session every 4.5 seconds.
create or replace function notifyq.unseat() returns int language plpgsql as $$
declare
    v_count int;
begin
    select count(*) into v_count
    from (
        select pg_terminate_backend(l.pid) as ended
        from pg_locks l
        where l.locktype = 'advisory' and l.classid = 1852798834 and l.objid = 2 and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
          and l.pid <> pg_backend_pid()
          and exists (
              select from pg_stat_activity a
              where a.pid = l.pid and a.state_change < clock_timestamp() - interval '7 seconds')
    ) t
    where t.ended;
    return v_count;
end $$;

-- Statement level, so that plain SQL, bulk inserts and COPY ring once.
create or replace function notifyq.ring_after_insert() returns trigger language plpgsql as $$
begin
    perform notifyq.ring();
    return null;
end $$;

create or replace trigger ring after insert on notifyq.emails
    for each statement execute function notifyq.ring_after_insert();

-- Which priorities there are, for claims that may not walk the whole index. What nearly every email has
-- (no builder, priority 0) stands there from the beginning, so that it costs nothing here.
create or replace function notifyq.note_kind() returns trigger language plpgsql as $$
begin
    if not exists (
        select from notifyq.kinds k
        where k.lane = 'email' and k.name = new.builder and k.priority = new.priority
    ) then
        insert into notifyq.kinds (lane, name, priority) values ('email', new.builder, new.priority);
    end if;
    return null;
end $$;

create or replace trigger note_kind after insert on notifyq.emails
    for each row when (new.priority <> 0 or new.builder <> '') execute function notifyq.note_kind();
create or replace trigger ring after insert on notifyq.tasks
    for each statement execute function notifyq.ring_after_insert();

-- Who acts, for an operator's acts: the custom setting notifyq.actor (the page and the command set it),
-- else the database role.
create or replace function notifyq.actor() returns text language plpgsql stable as $$
begin
    return coalesce(nullif(current_setting('notifyq.actor', true), ''), session_user::text);
end $$;

-- A refusal: SQLSTATE 22023, COLUMN names the field. Never the value, which may be a secret.
create or replace function notifyq.refuse(p_field text, p_rule text) returns void language plpgsql as $$
begin
    raise exception '%: %', p_field, p_rule
        using errcode = '22023', column = p_field, schema = 'notifyq';
end $$;

-- A time that no clock reaches: arithmetic on it fails (infinity), or a driver cannot read it.
create or replace function notifyq.check_time(p_field text, p_time timestamptz) returns void
language plpgsql as $$
begin
    if not (p_time > '0001-01-02' and p_time < '9999-12-30') then
        perform notifyq.refuse(p_field, 'must be a time before the year 9999; leave it out where there is no limit');
    end if;
end $$;

-- Take a chore that is due; answers whether it is ours. However many workers ask, one gets it. The
-- first time is one period after the first worker: there is nothing to look back at yet.
create or replace function notifyq.take_chore(
    p_name text, p_every interval, p_now timestamptz default null
) returns boolean language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into notifyq.chores (name, last_at) values (p_name, v_now) on conflict do nothing;
    update notifyq.chores c set last_at = v_now where c.name = p_name and c.last_at <= v_now - p_every;
    return found;
end $$;

-- An operator's act, with who it was.
create or replace function notifyq.note_act(
    p_lane text, p_id bigint, p_claim_seq bigint, p_event text, p_detail text, p_now timestamptz
) returns void language plpgsql as $$
begin
    insert into notifyq.history (at, lane, row_id, claim_seq, event, detail, actor)
    values (p_now, p_lane, p_id, p_claim_seq, p_event, p_detail, notifyq.actor());
end $$;

-- A worker is there: what it knows, and whether it hears the bell. Lines of workers that have not been
-- seen for ten minutes go.
create or replace function notifyq.worker_seen(
    p_name text, p_listening boolean, p_tasks text[], p_builders text[], p_account text default null,
    p_now timestamptz default null
) returns void language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into notifyq.workers as w (name, started_at, seen_at, account, listening, tasks, builders)
    values (p_name, v_now, v_now, p_account, p_listening, p_tasks, p_builders)
    on conflict (name) do update
        set seen_at = v_now, account = p_account, listening = p_listening, tasks = p_tasks,
            builders = p_builders;
    delete from notifyq.workers w where w.seen_at < v_now - interval '10 minutes';
end $$;

create or replace function notifyq.worker_gone(p_name text) returns void language plpgsql as $$
begin
    delete from notifyq.workers w where w.name = p_name;
end $$;
