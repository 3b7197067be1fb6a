//! Times on the wire: RFC 3339 in UTC with six digits, as section "wire format" of the docs promises.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes a time as `2026-11-30T17:17:57.000001Z`.
///
/// Total: a year beyond 9999 gets as many digits as it needs and a plus sign, a year before 0 a minus sign, as
/// ISO 8601 has them; PostgreSQL stores years from -4713 to 294276.
#[must_use]
pub fn rfc3339_micros(time: SystemTime) -> String {
    const MICROS_PER_DAY: i128 = 86_400_000_000;
    let micros = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => as_micros(after),
        Err(before) => -as_micros(before.duration()),
    };
    let days = micros.div_euclid(MICROS_PER_DAY);
    let in_day = micros.rem_euclid(MICROS_PER_DAY);
    let (year, month, day) = civil_from_days(days);
    let (seconds, fraction) = (in_day / 1_000_000, in_day % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let year = match year {
        0..=9999 => format!("{year:04}"),
        _ => format!("{year:+05}"),
    };
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

fn as_micros(duration: Duration) -> i128 {
    i128::from(duration.as_secs()) * 1_000_000 + i128::from(duration.subsec_micros())
}

/// The proleptic Gregorian date of a day counted from 1970-01-01. Years are counted from March, so that the leap
/// day is the last day of the year; an era is 400 years of 146 097 days.
const fn civil_from_days(days: i128) -> (i128, i128, i128) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        let check = |micros: i128, text: &str| {
            let offset = Duration::from_micros(u64::try_from(micros.unsigned_abs()).unwrap());
            let time = if micros < 0 { UNIX_EPOCH - offset } else { UNIX_EPOCH + offset };
            assert_eq!(rfc3339_micros(time), text);
        };
        check(0, "1970-01-01T00:00:00.000000Z");
        check(-1, "1969-12-31T23:59:59.999999Z");
        check(951_782_400_000_000, "2000-02-29T00:00:00.000000Z");
        check(1_709_251_199_999_999, "2024-02-29T23:59:59.999999Z");
        check(4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z");
        check(253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z");
        check(253_402_300_800_000_000, "+10000-01-01T00:00:00.000000Z");
        check(9_224_318_015_999_999_999, "+294276-12-31T23:59:59.999999Z");
        check(-210_866_803_200_000_000, "-4713-11-24T00:00:00.000000Z");
    }
}
