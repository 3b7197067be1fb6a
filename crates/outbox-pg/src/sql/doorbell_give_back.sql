-- Called by: Doorbell, when it was rung or has found work. $1 key, $2 channel. First the unlock, which takes effect at
-- once, then the notification of the relays that slept under this key, sent with the commit: the other way round one of
-- them could look, see the key still held, and sleep on.
SELECT pg_advisory_unlock($1), pg_notify($2, '')
