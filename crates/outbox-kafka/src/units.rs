//! Durations and sizes with units, and lists, as the config file writes them.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};

const DURATION_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

pub(crate) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
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

pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
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
pub(crate) fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
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

pub(crate) fn split(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
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
}
