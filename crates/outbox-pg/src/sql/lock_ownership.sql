-- Called by: Store::acquire, first in its transaction: only one relay at a time changes who owns what.
-- Index: none (one row). Locks: the row, FOR UPDATE; held for a few statements.
SELECT one_row FROM {schema}.config_in_force FOR UPDATE
