-- The checker's own eyes in a test database: every change of an email's state is written down by a
-- trigger, whoever made it and however. Nothing of the library is used here.

create schema witness;

create table witness.moves (
    number bigint generated always as identity primary key,
    at     timestamptz not null default clock_timestamp(),
    id     bigint not null,
    was    text not null,
    became text not null,
    rose   bigint not null              -- by how much claim_seq grew
);

create function witness.note_move() returns trigger language plpgsql as $$
begin
    insert into witness.moves (id, was, became, rose)
    values (new.id, old.status, new.status, new.claim_seq - old.claim_seq);
    return null;
end $$;

create trigger witnessed after update on notifyq.emails
    for each row when (old.status <> new.status or old.claim_seq <> new.claim_seq)
    execute function witness.note_move();

-- What an application does: its own row and the email in one transaction.
create schema app;

create table app.orders (key text primary key, ordered_at timestamptz not null default clock_timestamp());
