//! The text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::families::Family;
use super::histogram::{BOUNDS_MS, Snapshot};

#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn into_string(self) -> String {
        self.0
    }

    /// Begins a family; its samples come next.
    pub(super) fn family(&mut self, family: &Family) {
        let Family { name, kind, help, .. } = family;
        let kind = kind.as_str();
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub(super) fn count(&mut self, family: &Family, labels: &[&str], count: u64) {
        self.sample(family.name, family.labels.iter().copied().zip(labels.iter().copied()), count);
    }

    pub(super) fn value(&mut self, family: &Family, labels: &[&str], value: f64) {
        self.sample(family.name, family.labels.iter().copied().zip(labels.iter().copied()), value);
    }

    /// A family of one sample; without a value nothing of it is shown.
    pub(super) fn one(&mut self, family: &Family, route: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.family(family);
            self.value(family, &[route], value);
        }
    }

    pub(super) fn histogram(&mut self, family: &Family, route: &str, snapshot: &Snapshot) {
        let name = family.name;
        let bucket = format!("{name}_bucket");
        let bounds = BOUNDS_MS.iter().map(|millis| seconds(*millis)).chain(["+Inf".to_owned()]);
        let mut below = 0;
        for (bound, count) in bounds.zip(&snapshot.counts) {
            below += count;
            self.sample(&bucket, [("route", route), ("le", bound.as_str())].into_iter(), below);
        }
        self.sample(&format!("{name}_sum"), [("route", route)].into_iter(), snapshot.sum.as_secs_f64());
        self.sample(&format!("{name}_count"), [("route", route)].into_iter(), snapshot.count());
    }

    fn sample<'a>(&mut self, name: &str, labels: impl Iterator<Item = (&'a str, &'a str)>, value: impl Display) {
        self.0.push_str(name);
        let mut before = '{';
        for (label, value) in labels {
            self.0.push(before);
            self.0.push_str(label);
            self.0.push_str("=\"");
            escape(value, &mut self.0);
            self.0.push('"');
            before = ',';
        }
        if before == ',' {
            self.0.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{line}"); // writing to a String can't fail
    }
}

fn seconds(millis: u64) -> String {
    std::time::Duration::from_millis(millis).as_secs_f64().to_string()
}

fn escape(value: &str, text: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}
