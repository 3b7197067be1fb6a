#![doc = include_str!("docs.md")]
