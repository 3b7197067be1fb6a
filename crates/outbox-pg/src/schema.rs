//! The name of the schema that holds the outbox: checked once, quoted once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// The longest schema name in bytes: PostgreSQL cuts longer identifiers silently (`NAMEDATALEN` - 1).
pub const MAX_SCHEMA_BYTES: usize = 63;

/// What stands in the SQL files where the quoted schema goes. Never inside a literal or a dollar quote.
const PLACEHOLDER: &str = "{schema}";

/// The name of the schema that holds the outbox's tables. Default `outbox`.
///
/// The name is exact: `My-Schema`, `select`, `a"b` and `ż` are all usable, and upper case stays upper case. It is
/// always quoted, so no name can change the meaning of a statement.
///
/// ```
/// use outbox_pg::SchemaName;
///
/// assert_eq!("My-\"Schema".parse::<SchemaName>()?.quoted(), r#""My-""Schema""#);
/// assert!("a\nb".parse::<SchemaName>().is_err());
/// # Ok::<(), outbox_pg::InvalidSchemaName>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct SchemaName {
    name: String,
    quoted: String,
}

/// Why a text can't name the outbox's schema.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidSchemaName {
    /// Nothing, or only white space.
    #[error("the schema name must not be empty or only white space")]
    Empty,
    /// Longer than [`MAX_SCHEMA_BYTES`].
    #[error("the schema name must be at most {MAX_SCHEMA_BYTES} bytes, got {bytes}")]
    Long {
        /// Its length in bytes of UTF-8.
        bytes: usize,
    },
    /// A control character such as a line break.
    #[error("the schema name must not contain control characters, got {character:?}")]
    Control {
        /// The first one.
        character: char,
    },
    /// PostgreSQL keeps these names for itself.
    #[error("the schema name must not be `information_schema` nor start with `pg_`, got `{name}`")]
    Reserved {
        /// The name.
        name: String,
    },
}

impl SchemaName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidSchemaName`] with the rule that the name breaks.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidSchemaName> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(InvalidSchemaName::Empty);
        }
        if name.len() > MAX_SCHEMA_BYTES {
            return Err(InvalidSchemaName::Long { bytes: name.len() });
        }
        if let Some(character) = name.chars().find(|c| c.is_control()) {
            return Err(InvalidSchemaName::Control { character });
        }
        if name.starts_with("pg_") || name == "information_schema" {
            return Err(InvalidSchemaName::Reserved { name });
        }
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        Ok(Self { name, quoted })
    }

    /// The name as it stands in the catalog.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The name as an identifier in SQL.
    #[must_use]
    pub fn quoted(&self) -> &str {
        &self.quoted
    }

    /// Puts the schema into a statement of `src/sql`.
    ///
    /// One pass over a text of our own: what is put in is not looked at again, and values are bound, never put in. The
    /// comment at the head stays here: it would travel with each call.
    pub(crate) fn sql(&self, template: &str) -> Arc<str> {
        let statement = template.find(|c: char| c != '\n').map_or("", |from| &template[from..]);
        let head: usize = statement.split_inclusive('\n').take_while(|line| line.starts_with("--")).map(str::len).sum();
        statement[head..].replace(PLACEHOLDER, &self.quoted).into()
    }
}

impl Default for SchemaName {
    fn default() -> Self {
        Self { name: "outbox".to_owned(), quoted: "\"outbox\"".to_owned() }
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.quoted)
    }
}

impl FromStr for SchemaName {
    type Err = InvalidSchemaName;

    fn from_str(name: &str) -> Result<Self, InvalidSchemaName> {
        Self::new(name)
    }
}

impl TryFrom<String> for SchemaName {
    type Error = InvalidSchemaName;

    fn try_from(name: String) -> Result<Self, InvalidSchemaName> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_or_refused() {
        let check = |name: &str, quoted: &str| assert_eq!(SchemaName::new(name).unwrap().quoted(), quoted);
        check("outbox", r#""outbox""#);
        check("a\"b", r#""a""b""#);
        check("o'brien", r#""o'brien""#);
        check("x; drop table victim; --", r#""x; drop table victim; --""#);
        check(&"x".repeat(63), &format!("\"{}\"", "x".repeat(63)));
        assert_eq!(SchemaName::default(), SchemaName::new("outbox").unwrap());

        let refuse = |name: &str, error: InvalidSchemaName| assert_eq!(SchemaName::new(name), Err(error));
        refuse("", InvalidSchemaName::Empty);
        refuse(" ", InvalidSchemaName::Empty);
        refuse(&"x".repeat(64), InvalidSchemaName::Long { bytes: 64 });
        refuse(&"ż".repeat(32), InvalidSchemaName::Long { bytes: 64 });
        refuse("a\nb", InvalidSchemaName::Control { character: '\n' });
        refuse("a\0", InvalidSchemaName::Control { character: '\0' });
        refuse("pg_outbox", InvalidSchemaName::Reserved { name: "pg_outbox".into() });
    }

    #[test]
    fn a_placeholder_in_the_name_is_not_expanded() {
        let schema = SchemaName::new("{schema}").unwrap();
        assert_eq!(&*schema.sql("SELECT 1 FROM {schema}.events"), "SELECT 1 FROM \"{schema}\".events");
    }

    /// Inside a literal or a dollar quote the quoted name would be data, and a quote in it the end of the literal.
    #[test]
    fn the_placeholder_stands_only_where_an_identifier_may() {
        let mut seen = 0;
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().map(|line| line.split("--").next().unwrap_or(line)).collect();
            let code = lines.join("\n");
            for (at, _) in code.match_indices(PLACEHOLDER) {
                let (before, after) = (&code[..at], &code[at + PLACEHOLDER.len()..]);
                let tags = before.matches("$roles$").count() + before.matches("$$").count();
                let inside = before.matches('\'').count() % 2 + tags % 2;
                assert!(inside == 0 && !after.starts_with('"'), "{} at byte {at}", path.display());
                seen += 1;
            }
        }
        assert!(seen > 20, "only {seen} placeholders seen: is the directory right?");
    }
    /// A database in another encoding refuses a statement with a character that it lacks, also in a comment.
    #[test]
    fn statements_are_in_ascii() {
        for directory in ["src/sql", "migrations"] {
            for entry in std::fs::read_dir(format!("{}/{directory}", env!("CARGO_MANIFEST_DIR"))).unwrap() {
                let path = entry.unwrap().path();
                assert!(std::fs::read(&path).unwrap().is_ascii(), "{}", path.display());
            }
        }
    }
}
