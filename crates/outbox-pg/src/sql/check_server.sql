-- Caller: check. The server and this session; the role as an identifier. Catalog only.
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('transaction_read_only')::boolean,
       current_setting('synchronous_commit'), current_setting('fsync')::boolean, quote_ident(current_user),
       current_database()::text, current_setting('server_encoding')
