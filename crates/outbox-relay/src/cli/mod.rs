//! The command line. To be written.
