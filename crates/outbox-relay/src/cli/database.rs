//! One connection for a command that needs the database at once.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::failure::{Failure, with_causes};
use super::settings::{Problem, Settings};

/// How long a command waits for the database; `run` waits for ever instead.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an answer to a question may take; its queries are cheap, so only a lock or a dead server takes longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bounds a question to the database in time. The connection must not be used after it was given up.
pub(crate) async fn answer<T>(question: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Failure::Failed(format!("the database did not answer within {ANSWER_TIMEOUT:?}"));
    tokio::time::timeout(ANSWER_TIMEOUT, question).await.map_err(late)?
}

/// Connects. No error shows the URL.
pub(crate) async fn connect(settings: &Settings) -> Result<PgConnection, Failure> {
    let missing = || Failure::Config(vec![Problem::new("database.url", "is missing")]);
    let config = settings.database.pg.as_ref().ok_or_else(missing)?;
    let options = config.connect_options().map_err(|error| Failure::failed(&error))?;
    match tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(&options)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(Failure::Failed(format!("the database can't be reached: {}", with_causes(&error)))),
        Err(_) => Err(Failure::Failed(format!("the database did not answer within {CONNECT_TIMEOUT:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_is_given_up() {
        let given_up = answer(std::future::pending::<Result<(), Failure>>()).await;
        assert!(matches!(given_up, Err(Failure::Failed(text)) if text.contains("within 30s")));
    }
}
