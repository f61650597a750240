-- The checker's own eyes in a test database: every change of an email's state is written down by a
-- trigger, whoever made it and however. Nothing of the library is used here.

create schema witness;

create table witness.moves (
    number bigint generated always as identity primary key,
    at     timestamptz not null default clock_timestamp(),
    id     bigint not null,
    was    text not null,
    became text not null,
    rose   bigint not null,             -- by how much claim_seq grew
    seq    bigint not null              -- and to what
);

create function witness.note_move() returns trigger language plpgsql as $$
begin
    insert into witness.moves (id, was, became, rose, seq)
    values (new.id, old.status, new.status, new.claim_seq - old.claim_seq, new.claim_seq);
    return null;
end $$;

create trigger witnessed after update on notifyq.emails
    for each row when (old.status <> new.status or old.claim_seq <> new.claim_seq)
    execute function witness.note_move();

-- What an application does: its own row and the email in one transaction.
create schema app;

create table app.orders (key text primary key, ordered_at timestamptz not null default clock_timestamp());

-- And calls that count those orders, each in its own transaction.
create table app.counter (total bigint not null);
insert into app.counter values (0);
create table app.counted (call bigint not null, key text not null);

create table witness.call_moves (like witness.moves including all);

create function witness.note_call_move() returns trigger language plpgsql as $$
begin
    insert into witness.call_moves (id, was, became, rose, seq)
    values (new.id, old.status, new.status, new.claim_seq - old.claim_seq, new.claim_seq);
    return null;
end $$;

create trigger witnessed after update on notifyq.tasks
    for each row when (old.status <> new.status or old.claim_seq <> new.claim_seq)
    execute function witness.note_call_move();
