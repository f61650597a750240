-- An email's life in verbs: enqueue, claim, then one end of the attempt (email_sent, email_dead,
-- email_pending, email_doubt, email_held), and what an operator may do (retry, cancel, resolve).
-- notifyq/lifecycle.py has the table of states that these verbs carry out.
--
-- Every function takes p_now last, for tests that move time; every change of state of a claimed row is
-- fenced by claim_seq, so that a worker which lost its claim changes nothing.

-- ---------------------------------------------------------------- the way in

-- What a database can check of a message. Refuses with the field's name.
create or replace function notifyq.check_email(
    p_key text, p_message jsonb, p_on_doubt text, p_priority int
) returns void language plpgsql as $$
declare
    v_field      text;
    v_address    jsonb;
    v_recipients int := 0;
begin
    if p_key is null or p_key = '' then
        perform notifyq.refuse('key', 'is required: the same key is sent at most once, ever');
    elsif char_length(p_key) > 500 then
        perform notifyq.refuse('key', 'has more than 500 characters');
    elsif p_key ~ E'^\\s*$|[\\x01-\\x1f\\x7f-\\x9f]' then
        perform notifyq.refuse('key', 'must be one line that is not blank');
    end if;
    if p_on_doubt is null or p_on_doubt not in ('ask', 'resend', 'hold') then
        perform notifyq.refuse('on_doubt', 'must be ask, resend or hold');
    end if;
    if p_priority is null then
        perform notifyq.refuse('priority', 'must be a number');
    end if;
    if p_message is null or jsonb_typeof(p_message) <> 'object' then
        perform notifyq.refuse('message', 'must be a JSON object');
    end if;
    if p_message ? 'builder' then
        if jsonb_typeof(p_message -> 'builder') <> 'string' or char_length(p_message ->> 'builder') not between 1 and 200 then
            perform notifyq.refuse('builder', 'must be the name of a builder');
        elsif jsonb_typeof(coalesce(p_message -> 'args', '{}')) <> 'object' then
            perform notifyq.refuse('args', 'must be a JSON object');
        end if;
        return;
    end if;

    select f into v_field from jsonb_object_keys(p_message) f
    where f <> all (array['from', 'to', 'cc', 'bcc', 'reply_to', 'subject', 'html', 'text', 'headers', 'tag',
                          'metadata', 'stream', 'attachments'])
    limit 1;
    if found then
        -- A misspelt field would be a part of the message that silently never goes out.
        perform notifyq.refuse(left(v_field, 60), 'is no field of a message');
    end if;
    foreach v_field in array array['to', 'cc', 'bcc', 'reply_to'] loop
        continue when v_field <> 'to' and coalesce(p_message -> v_field, 'null') = 'null';
        if jsonb_typeof(p_message -> v_field) is distinct from 'array' then
            perform notifyq.refuse(v_field, 'must be a list of {"email", "name"?}');
        end if;
        for v_address in select value from jsonb_array_elements(p_message -> v_field) loop
            perform notifyq.check_address(v_field, v_address);
        end loop;
        if v_field <> 'reply_to' then
            v_recipients := v_recipients + jsonb_array_length(p_message -> v_field);
        end if;
    end loop;
    if jsonb_array_length(p_message -> 'to') = 0 then
        perform notifyq.refuse('to', 'needs at least one recipient');
    elsif v_recipients > 50 then
        perform notifyq.refuse('to', 'has more than 50 recipients together with cc and bcc');
    end if;
    if coalesce(p_message -> 'from', 'null') <> 'null' then
        perform notifyq.check_address('from', p_message -> 'from');
    end if;

    foreach v_field in array array['subject', 'html', 'text', 'tag', 'stream'] loop
        if coalesce(jsonb_typeof(p_message -> v_field), 'null') not in ('null', 'string') then
            perform notifyq.refuse(v_field, 'must be a string');
        end if;
    end loop;
    if p_message ->> 'subject' is null then
        perform notifyq.refuse('subject', 'is required (it may be empty)');
    elsif p_message ->> 'subject' ~ E'[\\x01-\\x1f\\x7f-\\x9f]' then
        perform notifyq.refuse('subject', 'holds a line break or a control character');
    elsif char_length(p_message ->> 'subject') > 2000 then
        perform notifyq.refuse('subject', 'has more than 2,000 characters');
    end if;
    if coalesce(p_message ->> 'html', '') = '' and coalesce(p_message ->> 'text', '') = '' then
        perform notifyq.refuse('text', 'an email needs a text or an html body');
    end if;

    -- Postmark takes 10 MB of JSON, and the worker adds a little. What is small is not written out for it.
    if pg_column_size(p_message) > 8000000 and octet_length(p_message::text) > 10481664 then
        perform notifyq.refuse(case when p_message ? 'attachments' then 'attachments' else 'html' end,
            'makes the message too large: at most 10,481,664 bytes of JSON, with attachments in base64');
    end if;
    if p_message ->> 'tag' ~ E'[\\x01-\\x1f\\x7f-\\x9f]' or char_length(p_message ->> 'tag') > 1000 then
        perform notifyq.refuse('tag', 'must be one line of at most 1,000 characters');
    elsif p_message ->> 'stream' !~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$' then
        perform notifyq.refuse('stream', 'must be a stream''s id: letters, digits, - and _');
    end if;
    if coalesce(p_message -> 'headers', 'null') <> 'null' then
        perform notifyq.check_headers(p_message -> 'headers');
    end if;
    if coalesce(p_message -> 'metadata', 'null') <> 'null' then
        perform notifyq.check_metadata(p_message -> 'metadata');
    end if;
    if coalesce(p_message -> 'attachments', 'null') <> 'null' then
        perform notifyq.check_attachments(p_message -> 'attachments');
    end if;
end $$;

-- An object whose members are texts of one line each.
create or replace function notifyq.check_texts(p_field text, p_texts jsonb) returns void
language plpgsql as $$
begin
    if jsonb_typeof(p_texts) <> 'object' then
        perform notifyq.refuse(p_field, 'must be an object');
    elsif exists (select from jsonb_each(p_texts) t where jsonb_typeof(t.value) <> 'string') then
        perform notifyq.refuse(p_field, 'must hold texts only (a number is written in quotes)');
    elsif exists (select from jsonb_each_text(p_texts) t where t.key || t.value ~ E'[\\x01-\\x1f\\x7f-\\x9f]') then
        perform notifyq.refuse(p_field, 'holds a line break or a control character');
    end if;
end $$;

create or replace function notifyq.check_headers(p_headers jsonb) returns void language plpgsql as $$
begin
    perform notifyq.check_texts('headers', p_headers);
    if exists (
        select from jsonb_object_keys(p_headers) h
        where h !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' or lower(h) like 'x-pm-%' or lower(h) = any (array[
            'from', 'sender', 'to', 'cc', 'bcc', 'reply-to', 'return-path', 'subject', 'date', 'message-id',
            'received', 'content-type', 'content-transfer-encoding', 'mime-version', 'x-original-to'])
    ) then
        perform notifyq.refuse('headers', 'has a name that is none, or that may not be set');
    end if;
end $$;

create or replace function notifyq.check_metadata(p_metadata jsonb) returns void language plpgsql as $$
begin
    perform notifyq.check_texts('metadata', p_metadata);
    if (select count(*) from jsonb_object_keys(p_metadata)) > 8 then
        perform notifyq.refuse('metadata', 'has more than 8 fields (Postmark takes 10, two are ours)');
    elsif exists (
        select from jsonb_each_text(p_metadata) m
        where char_length(m.key) not between 1 and 20 or char_length(m.value) > 80
           or lower(m.key) in ('notifyq', 'notifyq_claim')
    ) then
        perform notifyq.refuse('metadata', 'has a name of 0 or over 20 characters, a value of over 80, or a name of ours');
    end if;
end $$;

create or replace function notifyq.check_attachments(p_attachments jsonb) returns void language plpgsql as $$
begin
    if jsonb_typeof(p_attachments) <> 'array' then
        perform notifyq.refuse('attachments', 'must be a list');
    elsif exists (
        select from jsonb_array_elements(p_attachments) a
        where jsonb_typeof(a) <> 'object'
           or jsonb_typeof(a -> 'name') is distinct from 'string' or a ->> 'name' = ''
           or jsonb_typeof(a -> 'content_type') is distinct from 'string'
           or jsonb_typeof(a -> 'content') is distinct from 'string'
           or coalesce(jsonb_typeof(a -> 'content_id'), 'null') not in ('string', 'null')
           or a - array['name', 'content_type', 'content', 'content_id'] <> '{}'
    ) then
        perform notifyq.refuse('attachments', 'must hold {"name", "content_type", "content" in base64, "content_id"?}');
    elsif exists (
        select from jsonb_array_elements(p_attachments) a
        where a ->> 'name' ~ E'[\\x01-\\x1f\\x7f-\\x9f]' or char_length(a ->> 'name') > 255
           or a ->> 'name' ~* '[.](vbs|exe|bin|bat|chm|com|cpl|crt|hlp|hta|inf|ins|isp|jse|lnk|mdb|pcd|pif|reg|scr|sct|shs|vbe|vba|wsf|wsh|wsl|msc|msi|msp|mst)[. ]*$'
           or a ->> 'content_type' !~ '^[!#$&^_.+A-Za-z0-9-]+/[!#$&^_.+A-Za-z0-9-]+(\s*;[ -~]*)?$'
           or a ->> 'content_id' !~ '^(cid:)?[!-;=?-~]{1,200}$' and a ->> 'content_id' <> ''
    ) then
        perform notifyq.refuse('attachments', 'has a name, a content_type or a content_id that Postmark does not take');
    end if;
    begin
        perform length(decode(a ->> 'content', 'base64')) from jsonb_array_elements(p_attachments) a;
    exception when others then
        perform notifyq.refuse('attachments', 'has a content that is not base64');
    end;
end $$;

create or replace function notifyq.check_address(p_field text, p_address jsonb) returns void
language plpgsql as $$
begin
    if jsonb_typeof(p_address) <> 'object' or jsonb_typeof(p_address -> 'email') is distinct from 'string' then
        perform notifyq.refuse(p_field, 'must hold {"email", "name"?}');
    elsif char_length(p_address ->> 'email') > 254
        or p_address ->> 'email' !~ E'^[A-Za-z0-9!#$%&\'*+/=?^_`{|}~-]{1,64}([.][A-Za-z0-9!#$%&\'*+/=?^_`{|}~-]{1,64})*@[^\\s@<>(),;:"\\[\\]_\\x01-\\x1f\\x7f-\\x9f]+[.][^\\s@<>(),;:.\"_\\x01-\\x1f\\x7f-\\x9f]+$'
        or p_address ->> 'email' ~ '[.][.]|@[.]|[.][0-9]+$' then
        perform notifyq.refuse(p_field, 'holds something that is not one email address');
    elsif coalesce(jsonb_typeof(p_address -> 'name'), 'null') not in ('string', 'null') then
        perform notifyq.refuse(p_field, 'has a name that is no text');
    elsif char_length(p_address ->> 'name') > 255 then
        perform notifyq.refuse(p_field, 'has a name of more than 255 characters');
    elsif p_address - array['email', 'name'] <> '{}' then
        perform notifyq.refuse(p_field, 'must hold {"email", "name"?} and nothing else');
    elsif p_address ->> 'name' ~ E'[\\x01-\\x1f\\x7f-\\x9f]' then
        perform notifyq.refuse(p_field, 'has a name with a line break or a control character');
    end if;
end $$;

-- Enqueue one email. A known key answers the row that exists; nothing is sent twice, nothing is aborted.
-- At READ COMMITTED two transactions racing on a key give one row: the second waits for the first.
-- p_checked: the caller has made the checks of check_email itself (the Python package has, and more).
create or replace function notifyq.enqueue_email(
    p_key text,
    p_message jsonb,
    p_run_after timestamptz default null,
    p_send_before timestamptz default null,
    p_priority int default 0,
    p_on_doubt text default 'ask',
    p_checked boolean default false,
    p_now timestamptz default null
) returns table (id bigint, created boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    if not p_checked then
        perform notifyq.check_email(p_key, p_message, p_on_doubt, p_priority);
        perform notifyq.check_time('run_after', p_run_after);
        perform notifyq.check_time('send_before', p_send_before);
    end if;
    loop
        insert into notifyq.emails (key, message, run_after, send_before, priority, on_doubt, created_at)
        values (p_key, p_message, coalesce(p_run_after, v_now), p_send_before, p_priority, p_on_doubt, v_now)
        on conflict (key) do nothing
        returning emails.id into id;
        created := found;
        if not found then
            select e.id into id from notifyq.emails e where e.key = p_key;
        end if;
        if found then
            return next;
            return;
        end if;
        -- Somebody deleted the row in between: try again.
    end loop;
end $$;

-- Enqueue many in one statement and one notification. Answers in the order of the arrays.
create or replace function notifyq.enqueue_emails(
    p_keys text[],
    p_messages text[],
    p_run_afters timestamptz[],
    p_send_befores timestamptz[],
    p_priorities int[],
    p_on_doubts text[],
    p_checked boolean default false,
    p_now timestamptz default null
) returns table (id bigint, created boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_created bigint[];
begin
    if not p_checked then
        perform notifyq.check_email(n.key, n.message::jsonb, n.on_doubt, n.priority)
        from unnest(p_keys, p_messages, p_on_doubts, p_priorities) as n (key, message, on_doubt, priority);
        perform notifyq.check_time('run_after', n.at) from unnest(p_run_afters) as n (at);
        perform notifyq.check_time('send_before', n.at) from unnest(p_send_befores) as n (at);
    end if;

    with created as (
        insert into notifyq.emails (key, message, run_after, send_before, priority, on_doubt, created_at)
        select n.key, n.message::jsonb, coalesce(n.run_after, v_now), n.send_before, n.priority, n.on_doubt, v_now
        from unnest(p_keys, p_messages, p_run_afters, p_send_befores, p_priorities, p_on_doubts)
            with ordinality as n (key, message, run_after, send_before, priority, on_doubt, ord)
        order by n.ord
        on conflict (key) do nothing
        returning id
    )
    select coalesce(array_agg(c.id order by c.id), '{}') into v_created from created c;
    if cardinality(v_created) = cardinality(p_keys) then
        return query select c.id, true from unnest(v_created) as c (id);
        return;
    end if;

    -- Some keys were there. One that stands twice in the arrays was created by its first place.
    return query
        select e.id, e.id = any (v_created) and row_number() over (partition by n.key order by n.ord) = 1
        from unnest(p_keys) with ordinality as n (key, ord)
        join notifyq.emails e on e.key = n.key
        order by n.ord;
end $$;

-- ---------------------------------------------------------------- the claim

-- Claim up to p_slots due rows, of them up to p_ask_slots doubts to ask about, the rest emails to send.
--
-- p_bulk_slots: at most so many of them are not urgent (priority 0 or more; asks count among these). The
-- rest of the slots is kept for urgent mail, so that slow POSTs of a newsletter hold up no password reset.
--
-- p_since: leave out what was due before that. While somebody holds an old snapshot, the entries of rows
-- that are long sent cannot leave the index, and every claim would walk over them; a worker that finds
-- its claims slow looks at the recent part only, and at everything now and then (notifyq/email_work.py).
--
-- Every row of the answer carries the same first columns (when to come again, the gate); the email's
-- columns are null in the one row of an answer that claimed nothing.
--
-- * The ids are gathered in arrays first: `where id in (select … limit n for update)` may run the
--   inner query again under some plans and claim past its limit.
-- * Priority is exact: lower priorities are looked at only with slots left. Each look is one range of
--   emails_pending, whatever lies in the future or belongs to other builders.
-- * wake_in leaves out what cannot be claimed (gate shut, unknown builder). At or below zero it says
--   that something due was locked by another claim.
create or replace function notifyq.claim_emails(
    p_worker text,
    p_account text,
    p_slots int,
    p_ask_slots int,
    p_builders text[],
    p_lease interval,
    p_bulk_slots int default null,
    p_since timestamptz default null,
    p_now timestamptz default null
) returns table (
    wake_in double precision, clock timestamptz, gate text, gate_failures int, others_at_work boolean,
    id bigint, uid uuid, key text, message text, claim_seq bigint, attempts int, max_attempts int,
    asking boolean, probing boolean, stream text, on_doubt text, expires_in double precision,
    doubt_age double precision, doubt_since timestamptz, misses int, asks int, resent boolean, ordered boolean, waits int,
    account text, waited double precision, urgent boolean
) language plpgsql as $$
#variable_conflict use_column
declare
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_since    timestamptz := coalesce(p_since, '-infinity');
    v_others   boolean;
    v_gate     text;
    v_failures int;
    v_quiet    boolean;
    v_probing  boolean := false;
    v_ids      bigint[] := '{}';
    v_more     bigint[] := '{}';
    v_expired  boolean;
    v_left     int := p_slots;
    v_bulk     int := coalesce(p_bulk_slots, p_slots);
    v_room     int;
    v_priority int;
    v_highest  int;
    v_hops     int := 0;
    v_next     timestamptz;
    v_wake     timestamptz;
    v_early    timestamptz;
begin
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform notifyq.be_durable();
    end if;
    -- Whatever is not the queue itself, in one statement: an email that is due waits for each of them.
    select
        case when p_ask_slots > 0 then (
            -- In doubt, or ordered to be sent by an operator unless it is found: the same question.
            select min(e.run_after) from notifyq.emails e
            where e.status in ('pending', 'doubt') and e.doubt_since is not null
              and (e.account = p_account or e.account = any ((select notifyq.same_accounts(p_account))::text[]))) end,
        -- Not `exists`: a planner that expects many such rows takes any index, and walks the whole queue
        -- when there is none. The claims of the last lease are as many dead entries as were sent in it while
        -- somebody holds an old snapshot, so that a look with p_since does not ask.
        p_since is null and (
            select o.id from notifyq.emails o
            where o.status = 'processing' and o.claimed_by <> p_worker and o.lease_until >= v_now
            order by o.lease_until limit 1) is not null,
        (
            select e.id from notifyq.emails e
            where e.send_before <= v_now and e.finished_at is null and e.lease_until is null and e.doubt_since is null
            order by e.send_before limit 1) is not null,
        coalesce(g.state, 'open'), coalesce(g.failures, 0), coalesce(g.state = 'open' and g.pace is null, true)
    into v_wake, v_others, v_expired, v_gate, v_failures, v_quiet
    from (values (1)) as always left join notifyq.gates g on g.account = p_account;

    if v_wake <= v_now then
        select coalesce(array_agg(due.id), '{}') into v_ids
        from (
            select e.id from notifyq.emails e
            where e.status in ('pending', 'doubt') and e.doubt_since is not null and e.run_after <= v_now
              and (e.account = p_account or e.account = any ((select notifyq.same_accounts(p_account))::text[]))
            order by e.run_after, e.id limit p_ask_slots
            for no key update skip locked
        ) due;
        select min(e.run_after) into v_wake from notifyq.emails e
        where e.status in ('pending', 'doubt') and e.doubt_since is not null and e.id <> all (v_ids)
          and (e.account = p_account or e.account = any ((select notifyq.same_accounts(p_account))::text[]));
        v_left := v_left - cardinality(v_ids);
        v_bulk := v_bulk - cardinality(v_ids);
    end if;
    if not v_quiet then
        select p.allowed, p.probing, p.wake_at, p.state, p.failures
        into v_left, v_probing, v_early, v_gate, v_failures
        from notifyq.pass_gate(p_account, v_left, v_now) p;
        v_wake := least(v_wake, v_early);
    end if;
    v_probing := v_probing and v_left > 0;
    if v_expired and notifyq.expire_emails(v_now) = 1000 then
        -- There may be more. All at once would cost the square of their number.
        v_wake := least(v_wake, v_now + interval '10 milliseconds');
    end if;

    loop
        -- When is more of this priority due, and which is the next one? By hopping over the index; with
        -- p_since by notifyq.kinds, since a hop would walk over the dead entries too.
        select
            (select min(b.run_after)
             from unnest(p_builders) as k (builder) cross join lateral (
                 select e.run_after from notifyq.emails e
                 where e.status = 'pending' and e.builder = k.builder and e.priority = v_priority
                   and e.run_after >= v_since and e.id <> all (v_more) and e.doubt_since is null
                   and (e.send_before is null or e.send_before > v_now)
                 order by e.run_after, e.id limit 1
             ) b),
            case when p_since is null then
                (select min(b.priority)
                 from unnest(p_builders) as k (builder) cross join lateral (
                     select e.priority from notifyq.emails e
                     where e.status = 'pending' and e.builder = k.builder
                       and e.priority > coalesce(v_priority::bigint, -2147483649)
                     order by e.priority limit 1
                 ) b)
            else
                (select min(k.priority) from notifyq.kinds k
                 where k.lane = 'email' and k.name = any (p_builders)
                   and k.priority > coalesce(v_priority::bigint, -2147483649))
            end
        into v_next, v_priority;
        v_wake := least(v_wake, v_next);
        exit when v_priority is null;
        v_room := case when v_priority < 0 then v_left else least(v_left, v_bulk) end;
        exit when v_room <= 0;
        v_hops := v_hops + 1;
        exit when v_hops = 33;
        select coalesce(array_agg(due.id), '{}') into v_more
        from (
            select b.id
            from unnest(p_builders) as k (builder) cross join lateral (
                select e.id, e.run_after from notifyq.emails e
                where e.status = 'pending' and e.builder = k.builder and e.priority = v_priority
                  and e.run_after >= v_since and e.run_after <= v_now and e.doubt_since is null
                  and (e.send_before is null or e.send_before > v_now)
                order by e.run_after, e.id limit v_room
                for no key update skip locked
            ) b
            order by b.run_after, b.id limit v_room
        ) due;
        v_ids := v_ids || v_more;
        v_left := v_left - cardinality(v_more);
        if v_priority >= 0 then
            v_bulk := v_bulk - cardinality(v_more);
        end if;
        exit when cardinality(v_more) = v_room;
    end loop;

    if v_hops = 33 then
        -- Somebody gives each email a priority of its own: the rest in one walk, first the urgent ones, and
        -- again in a while.
        for v_priority, v_highest in
            select r.lowest, r.highest
            from (values (v_priority, -1), (greatest(v_priority, 0), 2147483647)) as r (lowest, highest)
            where r.lowest <= r.highest order by r.lowest
        loop
            v_room := case when v_highest < 0 then v_left else least(v_left, v_bulk) end;
            continue when v_room <= 0;
            select coalesce(array_agg(due.id), '{}') into v_more
            from (
                select e.id from notifyq.emails e
                where e.status = 'pending' and e.builder = any (p_builders)
                  and e.priority between v_priority and v_highest
                  and e.run_after >= v_since and e.run_after <= v_now and e.doubt_since is null
                  and (e.send_before is null or e.send_before > v_now)
                order by e.priority, e.run_after, e.id limit v_room
                for no key update skip locked
            ) due;
            v_ids := v_ids || v_more;
            v_left := v_left - cardinality(v_more);
            if v_highest >= 0 then
                v_bulk := v_bulk - cardinality(v_more);
            end if;
        end loop;
        v_wake := least(v_wake, v_now + interval '5 seconds');
    end if;

    if v_probing then
        if v_left > 0 then
            -- Nothing is due: what the provider itself had put off may try early.
            select coalesce(array_agg(early.id), '{}') into v_more
            from (
                select e.id from notifyq.emails e
                where e.postponed and e.finished_at is null and e.lease_until is null and e.builder = any (p_builders)
                  and e.doubt_since is null
                  and (e.send_before is null or e.send_before > v_now)
                order by e.run_after, e.id limit 1
                for no key update skip locked
            ) early;
            v_ids := v_ids || v_more;
            v_left := v_left - cardinality(v_more);
        end if;
        if v_left = 0 then
            perform notifyq.gate_probing(p_account, p_lease, v_now);
            v_wake := least(v_wake, v_now + p_lease);
        end if;
    end if;

    wake_in := extract(epoch from v_wake - v_now);
    clock := v_now;
    gate := v_gate;
    gate_failures := v_failures;
    others_at_work := v_others;
    if v_ids = '{}' then
        return next;
        return;
    end if;
    return query
        with claimed as (
            update notifyq.emails e
            set status = 'processing',
                claim_seq = e.claim_seq + 1,
                attempts = e.attempts + (e.doubt_since is null)::int,
                account = case when e.doubt_since is null then p_account else e.account end,
                lease_until = v_now + p_lease,
                leased_at = v_now,
                claimed_by = p_worker
            where e.id = any (v_ids)
            returning e.*
        )
        select
            wake_in, v_now, v_gate, v_failures, v_others,
            c.id, c.uid, c.key::text, case when c.doubt_since is null then c.message::text end,
            c.claim_seq, c.attempts::int, c.max_attempts::int,
            c.doubt_since is not null, v_probing and c.doubt_since is null, c.stream, c.on_doubt::text,
            extract(epoch from c.send_before - v_now)::double precision,
            extract(epoch from v_now - c.doubt_since)::double precision, c.doubt_since::timestamptz,
            c.misses::int, c.asks::int, c.resent, c.ordered, c.waits::int, c.account,
            extract(epoch from v_now - greatest(c.run_after, c.created_at))::double precision,
            c.priority < 0 and c.doubt_since is null
        from claimed c
        order by c.priority, c.run_after, c.id;
    if not found then
        return next;
    end if;
end $$;

-- The accounts that a worker of p_account may ask: its own, and those that the provider itself calls
-- the same (a new token for the same server).
create or replace function notifyq.same_accounts(p_account text) returns text[]
language plpgsql stable as $$
begin
    return array[p_account] || array(
        select other.account
        from notifyq.gates mine join notifyq.gates other on other.server = mine.server
        where mine.account = p_account and other.account <> p_account);
end $$;

-- A worker starts, perhaps with the sender or the stream that was missing: rows that waited for it are due.
create or replace function notifyq.hurry_waiting(p_now timestamptz default null) returns int
language plpgsql as $$
declare
    v_count int;
begin
    update notifyq.emails e set run_after = coalesce(p_now, clock_timestamp())
    where e.status = 'pending' and e.waits > 0;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Past send_before: dead, never POSTed late. 1,000 at most a call. A row waits to be sent exactly while it has
-- no end, no lease and no doubt; that is said, and not the status, for the sake of the index (see the tables).
create or replace function notifyq.expire_emails(p_now timestamptz default null) returns int
language plpgsql as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_count int;
begin
    with past as (
        select e.id from notifyq.emails e
        where e.send_before <= v_now and e.finished_at is null and e.lease_until is null and e.doubt_since is null
        order by e.send_before limit 1000
        for no key update skip locked
    ), expired as (
        update notifyq.emails e
        set status = 'dead', reason = 'expired', finished_at = v_now, postponed = false
        from past where e.id = past.id
        returning e.id, e.claim_seq
    ), noted as (
        insert into notifyq.history (at, lane, row_id, claim_seq, event)
        select v_now, 'email', x.id, x.claim_seq, 'expired' from expired x
    )
    select count(*) into v_count from expired;
    return v_count;
end $$;

-- ---------------------------------------------------------------- the ends of an attempt
--
-- A row is being worked on exactly while it has a lease (a constraint of the table). The ends ask for the
-- lease and not for the status, so that the partial index on the status, which fills with dead entries
-- while a snapshot is held, is of no use to them and the primary key is.

-- The provider has it. Also for a worker whose claim is gone: a receipt is evidence, and evidence is
-- never thrown away. Answers for each id: recorded | receipt (kept, though the claim was lost) |
-- duplicate (another message id stands already: sent twice) | known.
create or replace function notifyq.email_sent(
    p_ids bigint[], p_claim_seqs bigint[], p_message_ids text[], p_events text[],
    p_now timestamptz default null
) returns table (id bigint, claim_seq bigint, answer text) language plpgsql as $$
#variable_conflict use_column
declare
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_recorded bigint[];
begin
    perform notifyq.be_durable();
    with recorded as (
        update notifyq.emails e
        set status = 'sent', provider_message_id = d.message_id, sent_at = v_now, finished_at = v_now,
            lease_until = null, leased_at = null, claimed_by = null, postponed = false, waits = 0,
            receipt = null, last_error = null
        from unnest(p_ids, p_claim_seqs, p_message_ids, p_events) with ordinality
            as d (id, claim_seq, message_id, event, ord)
        where e.id = d.id and e.claim_seq = d.claim_seq and e.lease_until is not null and e.receipt is null
        returning e.id, e.claim_seq, d.message_id, d.event, d.ord
    ), noted as (
        insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
        select v_now, 'email', r.id, r.claim_seq, r.event, r.message_id from recorded r
    )
    select coalesce(array_agg(r.ord), '{}') into v_recorded from recorded r;
    -- One after the other: two claims of one row may end in one batch.
    return query
        select d.id, d.claim_seq, case when d.ord = any (v_recorded) then 'recorded'
                          else notifyq.late_receipt(d.id, d.claim_seq, d.message_id, v_now) end
        from unnest(p_ids, p_claim_seqs, p_message_ids) with ordinality as d (id, claim_seq, message_id, ord);
end $$;

-- An acceptance whose claim is gone, or that meets another one.
create or replace function notifyq.late_receipt(
    p_id bigint, p_claim_seq bigint, p_message_id text, p_now timestamptz default null
) returns text language plpgsql as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_email  notifyq.emails;
    v_answer text := 'receipt';
    v_event  text := 'receipt';
begin
    select * into v_email from notifyq.emails e where e.id = p_id for no key update;
    if not found then
        return 'unknown';
    end if;
    if coalesce(v_email.provider_message_id, v_email.receipt) = p_message_id then
        if v_email.status = 'processing' and v_email.claim_seq = p_claim_seq then
            perform notifyq.honour_receipts(array[p_id], array[p_claim_seq], v_now);
        end if;
        return 'known';
    end if;
    if v_email.status = 'sent' or v_email.receipt is not null then
        v_answer := 'duplicate';
        v_event := 'duplicate';
    end if;
    insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
    values (v_now, 'email', p_id, p_claim_seq, v_event, p_message_id);
    if v_email.status = 'sent' then
        return v_answer;
    end if;
    if v_email.status = 'processing' and v_email.claim_seq <> p_claim_seq then
        -- A newer claim is at work: it finds this when it records.
        update notifyq.emails e set receipt = coalesce(e.receipt, p_message_id) where e.id = p_id;
        return v_answer;
    end if;
    update notifyq.emails e
    set status = 'sent', reason = null, provider_message_id = coalesce(e.receipt, p_message_id),
        sent_at = v_now, finished_at = v_now, receipt = null,
        lease_until = null, leased_at = null, claimed_by = null, postponed = false
    where e.id = p_id;
    return v_answer;
end $$;

-- Rows whose older claim was accepted while this one ran end as sent, whatever this one came to.
-- Called first by every other end.
create or replace function notifyq.honour_receipts(
    p_ids bigint[], p_claim_seqs bigint[], p_now timestamptz
) returns void language plpgsql as $$
begin
    perform notifyq.be_durable();
    update notifyq.emails e
    set status = 'sent', provider_message_id = e.receipt, sent_at = p_now, finished_at = p_now,
        receipt = null, lease_until = null, leased_at = null, claimed_by = null, postponed = false
    from unnest(p_ids, p_claim_seqs) as d (id, claim_seq)
    where e.id = d.id and e.claim_seq = d.claim_seq and e.lease_until is not null and e.receipt is not null;
end $$;

-- It will not be sent. p_reasons: rejected, suppressed, exhausted, expired, unrenderable.
create or replace function notifyq.email_dead(
    p_ids bigint[], p_claim_seqs bigint[], p_reasons text[], p_errors text[], p_events text[],
    p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.honour_receipts(p_ids, p_claim_seqs, v_now);
    return query
        with recorded as (
            update notifyq.emails e
            set status = 'dead', reason = d.reason, last_error = left(d.error, 1000), finished_at = v_now,
                lease_until = null, leased_at = null, claimed_by = null, postponed = false
            from unnest(p_ids, p_claim_seqs, p_reasons, p_errors, p_events)
                as d (id, claim_seq, reason, error, event)
            where e.id = d.id and e.claim_seq = d.claim_seq and e.lease_until is not null
            returning e.id, e.claim_seq, d.event, d.error
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
            select v_now, 'email', r.id, r.claim_seq, r.event, left(r.error, 1000) from recorded r
        )
        select r.id from recorded r;
end $$;

-- Not sent, for certain: pending again in p_delays seconds. Not charged: the attempt is given back.
-- p_postponed: the provider put it off, so its return pulls the row forward. p_waiting: its own
-- sender or stream is not set up. p_resending: this spends its one blind "send again".
create or replace function notifyq.email_pending(
    p_ids bigint[], p_claim_seqs bigint[], p_delays double precision[], p_charged boolean[],
    p_postponed boolean[], p_waiting boolean[], p_resending boolean[], p_errors text[], p_events text[],
    p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.honour_receipts(p_ids, p_claim_seqs, v_now);
    return query
        with recorded as (
            update notifyq.emails e
            set status = 'pending',
                run_after = v_now + make_interval(secs => d.delay),
                -- An ask is not an attempt, so there is none to give back.
                attempts = e.attempts - (not d.charged and e.doubt_since is null)::int,
                postponed = d.postponed,
                waits = case when d.waiting then least(e.waits + 1, 100) else 0 end,
                resent = e.resent or d.resending,
                doubt_since = null, misses = 0, asks = 0, ordered = false,
                last_error = coalesce(left(d.error, 1000), e.last_error),
                lease_until = null, leased_at = null, claimed_by = null
            from unnest(p_ids, p_claim_seqs, p_delays, p_charged, p_postponed, p_waiting, p_resending, p_errors, p_events)
                as d (id, claim_seq, delay, charged, postponed, waiting, resending, error, event)
            where e.id = d.id and e.claim_seq = d.claim_seq and e.lease_until is not null
            returning e.id, e.claim_seq, d.delay, d.event, d.error
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
            select v_now, 'email', r.id, r.claim_seq, r.event, left(r.error, 1000) from recorded r
        )
        select r.id from recorded r;
    -- Every worker looks at least each 30 s; what is due sooner has to be told.
    perform notifyq.ring() where exists (select from unnest(p_delays) d (delay) where d.delay < 30);
end $$;

-- It may have been accepted. p_fresh: the doubt begins now (a POST just ended), and settle runs from
-- now on; otherwise an ask came to nothing and settle is not restarted.
create or replace function notifyq.email_doubt(
    p_ids bigint[], p_claim_seqs bigint[], p_delays double precision[], p_charged boolean[], p_fresh boolean[],
    p_misses int[], p_asks int[], p_errors text[], p_events text[],
    p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.honour_receipts(p_ids, p_claim_seqs, v_now);
    return query
        with recorded as (
            update notifyq.emails e
            set status = 'doubt',
                run_after = v_now + make_interval(secs => d.delay),
                attempts = e.attempts - (not d.charged and e.doubt_since is null)::int,
                doubt_since = case when d.fresh then v_now else e.doubt_since end,
                misses = d.misses, asks = d.asks, postponed = false,
                last_error = coalesce(left(d.error, 1000), e.last_error),
                lease_until = null, leased_at = null, claimed_by = null
            from unnest(p_ids, p_claim_seqs, p_delays, p_charged, p_fresh, p_misses, p_asks, p_errors, p_events)
                as d (id, claim_seq, delay, charged, fresh, misses, asks, error, event)
            where e.id = d.id and e.claim_seq = d.claim_seq and e.lease_until is not null
            returning e.id, e.claim_seq, d.event, d.error
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
            select v_now, 'email', r.id, r.claim_seq, r.event, left(r.error, 1000) from recorded r
        )
        select r.id from recorded r;
    -- Every worker looks at least each 30 s; what is due sooner has to be told.
    perform notifyq.ring() where exists (select from unnest(p_delays) d (delay) where d.delay < 30);
end $$;

-- A person decides. The evidence stays in the row and in the history.
create or replace function notifyq.email_held(
    p_ids bigint[], p_claim_seqs bigint[], p_errors text[], p_events text[],
    p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.honour_receipts(p_ids, p_claim_seqs, v_now);
    return query
        with recorded as (
            update notifyq.emails e
            set status = 'held', last_error = coalesce(left(d.error, 1000), e.last_error),
                lease_until = null, leased_at = null, claimed_by = null
            from unnest(p_ids, p_claim_seqs, p_errors, p_events) as d (id, claim_seq, error, event)
            where e.id = d.id and e.claim_seq = d.claim_seq and e.lease_until is not null
            returning e.id, e.claim_seq, d.event, d.error
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
            select v_now, 'email', r.id, r.claim_seq, r.event, left(r.error, 1000) from recorded r
        )
        select r.id from recorded r;
end $$;

-- The provider shows more than one message of one row: it was sent twice. Kept by name, told loudly.
create or replace function notifyq.note_copies(
    p_id bigint, p_message_ids text[], p_now timestamptz default null
) returns int language plpgsql as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_count int;
begin
    insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
    select v_now, 'email', e.id, e.claim_seq, 'duplicate', m.message_id
    from notifyq.emails e cross join unnest(p_message_ids) as m (message_id)
    where e.id = p_id and m.message_id is distinct from e.provider_message_id
      and not exists (
          select from notifyq.history h
          where h.row_id = p_id and h.lane = 'email' and h.event = 'duplicate' and h.detail = m.message_id);
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- ---------------------------------------------------------------- leases

-- A lease ran out, as its observer's own clock judged: the very lease that it saw (id, claim_seq,
-- lease_until), in one fenced statement. A send may have been accepted, so the row is in doubt from now
-- on; an ask goes on being in doubt as before.
create or replace function notifyq.email_leases_ended(
    p_ids bigint[], p_claim_seqs bigint[], p_leases timestamptz[], p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.honour_receipts(p_ids, p_claim_seqs, v_now);
    return query
        with recorded as (
            update notifyq.emails e
            set status = 'doubt', run_after = v_now,
                doubt_since = coalesce(e.doubt_since, v_now), postponed = false,
                last_error = 'the worker was lost while it worked on this email',
                lease_until = null, leased_at = null, claimed_by = null
            from unnest(p_ids, p_claim_seqs, p_leases) as d (id, claim_seq, lease)
            where e.id = d.id and e.claim_seq = d.claim_seq and e.lease_until = d.lease
            returning e.id, e.claim_seq
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event)
            select v_now, 'email', r.id, r.claim_seq, 'lease ended' from recorded r
        )
        select r.id from recorded r;
    perform notifyq.ring();
end $$;

-- Claims of this very process that it never heard of (the answer to the claim was lost): nothing was
-- sent under them, so they go back as they were.
create or replace function notifyq.release_lost_emails(
    p_worker text, p_known bigint[], p_now timestamptz default null
) returns setof bigint language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    perform notifyq.be_durable();
    return query
        with released as (
            update notifyq.emails e
            set status = case when e.doubt_since is null then 'pending' else 'doubt' end,
                run_after = v_now,
                attempts = e.attempts - (e.doubt_since is null)::int,
                lease_until = null, leased_at = null, claimed_by = null
            where e.status = 'processing' and e.claimed_by = p_worker and e.id <> all (p_known)
              and e.receipt is null
            returning e.id, e.claim_seq
        ), noted as (
            insert into notifyq.history (at, lane, row_id, claim_seq, event)
            select v_now, 'email', r.id, r.claim_seq, 'released' from released r
        )
        select r.id from released r;
    perform notifyq.ring();
end $$;

-- Doubts that nobody can ask about: recorded on an account that no worker has, or older than the
-- provider remembers. A person decides.
create or replace function notifyq.hold_unaskable(
    p_account text, p_grace interval, p_oldest interval, p_now timestamptz default null
) returns int language plpgsql as $$
declare
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_accounts text[];
    v_count    int;
begin
    v_accounts := notifyq.same_accounts(p_account);
    with unaskable as (
        select e.id, e.account <> all (v_accounts) as foreign_account from notifyq.emails e
        -- 'pending' and in doubt: ordered by an operator, to be asked about first; by nobody here either.
        where e.status in ('pending', 'doubt') and e.doubt_since is not null
          and (e.status = 'doubt' and e.doubt_since < v_now - p_oldest
               or e.account <> all (v_accounts) and e.run_after < v_now - p_grace
                  and not exists (
                      select from notifyq.workers w
                      where w.account = e.account and w.seen_at > v_now - interval '3 minutes'))
        order by e.run_after limit 1000
        for no key update skip locked
    ), recorded as (
        update notifyq.emails e
        set status = 'held', ordered = false,
            last_error = case when u.foreign_account
                then 'it may have been sent with another provider account, which no worker here can ask'
                else 'it may have been sent, so long ago that the provider no longer knows' end
        from unaskable u where e.id = u.id
        returning e.id, e.claim_seq, e.last_error
    ), noted as (
        insert into notifyq.history (at, lane, row_id, claim_seq, event, detail)
        select v_now, 'email', r.id, r.claim_seq, 'held', r.last_error from recorded r
    )
    select count(*) into v_count from recorded;
    return v_count;
end $$;

-- Retention: the body goes, the row and its key stay (the key is used at most once, ever). The chore
-- remembers how far it came, so that what is purged already is never looked at again.
create or replace function notifyq.purge_emails(
    p_older interval, p_limit int default 1000, p_now timestamptz default null
) returns int language plpgsql as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_from  timestamptz;
    v_upto  timestamptz;
    v_count int;
begin
    insert into notifyq.chores (name, last_at) values ('purge emails', v_now) on conflict do nothing;
    select coalesce(c.detail::timestamptz, '-infinity') into v_from
    from notifyq.chores c where c.name = 'purge emails' for update skip locked;
    if not found then
        return 0;
    end if;
    with old as (
        select e.id, e.finished_at from notifyq.emails e
        where e.finished_at >= v_from and e.finished_at < v_now - p_older and e.message is not null
        order by e.finished_at limit p_limit
        for no key update
    ), purged as (
        update notifyq.emails e set message = null from old where e.id = old.id returning old.finished_at
    )
    select count(*), max(p.finished_at) into v_count, v_upto from purged p;
    update notifyq.chores c
    set last_at = v_now, detail = case when v_count < p_limit then v_now - p_older else v_upto end::text
    where c.name = 'purge emails';
    return v_count;
end $$;

-- What any worker does for all, once a minute: expiry, doubts that nobody can ask about, retention.
create or replace function notifyq.sweep_emails(
    p_account text, p_grace interval, p_oldest_doubt interval, p_retention interval,
    p_now timestamptz default null
) returns table (expired int, held int, purged int) language plpgsql as $$
begin
    expired := notifyq.expire_emails(p_now);
    held := notifyq.hold_unaskable(p_account, p_grace, p_oldest_doubt, p_now);
    purged := case when p_retention is null then 0 else notifyq.purge_emails(p_retention, 1000, p_now) end;
    return next;
end $$;

-- ---------------------------------------------------------------- the operator

-- Send it after all. A row that was in doubt is asked about once more first (misses starts at 1, so
-- that one conclusive "not there" is enough), and then goes whatever its policy says: a person decided.
create or replace function notifyq.retry_email(
    p_id bigint, p_claim_seq bigint default null, p_now timestamptz default null
) returns table (id bigint, status text, changed boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_email   notifyq.emails;
    v_changed boolean := false;
begin
    select * into v_email from notifyq.emails e where e.id = p_id for no key update;
    if not found then
        return;
    end if;
    if v_email.status in ('held', 'dead') and v_email.message is not null
       and coalesce(p_claim_seq = v_email.claim_seq, true) then
        update notifyq.emails e
        set status = 'pending', reason = null, finished_at = null, attempts = 0, run_after = v_now,
            send_before = case when e.send_before > v_now then e.send_before end,
            misses = (e.doubt_since is not null)::int, asks = 0,
            ordered = e.doubt_since is not null, waits = 0, postponed = false
        where e.id = p_id;
        v_changed := true;
        perform notifyq.note_act('email', p_id, v_email.claim_seq, 'retried', null, v_now);
        perform notifyq.ring();
    end if;
    return query select e.id, e.status::text, v_changed from notifyq.emails e where e.id = p_id;
end $$;

-- Do not send it. A row in doubt may have been sent: from now on a person decides (policy hold).
create or replace function notifyq.cancel_email(
    p_id bigint, p_claim_seq bigint default null, p_now timestamptz default null
) returns table (id bigint, status text, changed boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_email   notifyq.emails;
    v_changed boolean := false;
begin
    select * into v_email from notifyq.emails e where e.id = p_id for no key update;
    if not found then
        return;
    end if;
    if coalesce(p_claim_seq = v_email.claim_seq, true) then
        if v_email.status in ('pending', 'held') then
            update notifyq.emails e
            set status = 'dead', reason = 'cancelled', finished_at = v_now, postponed = false
            where e.id = p_id;
            v_changed := true;
        elsif v_email.status = 'doubt' and (v_email.on_doubt <> 'hold' or v_email.ordered) then
            update notifyq.emails e set on_doubt = 'hold', ordered = false where e.id = p_id;
            v_changed := true;
        end if;
    end if;
    if v_changed then
        perform notifyq.note_act('email', p_id, v_email.claim_seq, 'cancelled', null, v_now);
    end if;
    return query select e.id, e.status::text, v_changed from notifyq.emails e where e.id = p_id;
end $$;

-- "It was sent": the operator has the provider's message id.
create or replace function notifyq.resolve_email(
    p_id bigint, p_provider_message_id text, p_claim_seq bigint default null, p_now timestamptz default null
) returns table (id bigint, status text, changed boolean) language plpgsql as $$
#variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_email   notifyq.emails;
    v_changed boolean := false;
begin
    if coalesce(btrim(p_provider_message_id), '') = '' then
        perform notifyq.refuse('provider_message_id', 'is required: the proof that it was sent');
    end if;
    select * into v_email from notifyq.emails e where e.id = p_id for no key update;
    if not found then
        return;
    end if;
    if v_email.status = 'held' and coalesce(p_claim_seq = v_email.claim_seq, true) then
        update notifyq.emails e
        set status = 'sent', provider_message_id = btrim(p_provider_message_id), sent_at = v_now, finished_at = v_now
        where e.id = p_id;
        v_changed := true;
        perform notifyq.note_act('email', p_id, v_email.claim_seq, 'resolved', btrim(p_provider_message_id), v_now);
    end if;
    return query select e.id, e.status::text, v_changed from notifyq.emails e where e.id = p_id;
end $$;
