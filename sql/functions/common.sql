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

-- The bell: a hint that work may be due. One NOTIFY a transaction however often it is called (Postgres
-- merges equal ones), no payload (any role may listen). Custom setting notifyq.bell:
-- 'asleep' (default) and 'always' ring; 'off' never does, and the workers' timer finds the row.
create or replace function notifyq.ring() returns void language plpgsql as $$
begin
    if coalesce(current_setting('notifyq.bell', true), '') <> 'off' then
        perform pg_notify('notifyq', '');
    end if;
end $$;

-- Statement level, so that plain SQL, bulk inserts and COPY ring once.
create or replace function notifyq.ring_after_insert() returns trigger language plpgsql as $$
begin
    perform notifyq.ring();
    return null;
end $$;

create or replace trigger ring after insert on notifyq.emails
    for each statement execute function notifyq.ring_after_insert();
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

-- Take a chore that is due; answers whether it is ours. However many workers ask, one gets it.
create or replace function notifyq.take_chore(
    p_name text, p_every interval, p_now timestamptz default null
) returns boolean language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into notifyq.chores (name, last_at) values (p_name, v_now)
    on conflict (name) do update set last_at = v_now
        where notifyq.chores.last_at <= v_now - p_every;
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
    p_name text, p_listening boolean, p_tasks text[], p_builders text[], p_now timestamptz default null
) returns void language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into notifyq.workers as w (name, started_at, seen_at, listening, tasks, builders)
    values (p_name, v_now, v_now, p_listening, p_tasks, p_builders)
    on conflict (name) do update
        set seen_at = v_now, listening = p_listening, tasks = p_tasks, builders = p_builders;
    delete from notifyq.workers w where w.seen_at < v_now - interval '10 minutes';
end $$;

create or replace function notifyq.worker_gone(p_name text) returns void language plpgsql as $$
begin
    delete from notifyq.workers w where w.name = p_name;
end $$;
