//! Links per direction, sites and relays.

use motley_cluster::*;

fn link(mega_bytes_per_s: f64, rtt_ms: f64) -> Link {
    Link {
        bytes_per_s: BytesPerSecond::new(mega_bytes_per_s * 1e6).expect("a rate"),
        rtt_s: Seconds::from_ms(rtt_ms).expect("a time"),
    }
}

#[test]
fn pairs_beat_groups_beat_the_default_and_relays_fill_gaps() {
    let pair = |from: &str, to: &str, symmetric, link| LinkPair {
        from: from.to_owned(),
        to: to.to_owned(),
        symmetric,
        link,
    };
    let spec = LinkSpec {
        default: Some(link(1.0, 100.0)),
        groups: vec![LinkGroup {
            members: vec!["a".to_owned(), "b".to_owned()],
            link: link(100.0, 1.0),
        }],
        pairs: vec![pair("a", "c", true, None), pair("b", "a", false, Some(link(50.0, 2.0)))],
    };
    let matrix = LinkMatrix::new(&spec, &["a", "b", "c"]).expect("valid");
    let [a, b, c] = [0, 1, 2].map(DeviceId::new);
    assert_eq!(matrix.direct(a, b), Some(link(100.0, 1.0)));
    assert_eq!(matrix.direct(b, a), Some(link(50.0, 2.0)));
    assert_eq!(matrix.direct(b, c), Some(link(1.0, 100.0)));
    assert_eq!(matrix.direct(a, c), None);
    let route = matrix.route(a, c).expect("over b");
    assert_eq!(route.relays, [b]);
    let time = route.transfer(Bytes::new(1_000_000)).as_ms();
    assert!((time - (0.5 + 10.0 + 50.0 + 1000.0)).abs() < 1e-9, "{time}");
}

#[test]
fn wrong_links_are_refused_by_field() {
    let spec = LinkSpec {
        pairs: vec![LinkPair {
            from: "a".to_owned(),
            to: "x".to_owned(),
            symmetric: false,
            link: None,
        }],
        ..LinkSpec::default()
    };
    let error = LinkMatrix::new(&spec, &["a", "b"]).expect_err("refused");
    assert_eq!(error.to_string(), "pairs[0].to: `x` is not a device of this cluster");
    let island = LinkMatrix::new(&LinkSpec::default(), &["a", "b"]).expect("valid");
    assert_eq!(island.route(DeviceId::new(0), DeviceId::new(1)), None);
}
