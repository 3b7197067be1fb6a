-- Called by: Sampler, before each question. A transaction of its own for each, so that one that is refused or takes too
-- long leaves the others their answers, and a pooler hands on a clean session.
-- Index: none. Locks: none.
BEGIN READ ONLY;
SET LOCAL statement_timeout = '2s'
