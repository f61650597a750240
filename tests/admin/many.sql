-- $1 emails of the last day and more: nearly all sent, some dead, the newest 2,000 still pending. With history.
with made as (
    insert into notifyq.emails (key, message, status, reason, attempts, claim_seq, account, run_after, created_at,
        finished_at, sent_at, provider_message_id, last_error)
    select 'order:' || n,
           jsonb_build_object(
               'to', jsonb_build_array(jsonb_build_object('email', 'user' || n % 200000 || '@example.com')),
               'subject', 'Your order ' || n,
               'text', 'Thank you.',
               'tag', (array['order', 'reset', 'invoice'])[n % 3 + 1]),
           s.status,
           case when s.status = 'dead' then (array['rejected', 'exhausted', 'suppressed'])[n % 3 + 1] end,
           1, 1, 'postmark:x', a.at, a.at,
           case when s.status in ('sent', 'dead') then a.at + interval '50 ms' end,
           case when s.status = 'sent' then a.at + interval '50 ms' end,
           case when s.status = 'sent' then 'm' || n end,
           case when s.status = 'dead' then 'HTTP 422' end
    from generate_series(1, $1::int) n
    cross join lateral (
        select case when n > $1 - 2000 then 'pending' when n % 50 = 0 then 'dead' else 'sent' end as status) s
    cross join lateral (select now() - ($1 - n) * interval '80 ms' as at) a
    returning id, finished_at, provider_message_id
)
insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
select m.finished_at, 'email', m.id, 1, 'accepted', m.provider_message_id from made m where m.finished_at is not null
