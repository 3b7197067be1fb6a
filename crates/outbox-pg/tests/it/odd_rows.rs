//! Rows that nobody who uses the library would write, and large ones (field reports B24, B27).

use outbox_core::{Claimed, ReadRequest};

use crate::database::{Database, run};
use crate::lane::{Reader, forward, ids, insert_with};

async fn read_all(reader: &mut Reader, max_bytes: usize) -> Vec<Vec<Claimed>> {
    let mut pages = Vec::new();
    loop {
        let batch = reader.lane.read(ReadRequest { max_bytes, ..forward(1000) }).await.unwrap();
        let complete = batch.complete;
        pages.push(batch.events);
        if complete {
            return pages;
        }
    }
}

#[tokio::test]
async fn one_bad_row_is_marked_and_its_neighbours_are_whole() {
    let Some(database) = Database::migrated("odd_rows").await else { return };
    let mut conn = database.connect().await;
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let sound = [
        "{\"n\":1e400}".to_owned(),
        nested(200),
        nested(5000),
        "null".to_owned(),
        "\"\"".to_owned(),
        "0".to_owned(),
        "[]".to_owned(),
        " {\"b\" : 1, \"b\": 2} ".to_owned(),
    ];
    for payload in &sound {
        insert_with(&mut conn, "sound", &format!("'{payload}'"), "NULL").await;
    }
    insert_with(&mut conn, "none", "'{}'", "'null'").await;
    let large = format!("'\"{}\"'", "secret".repeat(100_000));
    let headers = ["'[]'", "'[\"a\"]'", "'\"a\"'", "'{\"a\":1}'", "'{\"a\":{}}'", "'{\"a\":null}'", &large];
    for headers in headers {
        insert_with(&mut conn, "unsound", "'{}'", headers).await;
    }
    let bytes = "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_bytes) \
                 VALUES (' ', '🦀', 'שלום', ''), ('order', 'é', 'x', '\\x00'), ('order', E'e\\u0301', 'x', '\\xff')";
    run(&mut conn, bytes).await.unwrap();

    let mut reader = Reader::open(database.url()).await;
    let events = reader.read(100).await.events;
    assert_eq!(events.len(), sound.len() + 1 + headers.len() + 3);
    let (first, rest) = events.split_at(sound.len());
    for (event, payload) in first.iter().zip(&sound) {
        assert!(event.envelope.payload.data() == payload.as_bytes(), "changed: {:.40}", payload);
        assert_eq!(event.defect, None);
    }
    assert!(rest[0].defect.is_none() && rest[0].envelope.headers.is_empty(), "JSON null is no headers");
    for (event, headers) in rest[1..].iter().zip(headers) {
        let defect = event.defect.as_deref().unwrap_or_default();
        assert!(defect.starts_with("headers must be a flat JSON object of strings"), "{headers:.40}: {defect:?}");
        assert!(defect.len() < 200 && !defect.contains("secret"), "{defect:.300}");
    }
    let bytes = &rest[1 + headers.len()..];
    let data: Vec<&[u8]> = bytes.iter().map(|event| &event.envelope.payload.data()[..]).collect();
    assert_eq!(data, [&b""[..], b"\0", b"\xff"]);
    assert!(bytes.iter().all(|event| event.defect.is_none()));
    assert_ne!(bytes[1].key, bytes[2].key, "é as one character and as two: two aggregates");
}

#[tokio::test]
async fn pages_are_bounded_in_bytes_however_rows_are_stored() {
    let Some(database) = Database::migrated("large_rows").await else { return };
    let mut conn = database.connect().await;
    let noise = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 6250) AS i)"; // 200 kB
    let kinds = [
        ("compressed", "('\"' || repeat('x', 200000) || '\"')::json".to_owned(), "NULL"),
        ("apart", format!("('\"' || {noise} || '\"')::json"), "NULL"),
        // Long as text, short as a map of strings: a page that these fill is not the last one.
        ("headers", "'1'".to_owned(), "('{\"a\":' || repeat(' ', 200000) || '\"b\"}')::json"),
    ];
    for (kind, payload, headers) in kinds {
        let mut written = Vec::new();
        for _ in 0..12 {
            written.push(insert_with(&mut conn, kind, &payload, headers).await);
        }
        let mut reader = Reader::open(database.url()).await;
        let pages = read_all(&mut reader, 500_000).await;
        let sizes: Vec<_> = pages.iter().map(Vec::len).collect();
        assert_eq!(sizes[..6], [2; 6], "{kind}: a third of 200 kB would exceed 500 kB");
        assert_eq!(ids(&pages.concat()), written, "{kind}");
        let mut alone = reader.store_lane().await;
        for id in &written[..3] {
            assert_eq!(ids(&alone.read(ReadRequest { max_bytes: 1, ..forward(10) }).await.unwrap().events), [*id]);
        }
        let events = pages.concat();
        reader.settle(&events).await;
        reader.release().await;
    }
}

#[tokio::test]
async fn a_row_larger_than_a_page_is_read_alone() {
    let Some(database) = Database::migrated("row_larger_than_a_page").await else { return };
    let mut conn = database.connect().await;
    let small = insert_with(&mut conn, "small", "'1'", "NULL").await;
    let large = insert_with(&mut conn, "large", "('\"' || repeat('x', 600000) || '\"')::json", "NULL").await;
    let last = insert_with(&mut conn, "small", "'2'", "NULL").await;
    let mut reader = Reader::open(database.url()).await;
    let pages: Vec<Vec<i64>> = read_all(&mut reader, 500_000).await.iter().map(|page| ids(page)).collect();
    assert_eq!(pages[..3], [vec![small], vec![large], vec![last]], "what comes before it need not wait for it");
}
