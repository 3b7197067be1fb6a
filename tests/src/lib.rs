//! End-to-end tests of the outbox: relay processes, real servers, faults. The tests are in `it/`; here is what the
//! tests and the benchmark share.
