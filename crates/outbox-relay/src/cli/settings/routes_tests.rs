//! Several routes: what they match, what contradicts what, and how each place names them.

use super::*;

const DATABASE: &str = "[database]\nurl = 'postgres://x'\n";
const CARTS: &str = "[[route]]\nname = 'carts'\nmatch = { aggregate_type = ['cart'] }\n[route.stdout]\n";
const REST: &str = "[[route]]\nname = 'rest'\n[route.rabbitmq]\nurl = 'amqp://x'\nexchange = 'x'\n";

fn check(text: &str, expected: &[&str]) {
    assert_eq!(problems(&format!("{DATABASE}{text}"), &[], &[]), expected);
}

fn names(settings: &Settings) -> Vec<(&str, String, &str)> {
    let route = |route: &'_ RouteSettings| {
        let RouteSettings { config, broker, .. } = route;
        (config.name.clone(), config.filter.to_string(), broker.name())
    };
    let routes = settings.routes.iter();
    routes.map(|it| (it.config.name.as_str(), route(it).1, route(it).2)).collect()
}

#[test]
fn routes_stand_in_their_order_with_what_they_match() {
    let text = "[relay]\nwindow = 7\n[[route]]\nname = 'a'\nwindow = 9\n[route.match]\nevent_type = ['order.*', 'paid']\n\
                aggregate_type = [\"order\"]\n[route.stdout]\n";
    let settings = load_text(&format!("{DATABASE}{text}{REST}"), &[], &[]).unwrap();
    let match_a = r#"aggregate_type = ["order"], event_type = ["order.*", "paid"]"#.to_owned();
    assert_eq!(names(&settings), [("a", match_a, "stdout"), ("rest", "everything".to_owned(), "rabbitmq")]);
    let windows: Vec<usize> = settings.routes.iter().map(|route| route.config.window).collect();
    assert_eq!(windows, [9, 7]);
    let shown = |key: &str| {
        let line = settings.shown.iter().find(|shown| shown.key == key);
        line.map(|shown| shown.value.clone()).unwrap_or_default()
    };
    assert_eq!(shown("route[0].match.event_type"), r#"["order.*", "paid"]"#);
    assert_eq!(
        (shown("route[0].window"), shown("route[1].window"), shown("relay.window")),
        ("9".into(), "".into(), "7".into())
    );
    assert_eq!((shown("route[0].stdout"), shown("route[1].rabbitmq.exchange")), ("{}".into(), "x".into()));
    assert!(settings.shown.iter().all(|shown| !shown.key.starts_with("route[0].rabbitmq")));
}

#[test]
fn variables_and_flags_name_routes_by_number() {
    let env = [
        ("OUTBOX__ROUTE__0__MATCH__AGGREGATE_TYPE", "cart, bag"),
        ("OUTBOX__ROUTE__1__NAME", "late"),
        ("OUTBOX__ROUTE__1__MATCH__EVENT_TYPE", r#"["a,b", "*.late"]"#),
        ("OUTBOX__ROUTE__1__RABBITMQ__URL", "amqp://y"),
        ("OUTBOX__ROUTE__1__RABBITMQ__EXCHANGE", "y"),
    ];
    let flags = ["route[1].window=3", "route.1.name=later"];
    let settings = load_text(&format!("{DATABASE}{CARTS}"), &env, &flags).unwrap();
    let (carts, late) = (r#"aggregate_type = ["cart", "bag"]"#, r#"event_type = ["a,b", "*.late"]"#);
    assert_eq!(names(&settings), [("carts", carts.into(), "stdout"), ("later", late.into(), "rabbitmq")]);
    assert_eq!(settings.routes[1].config.window, 3);

    let found = problems(&format!("{DATABASE}{CARTS}{REST}"), &[], &["route.window=3"]);
    assert_eq!(found, ["route.window (--set): does not say of which route; write `route[0].window`, counted from 0"]);
    let found = problems(&format!("{DATABASE}{CARTS}"), &[("OUTBOX__ROUTE__2__NAME", "x")], &[]);
    let gap = "route[2] (OUTBOX__ROUTE__2__NAME): is set, but there is no route[1]; routes are numbered from 0, without \
               gaps, those of the file first";
    assert_eq!(
        found,
        [gap, "route[2]: names no broker; add one of the tables `[route.stdout]` and `[route.rabbitmq]`"]
    );
    let found = problems(&format!("{DATABASE}{CARTS}"), &[("OUTBOX__ROUTE__1__MATCH__EVENT_TYP", "x")], &[]);
    assert!(
        found[0].starts_with(
            "OUTBOX__ROUTE__1__MATCH__EVENT_TYP: unknown variable; did you mean `OUTBOX__ROUTE__1__MATCH__EVENT_TYPE`?"
        ),
        "{found:?}"
    );
}

#[test]
fn problems_name_their_route() {
    check(
        &format!("{CARTS}{}", REST.replace("exchange = 'x'", "exchnge = 'x'\nchannels = 'four'")),
        &[
            "route[1].rabbitmq.channels (outbox.toml:12): must be a number, not text; write it without quotes",
            "route[1].rabbitmq.exchnge (outbox.toml:11): unknown key; did you mean `route[1].rabbitmq.exchange`?",
            "route[1].rabbitmq.exchange: is missing; for example orders",
        ],
    );
    // What stands in `[relay]` is said once.
    check(
        &format!("[relay]\nbatch_size = 0\n{CARTS}{}", REST.replace("name", "window = 0\nname")),
        &[
            "relay.batch_size (outbox.toml:4): must be at least 1, got 0",
            "route[1].window (outbox.toml:10): must be at least 1, got 0",
        ],
    );
    let rest = REST.replace("name", "publish_timeout = '27s'\nname");
    let found = problems(&format!("{DATABASE}{CARTS}{rest}"), &[], &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("route[1].rabbitmq.confirm_timeout: must, with three times connect_timeout"),
        "{found:?}"
    );
}

#[test]
fn matches_are_lists_of_patterns() {
    let of = |value: &str| CARTS.replace("{ aggregate_type = ['cart'] }", value);
    check(
        &of("'order'"),
        &["route[0].match (outbox.toml:5): is a table; write `match = { event_type = [\"order.*\"] }`"],
    );
    for value in ["'cart'", "5", "['cart', 5]", "[['cart']]", "true"] {
        let expected = "route[0].match.aggregate_type (outbox.toml:5): must be a list of texts; for example [\"order.*\", \"paid\"]";
        check(&of(&format!("{{ aggregate_type = {value} }}")), &[expected]);
    }
    let empty = "route[0].match.aggregate_type (outbox.toml:5): is an empty list, which matches nothing; leave the key out to match all";
    check(&of("{ aggregate_type = [] }"), &[empty]);
    check(
        &of("{ aggregate_type = ['x', ''] }"),
        &["route[0].match.aggregate_type (outbox.toml:5): `` is empty, and no name is; use `*` for all"],
    );
    check(
        &of("{ aggregat_type = ['x'] }"),
        &["route[0].match.aggregat_type (outbox.toml:5): unknown key; did you mean `route[0].match.aggregate_type`?"],
    );
    let patterns = vec!["'x'"; 101].join(",");
    check(
        &of(&format!("{{ event_type = [{patterns}] }}")),
        &["route[0].match.event_type (outbox.toml:5): 101 patterns in one list are too many: at most 100; use `*`"],
    );
    assert!(problems(&format!("{DATABASE}{}{REST}", of("{}")), &[], &[])[0].contains("can never get an event"));
}

#[test]
fn contradictions_between_routes_are_found() {
    check(&format!("{CARTS}{REST}"), &[]);
    check(
        &format!("{REST}{CARTS}"),
        &[
            "route[1].match.aggregate_type (outbox.toml:10): can never get an event: `rest` takes everything that it matches; narrow what stands before it, or put it first",
        ],
    );
    check(
        &format!("{CARTS}{}", REST.replace("'rest'", "'carts'")),
        &["route[1].name (outbox.toml:8): `carts` is the name of an earlier route; give it another name than route[0]"],
    );
    check(
        &format!("{CARTS}[[route]]\nname = 'more'\n[route.stdout]\n"),
        &["route[1].stdout: route[0] leads there too, and their lines would mix; keep one of them"],
    );
    let many: String =
        (0..33).map(|n| REST.replace("'rest'", &format!("'r{n}'\nmatch = {{ event_type = ['e{n}'] }}"))).collect();
    check(&many, &["route: 33 routes are too many: at most 32; lead several kinds of events into one route"]);
}

#[test]
fn connections_are_counted_by_routes() {
    let all = format!("{DATABASE}max_connections = 5\n{CARTS}{REST}");
    let expected = "database.max_connections (outbox.toml:3): must be at least 6 for 2 routes (three for each), got 5";
    assert_eq!(problems(&all, &[], &[]), [expected]);
    let left_over = all.replace("name = 'rest'", "name = 'rest'\nmatch = { event_type = ['x'] }");
    let expected = "database.max_connections (outbox.toml:3): must be at least 7 for 2 routes (three for each, one to look for events that no route takes), got 5";
    assert_eq!(problems(&left_over, &[], &[]), [expected]);
    assert_eq!(problems(&left_over, &[], &["database.max_connections=7"]), [""; 0]);
    assert_eq!(
        load_text(&format!("{DATABASE}{CARTS}{REST}"), &[], &[]).unwrap().database.pg.unwrap().max_connections,
        None
    );
}
