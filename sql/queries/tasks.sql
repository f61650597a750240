-- What a worker says to the database of tasks alone, beside the verbs in worker.sql.

-- name: adopt_max_attempts
-- Claimed calls that were enqueued without a number: they run as often as their task declares.
update notifyq.tasks t set max_attempts = d.declared
from unnest($1::bigint[], $2::bigint[], $3::int[]) as d (id, claim_seq, declared)
where t.id = d.id and t.claim_seq = d.claim_seq and t.lease_until is not null
