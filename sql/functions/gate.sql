-- The gate: the provider's state, shared by the fleet, one row an account.
--
-- open     emails go out; after a recovery at a pace that doubles each second, so that nothing storms
-- closed   until a time; then one due email is a probe, uncharged; its success opens the gate
-- blocked  the account may not send; GET /server is asked, then one email goes first
--
-- The right to probe is a time in this row: a prober that dies loses it with its lease.

-- How many of p_wanted emails may be claimed now. The caller holds no lock on the gate.
-- v_gate.state: 'open' or 'probe'; p_wanted is 0 where nothing may go.
create or replace function notifyq.pass_gate(
    p_account text, p_wanted int, p_now timestamptz,
    out allowed int, out probing boolean, out wake_at timestamptz, out state text, out failures int
) language plpgsql as $$
declare
    v_gate notifyq.gates;
begin
    allowed := p_wanted;
    probing := false;
    state := 'open';
    failures := 0;
    select * into v_gate from notifyq.gates g where g.account = p_account;
    if not found then
        return;
    end if;
    state := v_gate.state;
    failures := v_gate.failures;
    if v_gate.state = 'open' and v_gate.pace is null then
        return;
    end if;

    -- Shut or recovering: one claimer at a time looks at it closely; the others come again.
    select * into v_gate from notifyq.gates g where g.account = p_account for no key update skip locked;
    if not found then
        allowed := 0;
        wake_at := p_now + interval '50 milliseconds';
        return;
    end if;
    state := v_gate.state;
    if v_gate.state = 'open' then
        allowed := least(p_wanted, notifyq.take_pace(p_account, p_wanted, p_now));
        if allowed < p_wanted then
            wake_at := p_now + make_interval(secs => greatest(0.02, 0.5 / greatest(v_gate.pace, 1)));
        end if;
    elsif v_gate.state = 'closed' and v_gate.until <= p_now then
        allowed := least(p_wanted, 1);
        probing := true;
    else
        allowed := 0;
        wake_at := v_gate.until;
    end if;
end $$;

-- Take up to p_wanted tokens of a recovering gate, whose row the caller has locked.
create or replace function notifyq.take_pace(
    p_account text, p_wanted int, p_now timestamptz
) returns int language plpgsql as $$
declare
    v_gate    notifyq.gates;
    v_elapsed double precision;
    v_pace    real;
    v_tokens  real;
    v_taken   int;
begin
    select * into v_gate from notifyq.gates g where g.account = p_account;
    if v_gate.pace is null then
        return p_wanted;
    end if;
    v_elapsed := least(greatest(extract(epoch from p_now - v_gate.paced_at), 0), 1);
    v_pace := v_gate.pace * power(v_gate.growth, v_elapsed);
    -- At most half a second's worth is saved up: what was not used is not a right to a burst.
    v_tokens := least(v_gate.tokens + v_pace * v_elapsed, greatest(v_pace / 2, 1));
    v_taken := least(p_wanted, floor(v_tokens)::int);
    update notifyq.gates g
    set pace = case when v_pace > 1000 then null else v_pace end,
        growth = case when v_pace > 1000 then 2 else g.growth end,
        step = case when v_pace > 1000 then 0 else g.step end,
        tokens = v_tokens - v_taken,
        paced_at = p_now
    where g.account = p_account;
    return v_taken;
end $$;

-- The claimer got its one email: the right to probe is used until its lease ends.
create or replace function notifyq.gate_probing(
    p_account text, p_lease interval, p_now timestamptz
) returns void language plpgsql as $$
begin
    update notifyq.gates g
    set until = p_now + p_lease, probes = g.probes + 1
    where g.account = p_account and g.state = 'closed';
end $$;

-- p_count attempts failed without a word of the provider that it will not, or after one.
-- Ten in a row with no success between close the gate; each failed probe doubles the wait, up to 30 s.
create or replace function notifyq.gate_failed(
    p_account text, p_count int, p_probe boolean, p_reason text, p_now timestamptz default null
) returns text language plpgsql as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_state text;
begin
    insert into notifyq.gates as g (account, failures, changed_at) values (p_account, p_count, v_now)
    on conflict (account) do update set failures = g.failures + p_count;
    update notifyq.gates g
    set state = 'closed',
        reason = p_reason,
        step = case when g.state = 'open' then 0 else g.step + 1 end,
        until = v_now + make_interval(secs => least(30, power(2, case when g.state = 'open' then 0 else least(g.step, 10) + 1 end))),
        changed_at = case when g.state = 'open' then v_now else g.changed_at end
    where g.account = p_account
      and (g.state = 'open' and g.failures >= 10 or g.state = 'closed' and p_probe);
    select g.state into v_state from notifyq.gates g where g.account = p_account;
    return v_state;
end $$;

-- 429: closed until Retry-After (seconds; null where the provider gave none: 1 s, doubling), and half
-- the pace afterwards, growing slowly. Stragglers of one burst halve it once, not once each.
create or replace function notifyq.gate_throttled(
    p_account text, p_retry_after double precision, p_probe boolean, p_reason text,
    p_now timestamptz default null
) returns text language plpgsql as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_gate  notifyq.gates;
    v_first boolean;
    v_until timestamptz;
begin
    insert into notifyq.gates (account, changed_at) values (p_account, v_now) on conflict do nothing;
    select * into v_gate from notifyq.gates g where g.account = p_account for no key update;
    if v_gate.state = 'blocked' then
        return v_gate.state;
    end if;
    v_first := v_gate.state = 'open' or p_probe;
    v_until := v_now + make_interval(secs =>
        least(coalesce(p_retry_after, power(2, least(v_gate.step, 5))), 300));
    update notifyq.gates g
    set state = 'closed',
        reason = p_reason,
        until = case when v_first then v_until else greatest(v_until, g.until) end,
        step = case when v_first then g.step + 1 else g.step end,
        pace = case when v_first then greatest(coalesce(g.pace, 10) / 2, 1) else coalesce(g.pace, 5) end,
        growth = 1.15,
        changed_at = case when g.state = 'open' then v_now else g.changed_at end
    where g.account = p_account;
    return 'closed';
end $$;

-- The account may not send. Looked at again every 30 s.
create or replace function notifyq.gate_blocked(
    p_account text, p_reason text, p_now timestamptz default null
) returns text language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into notifyq.gates as g (account, state, reason, until, changed_at)
    values (p_account, 'blocked', p_reason, v_now + interval '30 seconds', v_now)
    on conflict (account) do update
        set state = 'blocked', reason = p_reason, until = v_now + interval '30 seconds', changed_at = v_now
        where g.state <> 'blocked';
    return 'blocked';
end $$;

-- May I be the one who looks whether a blocked account is mended? One worker in 30 s may.
create or replace function notifyq.gate_look(
    p_account text, p_now timestamptz default null
) returns boolean language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    update notifyq.gates g set until = v_now + interval '30 seconds'
    where g.account = p_account and g.state = 'blocked' and g.until <= v_now;
    return found;
end $$;

-- The account looks mended: half open, one email goes first.
create or replace function notifyq.gate_mended(
    p_account text, p_now timestamptz default null
) returns void language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    update notifyq.gates g set state = 'closed', until = v_now
    where g.account = p_account and g.state = 'blocked';
    perform notifyq.ring();
end $$;

-- The provider took an email. The success of a probe opens a shut gate and pulls forward what the
-- provider had put off; the pace makes that smooth. A success that was under way when the gate closed
-- says less: after failures it only brings the next probe forward, and a Retry-After still holds.
create or replace function notifyq.gate_succeeded(
    p_account text, p_probe boolean, p_now timestamptz default null
) returns boolean language plpgsql as $$
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_gate notifyq.gates;
begin
    select * into v_gate
    from notifyq.gates g
    where g.account = p_account and (g.state <> 'open' or g.failures > 0)
    for no key update;
    if not found then
        return false;
    end if;
    if v_gate.state = 'open' then
        update notifyq.gates g set failures = 0 where g.account = p_account;
        return false;
    end if;
    if not p_probe then
        update notifyq.gates g set until = v_now
        where g.account = p_account and g.state = 'closed' and g.growth = 2 and g.until > v_now;
        perform notifyq.ring();
        return false;
    end if;
    update notifyq.gates g
    set state = 'open', until = null, reason = null, failures = 0, changed_at = v_now,
        step = case when g.growth < 2 then g.step else 0 end,
        pace = coalesce(g.pace, 5),
        tokens = 1,
        paced_at = v_now
    where g.account = p_account;
    update notifyq.emails e
    set run_after = v_now, postponed = false
    where e.postponed and e.finished_at is null and e.lease_until is null and e.run_after > v_now
      and e.account = p_account;
    perform notifyq.ring();
    return true;
end $$;

-- What the provider itself calls this account (it outlives a change of token).
create or replace function notifyq.gate_server(p_account text, p_server text) returns void language plpgsql as $$
begin
    insert into notifyq.gates as g (account, server) values (p_account, p_server)
    on conflict (account) do update set server = p_server where g.server is distinct from p_server;
end $$;

-- A gate that nobody passes: no worker has looked at it for ten minutes, or the workers there are send with
-- other accounts (a token that was changed after it had been refused).
create or replace function notifyq.gate_forsaken(p_account text, p_until timestamptz) returns boolean
language plpgsql stable as $$
begin
    return coalesce(p_until < clock_timestamp() - interval '10 minutes', false) or coalesce((
        select bool_and(coalesce(w.account <> p_account, false)) from notifyq.workers w
        where w.seen_at > clock_timestamp() - interval '150 seconds'), false);
end $$;
