-- Called by: Doorbell, on a session that is proved to be its own. The server ends a session whose relay vanished, and
-- with it the key, within 25 s; and it does not end one that only sleeps.
SET tcp_keepalives_idle = 10;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
SET tcp_user_timeout = '25s';
SET idle_session_timeout = 0;
SET lock_timeout = 0
