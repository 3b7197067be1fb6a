//! What is wrong with the configuration, and where a value came from.

use std::fmt;

use serde::Serialize;

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Built in.
    Default,
    /// The config file, with the line.
    File(String, usize),
    /// An environment variable.
    Env(String),
    /// `--set`.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{path}:{line}"),
            Self::Env(name) => f.write_str(name),
            Self::Flag => f.write_str("--set"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One thing that is wrong: the key, where it was set, the problem, and what to do. Never holds a secret's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
    pub(crate) problem: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl Problem {
    pub(crate) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), origin: None, problem: problem.into(), remedy: None }
    }

    pub(crate) fn at(mut self, origin: &Origin) -> Self {
        self.origin = (*origin != Origin::Default).then(|| origin.clone());
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds `did you mean …` when there is a name close enough to be meant.
    pub(crate) fn nearest<'a>(self, wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(wrong, known) {
            Some(name) => self.remedy(format!("did you mean `{name}`?")),
            None => self,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if let Some(origin) = &self.origin {
            write!(f, " ({origin})")?;
        }
        write!(f, ": {}", self.problem)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

/// The known name that a wrong one most probably means: at most a third of its letters differ.
pub(crate) fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    let distance = |name: &'a str| (strsim::damerau_levenshtein(&wrong, &name.to_lowercase()), name);
    let (distance, name) = known.into_iter().map(distance).min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= name.len().max(3)).then_some(name)
}
