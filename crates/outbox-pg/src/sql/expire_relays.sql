-- Called by: Store::acquire and Store::take_more, first and by itself. A relay whose lease has ended is dead from the
-- moment its row is gone: its renewal then finds no row. A renewal that is under way is waited for, and its new lease_end is looked at.
-- Index: none (one row for each live relay). Locks: the rows themselves.
DELETE FROM {schema}.relays WHERE lease_end < clock_timestamp()
