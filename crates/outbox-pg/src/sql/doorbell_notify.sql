-- Called by: Doorbell, to prove that notifications reach its listening session. $1 a channel of that session alone.
SELECT pg_notify($1, '')
