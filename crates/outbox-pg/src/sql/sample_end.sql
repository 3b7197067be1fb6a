-- Called by: Sampler, after each question, whether it was answered or refused.
-- Index: none. Locks: none.
ROLLBACK
