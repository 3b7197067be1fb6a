//! The PostgreSQL launcher against a real server.

use outbox_services::postgres::{Mode, Options, Postgres, test_database_or_skip};
use outbox_services::require_or_skip;

#[test]
fn a_server_survives_restarts_and_kills_and_leaves_nothing() {
    let Some(mut server) = require_or_skip("pg", Postgres::start(Options::default())) else { return };
    server.psql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").unwrap();
    server.restart(Mode::Fast).unwrap();
    server.psql("INSERT INTO t VALUES (2)").unwrap();
    server.restart(Mode::Immediate).unwrap();
    server.psql("INSERT INTO t VALUES (3)").unwrap();
    server.kill9().unwrap();
    assert!(server.psql("SELECT 1").is_err());
    server.start_again().unwrap();
    assert_eq!(server.psql("SELECT count(*) FROM t").unwrap(), "3");
    assert!(server.start_again().is_err(), "it runs already");
    let process = server.process().unwrap();
    let log = server.log();
    drop(server);
    assert!(!process.is_alive());
    assert!(!log.exists());
}

#[test]
fn a_durable_server_keeps_fsync_on() {
    let Some(server) = require_or_skip("pg", Postgres::start(Options::default().durable())) else { return };
    assert_eq!(server.psql("SHOW fsync").unwrap(), "on");
    assert_eq!(server.psql("SHOW full_page_writes").unwrap(), "on");
}

#[test]
fn a_setting_reaches_the_server_and_a_wrong_one_is_told() {
    let options = Options::default().with_setting("max_connections", "17");
    let Some(server) = require_or_skip("pg", Postgres::start(options)) else { return };
    assert_eq!(server.psql("SHOW max_connections").unwrap(), "17");
    let error = Postgres::start(Options::default().with_setting("no_such_setting", "1")).unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[test]
fn servers_share_an_identity_unless_asked() {
    let Some(first) = require_or_skip("pg", Postgres::start(Options::default())) else { return };
    let second = Postgres::start(Options::default()).unwrap();
    let other = Postgres::start(Options::default().with_own_identity()).unwrap();
    let identifier = |server: &Postgres| server.psql("SELECT system_identifier FROM pg_control_system()").unwrap();
    assert_eq!(identifier(&first), identifier(&second));
    assert_ne!(identifier(&first), identifier(&other));
}

#[test]
fn a_standby_follows_and_is_promoted() {
    let Some(mut primary) = require_or_skip("pg", Postgres::start(Options::default())) else { return };
    primary.psql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").unwrap();
    let standby = primary.start_standby(&format!("127.0.0.1:{}", primary.port())).unwrap();
    primary.psql("INSERT INTO t VALUES (2)").unwrap();
    let refused = standby.psql("INSERT INTO t VALUES (3)").unwrap_err().to_string();
    assert!(refused.contains("read-only"), "{refused}");
    assert!(primary.promote().is_err(), "it is no standby");
    // A clean stop sends everything to whoever follows.
    primary.stop(Mode::Fast).unwrap();
    standby.promote().unwrap();
    standby.psql("INSERT INTO t VALUES (3)").unwrap();
    assert_eq!(standby.psql("SELECT count(*) FROM t").unwrap(), "3");
}

#[test]
fn a_test_gets_a_database_of_its_own() {
    let Some(first) = test_database_or_skip("A Test, with a name") else { return };
    let Some(second) = test_database_or_skip("A Test, with a name") else { return };
    assert_ne!(first.name, second.name);
    first.psql("CREATE TABLE t (n int)").unwrap();
    assert!(second.psql("SELECT * FROM t").is_err());
    let name = first.name.clone();
    drop(first);
    assert_eq!(second.psql(&format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'")).unwrap(), "0");
}
