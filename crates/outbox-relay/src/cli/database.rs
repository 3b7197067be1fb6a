//! One connection for a command that needs the database at once.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::failure::{Failure, with_causes};
use super::settings::{Problem, Settings};

/// How long a command waits for the database; `run` waits for ever instead.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
