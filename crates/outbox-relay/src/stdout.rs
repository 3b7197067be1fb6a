//! The publisher `stdout`: JSON lines, for development and as a pipe. To be written.
/// Writes each event as one JSON line.
#[derive(Debug)]
pub struct StdoutPublisher;
