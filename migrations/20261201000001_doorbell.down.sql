-- Removes the doorbell; relays poll.
DROP TRIGGER IF EXISTS outbox_doorbell ON events;
DROP FUNCTION ring_doorbell();
