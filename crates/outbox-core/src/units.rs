//! Durations and sizes with units, and lists, as config files write them; for `#[serde(deserialize_with = "…")]` of
//! adapters' configs.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};

const DURATION_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads `500ms`, `5s`, `2m`, `1h`.
///
/// # Errors
/// The deserializer's, when it is no text of a whole number and a unit.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration with its unit, such as \"500ms\", \"5s\", \"2m\" or \"1h\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            let millis = scaled(text, &DURATION_UNITS);
            millis.map(Duration::from_millis).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
        }
    }
    deserializer.deserialize_str(Text)
}

/// Reads `512B`, `64KiB`, `16MiB`, `1GiB`.
///
/// # Errors
/// The deserializer's, when it is no text of a whole number and a unit, or does not fit into memory.
pub fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = usize;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size with its unit, such as \"512B\", \"64KiB\", \"16MiB\" or \"1GiB\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<usize, E> {
            let bytes = scaled(text, &SIZE_UNITS).and_then(|bytes| usize::try_from(bytes).ok());
            bytes.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
        }
    }
    deserializer.deserialize_str(Text)
}

/// A list of texts, or one text with commas.
///
/// # Errors
/// The deserializer's, when it is neither.
pub fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Texts;
    impl<'de> Visitor<'de> for Texts {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of texts, or one text with commas between them")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<String>, E> {
            Ok(split(text))
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
            let mut texts = Vec::new();
            while let Some(text) = list.next_element()? {
                texts.push(text);
            }
            Ok(texts)
        }
    }
    deserializer.deserialize_any(Texts)
}

/// The parts of a text with commas, without the white space around them; a blank text has none. An empty part stays, so
/// that whoever checks the parts can tell of it.
#[must_use]
pub fn split(text: &str) -> Vec<String> {
    if text.trim().is_empty() { Vec::new() } else { text.split(',').map(|part| part.trim().to_owned()).collect() }
}

/// Writes a duration as [`duration`] reads it, in the largest unit that makes a whole number: `0s`, `90s`, `2m`. What is
/// finer than a millisecond is written as `Debug` does.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return format!("{duration:?}");
    }
    let fits = |(_, factor): &&(&str, u64)| millis.is_multiple_of(u128::from(*factor));
    let (unit, factor) = DURATION_UNITS.iter().rev().find(fits).unwrap_or(&DURATION_UNITS[0]);
    if millis == 0 { "0s".to_owned() } else { format!("{}{unit}", millis / u128::from(*factor)) }
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_needs_its_unit() {
        let check = |text: &str, units: &[(&str, u64)], value: Option<u64>| assert_eq!(scaled(text, units), value);
        check("500ms", &DURATION_UNITS, Some(500));
        check("2m", &DURATION_UNITS, Some(120_000));
        check("16MiB", &SIZE_UNITS, Some(16 << 20));
        check("7B", &SIZE_UNITS, Some(7));
        check("5", &DURATION_UNITS, None);
        check("s", &DURATION_UNITS, None);
        check("-5s", &DURATION_UNITS, None);
        check("5 s", &DURATION_UNITS, None);
        check("5S", &DURATION_UNITS, None);
        check("18446744073709551615h", &DURATION_UNITS, None);
    }

    #[test]
    fn durations_are_written_as_they_are_read() {
        for text in ["0s", "1ms", "100ms", "1500ms", "30s", "90s", "2m", "36h", "18446744073709551615ms"] {
            let millis = scaled(text, &DURATION_UNITS).unwrap();
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(format_duration(Duration::from_nanos(1500)), "1.5µs");
    }

    #[test]
    fn an_empty_part_of_a_list_stays() {
        assert_eq!(split("a:1, b:2"), ["a:1", "b:2"]);
        assert_eq!(split("a:1,,b:2"), ["a:1", "", "b:2"]);
        assert_eq!(split("a:1,"), ["a:1", ""]);
        assert_eq!(split(" "), [""; 0]);
    }
}
