-- A task call's life in verbs: enqueue, claim, then one end of the run (task_done, task_dead,
-- task_pending), and what an operator may do (retry, cancel). Reads like emails.sql, verb for verb; what
-- differs is the key (unique among active calls, so that a finished task can run again), and that a lost
-- lease means "run it again", not doubt: a task is ours, nobody else has to be asked.

-- ---------------------------------------------------------------- the way in

create or replace function notifyq.check_task(
    p_name text, p_args jsonb, p_key text, p_priority int, p_max_attempts int
) returns void language plpgsql as $$
begin
    if coalesce(p_name, '') = '' or char_length(p_name) > 200 then
        perform notifyq.refuse('name', 'must have 1 to 200 characters');
    end if;
    if p_args is null or jsonb_typeof(p_args) <> 'object' then
        perform notifyq.refuse('args', 'must be a JSON object');
    end if;
    if p_key = '' or char_length(p_key) > 500 then
        perform notifyq.refuse('key', 'must have 1 to 500 characters, or be null');
    end if;
    if p_priority is null then
        perform notifyq.refuse('priority', 'must be a number');
    end if;
    if p_max_attempts < 1 then
        perform notifyq.refuse('max_attempts', 'must be at least 1');
    end if;
end $$;

-- Enqueue one call. A key that is active answers the call that exists.
create or replace function notifyq.enqueue_task(
    p_name text,
    p_args jsonb default '{}',
    p_key text default null,
    p_run_after timestamptz default null,
    p_priority int default 0,
    p_max_attempts int default null,
    p_now timestamptz default null
) returns table (id bigint, created boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_id  bigint;
begin
    perform notifyq.check_task(p_name, p_args, p_key, p_priority, p_max_attempts);
    perform notifyq.check_time('run_after', p_run_after);
    loop
        insert into notifyq.tasks (name, args, key, run_after, priority, max_attempts, created_at)
        values (p_name, p_args, p_key, coalesce(p_run_after, v_now), p_priority, coalesce(p_max_attempts, 10), v_now)
        on conflict (name, key) where status in ('pending', 'processing') do nothing
        returning id into v_id;
        if v_id is not null then
            return query select v_id, true;
            return;
        end if;
        select t.id into v_id from notifyq.tasks t
        where t.name = p_name and t.key = p_key and t.status in ('pending', 'processing');
        if v_id is not null then
            return query select v_id, false;
            return;
        end if;
        -- It ended in between: try again.
    end loop;
end $$;

-- One tick of a periodic task, by whichever worker comes first. Answers whether this call enqueued it.
-- p_run false: the tick is passed over (missed, and its policy is to skip).
create or replace function notifyq.enqueue_tick(
    p_name text, p_tick timestamptz, p_run boolean default true, p_priority int default 0,
    p_max_attempts int default null, p_now timestamptz default null
) returns boolean language plpgsql as $$
begin
    perform notifyq.be_durable();
    update notifyq.periodic p set last_tick = p_tick where p.name = p_name and p.last_tick < p_tick;
    if not found then
        return false;
    end if;
    if p_run then
        perform notifyq.enqueue_task(p_name, '{}', null, null, p_priority, p_max_attempts, p_now);
    end if;
    return p_run;
end $$;

-- The last tick of a periodic task; a task that is seen for the first time begins now.
create or replace function notifyq.last_tick(p_name text, p_now timestamptz default null) returns timestamptz
language plpgsql as $$
declare
    v_tick timestamptz;
begin
    insert into notifyq.periodic (name, last_tick) values (p_name, coalesce(p_now, clock_timestamp()))
    on conflict do nothing;
    select p.last_tick into v_tick from notifyq.periodic p where p.name = p_name;
    return v_tick;
end $$;

-- ---------------------------------------------------------------- the claim

-- Claim up to p_slots due calls of the tasks in p_names, at most p_bulk_slots of them not urgent. p_limits: how many calls of each may run at once
-- over the fleet (null: any number). A limit holds because its count is taken under a lock on the name,
-- which is kept until this claim is committed.
create or replace function notifyq.claim_tasks(
    p_worker text,
    p_slots int,
    p_names text[],
    p_limits int[],
    p_lease interval,
    p_bulk_slots int default null,
    p_now timestamptz default null
) returns table (
    wake_in double precision, others_at_work boolean,
    id bigint, name text, key text, args text, claim_seq bigint, attempts int, max_attempts int,
    waited double precision, urgent boolean
) language plpgsql as $$
#variable_conflict use_column
declare
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_ids      bigint[] := '{}';
    v_more     bigint[];
    v_left     int := p_slots;
    v_bulk     int := coalesce(p_bulk_slots, p_slots);
    v_most     int;
    v_room     int[];
    v_priority int;
    v_hops     int := 0;
    v_next     timestamptz;
    v_wake     timestamptz;
begin
    perform notifyq.be_durable();
    v_room := notifyq.task_room(p_names, p_limits);
    if array_position(v_room, null) is not null then
        -- Another claim counts one of the names right now.
        v_wake := v_now + interval '20 milliseconds';
    elsif -1 = any (v_room) then
        -- A name is at its limit: when another process ends a call of it, nobody rings.
        v_wake := v_now + interval '1 second';
    end if;

    while v_left > 0 loop
        select min(t.priority) into v_priority
        from unnest(p_names, v_room) as k (name, room) cross join lateral (
            select t.priority from notifyq.tasks t
            where t.status = 'pending' and t.name = k.name
              and (v_priority is null or t.priority > v_priority)
            order by t.priority limit 1
        ) t
        where k.room > 0;
        exit when v_priority is null;
        v_hops := v_hops + 1;
        exit when v_hops = 32;
        v_most := case when v_priority < 0 then v_left else least(v_left, v_bulk) end;
        exit when v_most <= 0;

        select coalesce(array_agg(due.id), '{}') into v_more
        from (
            select t.id
            from unnest(p_names, v_room) as k (name, room) cross join lateral (
                select t.id, t.run_after from notifyq.tasks t
                where t.status = 'pending' and t.name = k.name and t.priority = v_priority
                  and t.run_after <= v_now
                order by t.run_after, t.id limit least(v_most, k.room)
                for no key update skip locked
            ) t
            where k.room > 0
            order by t.run_after, t.id limit v_most
        ) due;
        v_ids := v_ids || v_more;
        v_left := v_left - cardinality(v_more);
        if v_priority >= 0 then
            v_bulk := v_bulk - cardinality(v_more);
        end if;
        v_room := notifyq.task_room_left(p_names, v_room, v_more);

        if cardinality(v_more) < v_most then
            select min(t.run_after) into v_next
            from unnest(p_names, v_room) as k (name, room) cross join lateral (
                select t.run_after from notifyq.tasks t
                where t.status = 'pending' and t.name = k.name and t.priority = v_priority
                  and t.id <> all (v_more)
                order by t.run_after, t.id limit 1
            ) t
            where k.room > 0;
            v_wake := least(v_wake, v_next);
        end if;
    end loop;

    if v_hops = 32 and least(v_left, v_bulk) > 0 then
        -- Somebody gives each call a priority of its own: the rest in one walk, and again soon. Of tasks
        -- without a limit, whose calls need not be counted one by one.
        select coalesce(array_agg(due.id), '{}') into v_more
        from (
            select t.id from notifyq.tasks t
            where t.status = 'pending' and t.priority >= v_priority and t.run_after <= v_now
              and t.name in (select k.name from unnest(p_names, p_limits) as k (name, most) where k.most is null)
              and t.id <> all (v_ids)
            order by t.priority, t.run_after, t.id limit least(v_left, v_bulk)
            for no key update skip locked
        ) due;
        v_ids := v_ids || v_more;
        v_wake := least(v_wake, v_now + interval '1 second');
    end if;

    return query
        with claimed as (
            update notifyq.tasks t
            set status = 'processing',
                claim_seq = t.claim_seq + 1,
                attempts = t.attempts + 1,
                lease_until = v_now + p_lease,
                leased_at = v_now,
                claimed_by = p_worker
            where t.id = any (v_ids)
            returning t.*
        )
        select
            extract(epoch from v_wake - v_now)::double precision,
            (
                -- By order, not `exists`: see claim_emails.
                select o.id from notifyq.tasks o
                where o.status = 'processing' and o.claimed_by <> p_worker and o.lease_until >= v_now
                order by o.name, o.lease_until limit 1) is not null,
            c.id, c.name, c.key::text, c.args::text, c.claim_seq, c.attempts::int, c.max_attempts::int,
            extract(epoch from v_now - greatest(c.run_after, c.created_at))::double precision, c.priority < 0
        from (values (1)) as always left join claimed c on true
        order by c.priority, c.run_after, c.id;
end $$;

-- How many more calls of each name may start. 0: none waits. -1: some wait, but as many as may run do.
-- Null: another claim holds the count of this name now.
create or replace function notifyq.task_room(p_names text[], p_limits int[]) returns int[]
language plpgsql as $$
declare
    v_room    int[] := '{}';
    v_waiting boolean;
    v_free    int;
begin
    for i in 1 .. coalesce(cardinality(p_names), 0) loop
        if p_limits[i] is null then
            v_room := v_room || 2147483647;
            continue;
        end if;
        select exists (
            select from notifyq.tasks t where t.status = 'pending' and t.name = p_names[i]
        ) into v_waiting;
        if not v_waiting then
            v_room := v_room || 0;
        elsif pg_try_advisory_xact_lock(1852798833, hashtext(p_names[i])) then
            select p_limits[i] - count(*)::int into v_free
            from notifyq.tasks t where t.status = 'processing' and t.name = p_names[i];
            v_room := v_room || case when v_free > 0 then v_free else -1 end;
        else
            v_room := v_room || null::int;
        end if;
    end loop;
    return v_room;
end $$;

create or replace function notifyq.task_room_left(p_names text[], p_room int[], p_claimed bigint[]) returns int[]
language plpgsql as $$
begin
    return (
        select coalesce(array_agg(k.room - (
            select count(*)::int from notifyq.tasks t where t.id = any (p_claimed) and t.name = k.name
        ) order by k.ord), '{}')
        from unnest(p_names, p_room) with ordinality as k (name, room, ord)
    );
end $$;

-- ---------------------------------------------------------------- the ends of a run

create or replace function notifyq.task_done(
    p_ids bigint[], p_claim_seqs bigint[], p_events text[], p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.be_durable();
    return query
        with recorded as (
            update notifyq.tasks t
            set status = 'done', finished_at = v_now, last_error = null,
                lease_until = null, leased_at = null, claimed_by = null
            from unnest(p_ids, p_claim_seqs, p_events) as d (id, claim_seq, event)
            where t.id = d.id and t.claim_seq = d.claim_seq and t.lease_until is not null
            returning t.id, t.claim_seq, d.event
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event)
            select v_now, 'task', r.id, r.claim_seq, r.event from recorded r
        )
        select r.id from recorded r;
end $$;

-- It will not run again by itself. p_reasons: exhausted, gave_up, invalid.
create or replace function notifyq.task_dead(
    p_ids bigint[], p_claim_seqs bigint[], p_reasons text[], p_errors text[], p_events text[],
    p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.be_durable();
    return query
        with recorded as (
            update notifyq.tasks t
            set status = 'dead', reason = d.reason, last_error = left(d.error, 1000), finished_at = v_now,
                lease_until = null, leased_at = null, claimed_by = null
            from unnest(p_ids, p_claim_seqs, p_reasons, p_errors, p_events)
                as d (id, claim_seq, reason, error, event)
            where t.id = d.id and t.claim_seq = d.claim_seq and t.lease_until is not null
            returning t.id, t.claim_seq, d.event, d.error
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
            select v_now, 'task', r.id, r.claim_seq, r.event, left(r.error, 1000) from recorded r
        )
        select r.id from recorded r;
end $$;

-- Pending again in p_delays seconds. Not charged: it had not started, the attempt is given back.
create or replace function notifyq.task_pending(
    p_ids bigint[], p_claim_seqs bigint[], p_delays double precision[], p_charged boolean[],
    p_errors text[], p_events text[], p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.be_durable();
    return query
        with recorded as (
            update notifyq.tasks t
            set status = 'pending',
                run_after = v_now + make_interval(secs => d.delay),
                attempts = t.attempts - (not d.charged)::int,
                last_error = coalesce(left(d.error, 1000), t.last_error),
                lease_until = null, leased_at = null, claimed_by = null
            from unnest(p_ids, p_claim_seqs, p_delays, p_charged, p_errors, p_events)
                as d (id, claim_seq, delay, charged, error, event)
            where t.id = d.id and t.claim_seq = d.claim_seq and t.lease_until is not null
            returning t.id, t.claim_seq, d.event, d.error
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
            select v_now, 'task', r.id, r.claim_seq, r.event, left(r.error, 1000) from recorded r
        )
        select r.id from recorded r;
    -- Every worker looks at least each 30 s; what is due sooner has to be told.
    perform notifyq.ring() where exists (select from unnest(p_delays) d (delay) where d.delay < 30);
end $$;

-- ---------------------------------------------------------------- leases

-- The heartbeat: one statement for all calls of a process. Answers those that are still ours.
create or replace function notifyq.renew_task_leases(
    p_ids bigint[], p_claim_seqs bigint[], p_lease interval, p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
        update notifyq.tasks t
        set lease_until = v_now + p_lease, leased_at = v_now
        from unnest(p_ids, p_claim_seqs) as d (id, claim_seq)
        where t.id = d.id and t.claim_seq = d.claim_seq and t.lease_until is not null
        returning t.id;
end $$;

-- A lease ran out, as its observer's own clock judged: the very lease that it saw, in one fenced
-- statement. The call runs again, or is dead when its attempts are spent: a call that kills its process
-- cannot loop for ever.
create or replace function notifyq.task_leases_ended(
    p_ids bigint[], p_claim_seqs bigint[], p_leases timestamptz[], p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.be_durable();
    return query
        with over as (
            select t.id, t.attempts >= t.max_attempts as spent
            from unnest(p_ids, p_claim_seqs, p_leases) as d (id, claim_seq, lease)
            join notifyq.tasks t on t.id = d.id and t.claim_seq = d.claim_seq
            where t.lease_until = d.lease
            order by t.id
            for no key update of t
        ), recorded as (
            update notifyq.tasks t
            set status = case when o.spent then 'dead' else 'pending' end,
                reason = case when o.spent then 'exhausted' end,
                finished_at = case when o.spent then v_now end,
                run_after = v_now,
                last_error = 'the worker was lost while it ran this call',
                lease_until = null, leased_at = null, claimed_by = null
            from over o where t.id = o.id
            returning t.id, t.claim_seq, o.spent
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event)
            select v_now, 'task', r.id, r.claim_seq, case when r.spent then 'exhausted' else 'lease ended' end
            from recorded r
        )
        select r.id from recorded r;
    perform notifyq.ring();
end $$;

-- Claims of this very process that it never heard of: nothing was started, so they go back uncharged.
create or replace function notifyq.release_lost_tasks(
    p_worker text, p_known bigint[], p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.be_durable();
    return query
        with released as (
            update notifyq.tasks t
            set status = 'pending', attempts = t.attempts - 1,
                lease_until = null, leased_at = null, claimed_by = null
            where t.status = 'processing' and t.claimed_by = p_worker and t.id <> all (p_known)
            returning t.id, t.claim_seq
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event)
            select v_now, 'task', r.id, r.claim_seq, 'released' from released r
        )
        select r.id from released r;
    perform notifyq.ring();
end $$;

-- Retention: a finished call has no key to keep, so the row goes. History goes with it.
create or replace function notifyq.purge_tasks(
    p_older interval, p_limit int default 1000, p_now timestamptz default null
) returns int language plpgsql as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_count int;
begin
    with old as (
        select t.id from notifyq.tasks t
        where t.finished_at < v_now - p_older
        order by t.finished_at limit p_limit
        for update skip locked
    ), purged as (
        delete from notifyq.tasks t using old where t.id = old.id returning t.id
    ), forgotten as (
        delete from notifyq.history h using purged p where h.row_id = p.id and h.lane = 'task'
    )
    select count(*) into v_count from purged;
    return v_count;
end $$;

-- ---------------------------------------------------------------- the operator

-- Run it again. Its key may be active again by now: then nothing changes, and the answer is the call
-- that is there already (its id differs from the one asked for).
create or replace function notifyq.retry_task(
    p_id bigint, p_claim_seq bigint default null, p_now timestamptz default null
) returns table (id bigint, status text, changed boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_task   notifyq.tasks;
    v_active bigint;
begin
    select * into v_task from notifyq.tasks t where t.id = p_id for no key update;
    if not found then
        return;
    end if;
    if v_task.status <> 'dead' or coalesce(p_claim_seq <> v_task.claim_seq, false) then
        return query select v_task.id, v_task.status::text, false;
        return;
    end if;
    begin
        update notifyq.tasks t
        set status = 'pending', reason = null, finished_at = null, attempts = 0, run_after = v_now
        where t.id = p_id;
    exception when unique_violation then
        select t.id into v_active from notifyq.tasks t
        where t.name = v_task.name and t.key = v_task.key and t.status in ('pending', 'processing');
        return query select t.id, t.status::text, false from notifyq.tasks t where t.id = coalesce(v_active, p_id);
        return;
    end;
    perform notifyq.note_act('task', p_id, v_task.claim_seq, 'retried', null, v_now);
    perform notifyq.ring();
    return query select p_id, 'pending', true;
end $$;

create or replace function notifyq.cancel_task(
    p_id bigint, p_claim_seq bigint default null, p_now timestamptz default null
) returns table (id bigint, status text, changed boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_task notifyq.tasks;
begin
    select * into v_task from notifyq.tasks t where t.id = p_id for no key update;
    if not found then
        return;
    end if;
    if v_task.status <> 'pending' or coalesce(p_claim_seq <> v_task.claim_seq, false) then
        return query select v_task.id, v_task.status::text, false;
        return;
    end if;
    update notifyq.tasks t set status = 'dead', reason = 'cancelled', finished_at = v_now where t.id = p_id;
    perform notifyq.note_act('task', p_id, v_task.claim_seq, 'cancelled', null, v_now);
    return query select p_id, 'dead', true;
end $$;
