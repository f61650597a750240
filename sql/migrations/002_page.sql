-- oldest worker: 1
--
-- What the operator's page reads of an email without fetching its body: who it goes to, what it is called.
--
-- Copies, kept by Postgres: they are computed at the insert, empty themselves when retention empties the
-- message, and are not touched by a change of state. Storage "main" keeps them in the row: with
-- toast_tuple_target = 128 they would otherwise be pushed out together with the body.

alter table notifyq.emails
    add column recipient text generated always as (left(lower(message #>> '{to,0,email}'), 320)) stored,
    add column subject text generated always as (left(message ->> 'subject', 200)) stored,
    add column tag text generated always as (left(message ->> 'tag', 100)) stored;
alter table notifyq.emails
    alter column recipient set storage main,
    alter column subject set storage main,
    alter column tag set storage main;

-- "A customer says that nothing came": the one question that must reach back to the first row. Only of
-- rows that have ended, so that an email enters it once (its other versions do not), and the emails under
-- way are found by their own indexes.
create index emails_recipient on notifyq.emails (recipient, id) where finished_at is not null;

-- "What has failed and why": counted and listed on the overview, on each page of the badge. Only failures
-- enter it: a suppression and a cancellation are nobody's fault.
create index emails_to_mend on notifyq.emails (finished_at)
    where status = 'dead' and reason not in ('suppressed', 'cancelled');
