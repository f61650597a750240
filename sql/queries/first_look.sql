-- The first look: the bell has rung, and an email waits for this answer; or there is a backlog, which fills
-- every slot. One statement takes what is due at the foremost priority and looks at nothing else; its caller
-- comes again at once and claims in full (notifyq.claim_emails; of five claims of a backlog one). It is no
-- function, since that would cost a rung email 0.1 ms: a second plan is set up, and the rows are gathered
-- before any is answered.
--
-- $1 worker, $2 account, $3 slots, $5 lease, $6 the time (null: now). It answers the email's columns of a
-- claim. Not through a gate that is shut or recovering, and not what is in doubt: that needs the whole claim.
-- As every claim it is durable whatever the role's setting says (notifyq.be_durable).
--
-- The UPDATE itself asks for no status, which the rows, locked, have: it would have them sought in emails_pending.

-- name: first_look
-- A worker without builders has one queue, $4 (''), and its plan has half the steps.
update notifyq.emails e
set status = 'processing',
    claim_seq = e.claim_seq + 1,
    attempts = e.attempts + 1,
    account = $2,
    lease_until = coalesce($6::timestamptz, now()) + $5::interval,
    leased_at = coalesce($6::timestamptz, now()),
    claimed_by = $1
where e.id = any (array(
    select w.id from notifyq.emails w
    where w.status = 'pending' and w.builder = $4
      and w.priority = (
          select f.priority from notifyq.emails f
          where f.status = 'pending' and f.builder = $4
          order by f.priority limit 1)
      and w.run_after <= coalesce($6::timestamptz, now()) and w.doubt_since is null
      and (w.send_before is null or w.send_before > coalesce($6::timestamptz, now()))
      and not exists (
          select from notifyq.gates g where g.account = $2 and (g.state <> 'open' or g.pace is not null))
      and (select case when current_setting('synchronous_commit') in ('off', 'local')
                       then set_config('synchronous_commit', 'on', true) end) is distinct from 'off'
    order by w.run_after, w.id limit $3
    for no key update skip locked))
returning
    e.id, e.uid, e.key::text, e.message::text, e.claim_seq, e.attempts::int, e.max_attempts::int,
    false as asking, false as probing, e.stream, e.on_doubt::text,
    extract(epoch from e.send_before - coalesce($6::timestamptz, now()))::double precision as expires_in,
    null::double precision as doubt_age, null::timestamptz as doubt_since,
    e.misses::int, e.asks::int, e.resent, e.ordered, e.waits::int, e.account,
    extract(epoch from coalesce($6::timestamptz, now()) - greatest(e.run_after, e.created_at))::double precision
        as waited,
    e.priority < 0 as urgent

-- name: first_look_of_several
-- $4: the names of all that it serves, '' among them.
update notifyq.emails e
set status = 'processing',
    claim_seq = e.claim_seq + 1,
    attempts = e.attempts + 1,
    account = $2,
    lease_until = coalesce($6::timestamptz, now()) + $5::interval,
    leased_at = coalesce($6::timestamptz, now()),
    claimed_by = $1
where e.id = any (array(
    select due.id
    from unnest($4::text[]) as k (builder) cross join lateral (
        select w.id, w.run_after from notifyq.emails w
        where w.status = 'pending' and w.builder = k.builder
          and w.priority = (
              select min(f.priority)
              from unnest($4::text[]) as n (builder) cross join lateral (
                  select u.priority from notifyq.emails u
                  where u.status = 'pending' and u.builder = n.builder
                  order by u.priority limit 1
              ) f)
          and w.run_after <= coalesce($6::timestamptz, now()) and w.doubt_since is null
          and (w.send_before is null or w.send_before > coalesce($6::timestamptz, now()))
        order by w.run_after, w.id limit $3
        for no key update skip locked
    ) due
    where not exists (
        select from notifyq.gates g where g.account = $2 and (g.state <> 'open' or g.pace is not null))
      and (select case when current_setting('synchronous_commit') in ('off', 'local')
                       then set_config('synchronous_commit', 'on', true) end) is distinct from 'off'
    order by due.run_after, due.id
    limit $3))
returning
    e.id, e.uid, e.key::text, e.message::text, e.claim_seq, e.attempts::int, e.max_attempts::int,
    false as asking, false as probing, e.stream, e.on_doubt::text,
    extract(epoch from e.send_before - coalesce($6::timestamptz, now()))::double precision as expires_in,
    null::double precision as doubt_age, null::timestamptz as doubt_since,
    e.misses::int, e.asks::int, e.resent, e.ordered, e.waits::int, e.account,
    extract(epoch from coalesce($6::timestamptz, now()) - greatest(e.run_after, e.created_at))::double precision
        as waited,
    e.priority < 0 as urgent
