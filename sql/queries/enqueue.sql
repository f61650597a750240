-- The way in. Messages travel as text, so that a pool with a JSON codec of its own works too.

-- name: insert_email
-- An email of the Python package: made, it is checked. What nearly every call needs, and no function around
-- it; $1 is made by the caller, since Postgres' own random bytes cost a lone email 0.05 ms. No row: the key is known.
-- Each parameter is of a built-in type: for a domain, a driver asks the server what it is, on every new connection.
insert into notifyq.emails (uid, key, message, run_after, send_before, priority, on_doubt)
values ($1::text::uuid, $2::text, $3::text::jsonb, coalesce($4::timestamptz, clock_timestamp()),
        $5::timestamptz, $6::int, $7::text)
on conflict (key) do nothing
returning id

-- name: enqueue_email
-- The same for a key that is known, as far as another transaction does not delete it just now.
select id, created from notifyq.enqueue_email($1, $2::text::jsonb, $3, $4, $5, $6, true)

-- name: enqueue_emails
select id, created from notifyq.enqueue_emails($1, $2, $3, $4, $5, $6, true)

-- name: enqueue_task
select id, created from notifyq.enqueue_task($1, $2::text::jsonb, $3, $4, $5, $6)
