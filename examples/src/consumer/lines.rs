//! JSON lines: the standard output of a relay.

use std::io;

use outbox_core::EventId;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

use super::Arrivals;

/// What a consumer of JSON lines needs of a line; the rest is left alone.
#[derive(Deserialize)]
struct Line {
    event_id: EventId,
}

/// Reads the JSON lines of a relay until its output ends.
///
/// # Errors
/// When reading fails.
pub async fn read_lines(output: impl AsyncRead + Unpin, arrivals: Arrivals) -> io::Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).await? > 0 {
        match serde_json::from_slice::<Line>(&line) {
            // Without its line break the last line of a killed relay is no line, even if it can be parsed.
            Ok(event) if line.ends_with(b"\n") => arrivals.add(event.event_id),
            _ => arrivals.add_unreadable(),
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_that_broke_off_is_no_event() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let check = async |text: String, events: usize, unreadable: usize| {
            let arrivals = Arrivals::default();
            read_lines(text.as_bytes(), arrivals.clone()).await.unwrap();
            assert_eq!((arrivals.to_vec().len(), arrivals.unreadable()), (events, unreadable), "{text}");
        };
        let line = format!(r#"{{"event_id":"{id}","payload":1}}"#);
        check(format!("{line}\n{line}\n"), 2, 0).await;
        check(format!("{line}\n{line}"), 1, 1).await;
        check(format!("{line}\n{}\n{line}\n", &line[..20]), 2, 1).await;
        check(String::new(), 0, 0).await;
    }
}
