-- Called by: Lane::read and Lane::sweep. One snapshot for all statements until COMMIT, told by the last of them.
-- The settings keep a plan from being right only for an empty or unanalysed table: with a million rows pending a
-- bitmap scan and sort costs half a second a batch where the index scan costs a fraction of a millisecond. They are
-- local to the transaction, so a pooler hands on a clean session. The time-outs let the server end what a relay that
-- vanished has left: a snapshot that holds vacuum back.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL enable_sort = off;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_nestloop = off;
SET LOCAL enable_mergejoin = on;
SET LOCAL enable_material = off;
SET LOCAL jit = off;
SET LOCAL statement_timeout = '20s';
SET LOCAL idle_in_transaction_session_timeout = '20s';
SELECT pg_current_snapshot()::text
