//! Who we are: a password, a token or a credentials file. Files are read at each connect, so that what was renewed is
//! taken up without a restart.

use std::fmt;
use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;

/// How the publisher authenticates.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    /// Without anything; a client certificate may still say who we are.
    Anonymous,
    Password {
        user: String,
        password: String,
    },
    PasswordFile {
        user: String,
        file: PathBuf,
    },
    Token(String),
    TokenFile(PathBuf),
    /// A user's JWT with its seed, as `nsc generate creds` writes it.
    CredsFile(PathBuf),
}

impl Login {
    /// Adds the login to the options, reading its file if there is one.
    ///
    /// # Errors
    /// When the file can't be read or holds no credentials; the text names the file and no secret.
    pub(crate) async fn apply(&self, options: ConnectOptions) -> std::io::Result<ConnectOptions> {
        Ok(match self.clone() {
            Self::Anonymous => options,
            Self::Password { user, password } => options.user_and_password(user, password),
            Self::PasswordFile { user, file } => options.user_and_password(user, line_of(&file).await?),
            Self::Token(token) => options.token(token),
            Self::TokenFile(file) => options.token(line_of(&file).await?),
            Self::CredsFile(file) => {
                let text = text_of(&file).await?;
                // The library's error may quote what it read.
                options.credentials(&text).map_err(|_| {
                    let problem = format!("{} holds no user JWT with its seed", file.display());
                    std::io::Error::new(std::io::ErrorKind::InvalidData, problem)
                })?
            }
        })
    }
}

/// Tells the kind and the file, never a secret.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Password { .. } => f.write_str("Password"),
            Self::PasswordFile { file, .. } => f.debug_tuple("PasswordFile").field(file).finish(),
            Self::Token(_) => f.write_str("Token"),
            Self::TokenFile(file) => f.debug_tuple("TokenFile").field(file).finish(),
            Self::CredsFile(file) => f.debug_tuple("CredsFile").field(file).finish(),
        }
    }
}

/// A secret of one line; the line's end is not part of it.
async fn line_of(file: &Path) -> std::io::Result<String> {
    Ok(text_of(file).await?.trim_end_matches(['\r', '\n']).to_owned())
}

async fn text_of(file: &Path) -> std::io::Result<String> {
    let bytes = bytes_of(file).await?;
    String::from_utf8(bytes)
        .map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{}: not UTF-8", file.display())))
}

/// Reads a file off the runtime's threads; an error names the file.
pub(crate) async fn bytes_of(file: &Path) -> std::io::Result<Vec<u8>> {
    let path = file.to_owned();
    // tidy: credentials and certificates are renewed while a relay runs, so the adapter reads them at each connect
    let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await.map_err(std::io::Error::other)?;
    read.map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}
