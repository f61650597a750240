-- The way in. Messages travel as text, so that a pool with a JSON codec of its own works too.

-- name: enqueue_email
-- Emails of the Python package: made, they are checked.
select id, created from notifyq.enqueue_email($1, $2::text::jsonb, $3, $4, $5, $6, true)

-- name: enqueue_emails
select id, created from notifyq.enqueue_emails($1, $2, $3, $4, $5, $6, true)

-- name: enqueue_task
select id, created from notifyq.enqueue_task($1, $2::text::jsonb, $3, $4, $5, $6)
