//! Durations and sizes as people write them: a whole number and a unit, never a bare number.

use std::time::Duration;

pub(crate) use outbox_core::units::format_duration;

const DURATION_UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Reads `50ms`, `2s`, `5m`, `1h`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    parse(text, DURATION_UNITS, "50ms").map(Duration::from_millis)
}

/// Reads `512B`, `64KiB`, `16MiB`, `1GiB` and the decimal units `KB`, `MB`, `GB`.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = parse(text, SIZE_UNITS, "64MiB")?;
    usize::try_from(bytes).map_err(|_| "is too large".to_owned())
}

/// Writes a size so that [`parse_size`] reads it back.
pub(crate) fn format_size(bytes: usize) -> String {
    let bytes = bytes as u64;
    let binary = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1_u64)];
    let (unit, factor) =
        binary.into_iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor)).unwrap_or(("B", 1));
    format!("{}{unit}", bytes / factor)
}

fn parse(text: &str, units: &[(&str, u64)], example: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_').len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let names = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    if number.is_empty() {
        return Err(format!("`{text}` is not a whole number with a unit; write for example `{example}`"));
    }
    if unit.is_empty() {
        return Err(format!("`{text}` has no unit; use one of {}, for example `{example}`", names()));
    }
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("`{text}` has an unknown unit; use a whole number and one of {}", names()));
    };
    let number: Option<u64> = number.replace('_', "").parse().ok();
    number.and_then(|number| number.checked_mul(*factor)).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let check = |text: &str, millis: u64| assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
        check("50ms", 50);
        check("0s", 0);
        check(" 2 s ", 2000);
        check("5m", 300_000);
        check("1_0h", 36_000_000);
        check("7d", 604_800_000);
    }

    #[test]
    fn sizes() {
        let check = |text: &str, bytes: usize| assert_eq!(parse_size(text), Ok(bytes));
        check("1B", 1);
        check("64MiB", 64 << 20);
        check("64MB", 64_000_000);
        check("1 GiB", 1 << 30);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let check = |result: Result<String, String>, part: &str| {
            let error = result.unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        let duration = |text: &str| parse_duration(text).map(format_duration);
        check(duration("50"), "`50` has no unit; use one of ms, s, m, h, d, for example `50ms`");
        check(duration(""), "not a whole number");
        check(duration("-5s"), "not a whole number");
        check(duration("1.5s"), "unknown unit");
        check(duration("5 minutes"), "unknown unit");
        check(duration("99999999999999999999s"), "too large");
        check(parse_size("64").map(format_size), "no unit");
        check(parse_size("64mib").map(format_size), "unknown unit");
    }

    #[test]
    fn what_is_written_reads_back() {
        for millis in [0, 1, 50, 1000, 1500, 60_000, 3_600_000, 86_400_000, 90_000_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for bytes in [0, 1, 1023, 1024, 64 << 20, (1 << 30) + 1] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_duration(Duration::from_secs(300)), "5m");
        assert_eq!(format_size(64 << 20), "64MiB");
    }
}
