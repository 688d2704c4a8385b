//! Frames and control messages, byte by byte, and the document that draws them.

use expect_test::expect;
use motley_cluster::KvType;
use motley_ring::{
    Activity, Addresses, Batch, Block, CONTROL_HEADER_BYTES, ClusterId, ControlError,
    ControlHeader, ControlMessage, Edge, Epoch, FetchBlock, FetchManifest, FrameError, FrameHeader,
    FrameShape, HEADER_BYTES, Hello, Leave, LinkMeasured, LinkQuality, List, Manifest,
    MeasureLinks, MemberIndex, MicroBatchId, ModelDigest, ModelManifestRef, Name, NodeId, OfEpoch,
    Peer, PeerLost, Ping, Pong, PrepareFailed, Prepared, Probe, Probed, ProfileJson, Progress,
    RefusalCode, Refused, Run, SlotIndex, StepFailed, Survey, SurveyFailed, Surveyed, Text, Wanted,
    Welcome, WireElement, encode_control, limits,
};
use proptest::prelude::*;

const CLUSTER: ClusterId = ClusterId(0x1122_3344_5566_7788);

const SHAPE: FrameShape = FrameShape {
    cluster: CLUSTER,
    epoch: Epoch(5),
    stops: 3,
    slots: 4,
    context_tokens: 100,
    batch_rows_max: 16,
    width: 2,
    element: WireElement::F32,
};

fn example() -> (FrameHeader, Batch, Vec<u8>) {
    let run = |slot, first_position, rows, wanted, fresh| Run {
        slot: SlotIndex(slot),
        first_position,
        rows,
        wanted,
        fresh,
    };
    let runs = vec![run(2, 7, 1, Wanted::Last, false), run(1, 0, 2, Wanted::None, true)];
    let batch = Batch::new(runs);
    let payload: Vec<u8> = (0..24).collect();
    let header = FrameHeader::new(&SHAPE, MicroBatchId(9), 1, &batch, &payload);
    let mut prefix = Vec::new();
    header.encode_prefix(&batch, &mut prefix);
    (header, batch, prefix)
}

fn decode(prefix: &[u8], shape: &FrameShape) -> Result<(FrameHeader, Batch), FrameError> {
    let (header, table) = prefix.split_first_chunk::<HEADER_BYTES>().expect("a header");
    let header = FrameHeader::decode(header, shape)?;
    let batch = header.decode_runs(table)?;
    Ok((header, batch))
}

#[test]
fn a_frame_has_these_bytes() {
    let (header, batch, prefix) = example();
    let lines = prefix
        .chunks(8)
        .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "));
    expect![[r#"
        4d 54 4c 59 01 00 01 00
        88 77 66 55 44 33 22 11
        05 00 00 00 00 00 00 00
        09 00 00 00 00 00 00 00
        01 00 00 00 02 00 00 00
        03 00 00 00 18 00 00 00
        01 00 00 00 00 00 00 00
        96 a6 95 82 4d de 42 c4
        02 00 00 00 07 00 00 00
        01 00 00 00 01 00 00 00
        01 00 00 00 00 00 00 00
        02 00 00 00 00 01 00 00"#]]
    .assert_eq(&lines.collect::<Vec<_>>().join("\n"));
    let (decoded, runs) = decode(&prefix, &SHAPE).expect("a frame");
    assert_eq!(runs, batch);
    assert_eq!(decoded.payload_checksum, header.payload_checksum);
    let payload: Vec<u8> = (0..24).collect();
    assert_eq!(decoded.check_payload(&payload), Ok(()));
    let wrong = Err(FrameError::Checksum { part: "payload" });
    assert_eq!(decoded.check_payload(&payload[..23]), wrong);
}

#[test]
fn no_bit_of_a_frame_can_change_unnoticed() {
    let (_, _, prefix) = example();
    for bit in 0..prefix.len() * 8 {
        let mut damaged = prefix.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged, &SHAPE).is_err(), "bit {bit}");
    }
}

/// A refusal, after some bytes of the example's header were overwritten.
fn refused(at: usize, bytes: &[u8]) -> String {
    let (_, _, prefix) = example();
    let mut header: [u8; HEADER_BYTES] = *prefix.first_chunk().expect("a header");
    header[at..at + bytes.len()].copy_from_slice(bytes);
    FrameHeader::decode(&header, &SHAPE).expect_err("it is refused").to_string()
}

#[test]
fn a_header_is_refused_before_anything_is_read() {
    let told = [
        refused(0, b"GGUF"),
        refused(4, &[2, 0]),
        refused(6, &[9, 0]),
        refused(8, &[1]),
        refused(32, &[3]),
        refused(36, &[5]),
        refused(36, &[0]),
        refused(40, &[17]),
        refused(40, &[1]),
        refused(44, &[25]),
        refused(48, &[2]),
        refused(48, &[77]),
        refused(50, &[1]),
        // Of another epoch, so that only the protocol's own limits count.
        refused(16, &[4, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 255]),
        refused(
            16,
            &[4, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 255],
        ),
    ];
    expect![[r#"
        not a frame of this protocol: it begins with [47, 47, 55, 46]
        protocol version 2, expected 1
        unexpected frame kind 9
        frame of cluster 1122334455667701
        stop is 3, at most 2 is allowed
        number of runs is 5, at most 3 is allowed
        number of runs is 0, expected 1
        number of rows is 17, at most 16 is allowed
        number of runs is 2, at most 1 is allowed
        length of activations is 25, at most 24 is allowed
        element is 2, expected 1
        unknown element 77
        reserved bytes are not zero
        stop is 65280, at most 2047 is allowed
        number of rows is 65280, at most 8192 is allowed"#]]
    .assert_eq(&told.join("\n"));
}

#[test]
fn frames_of_another_epoch_can_be_skipped() {
    let (_, batch, prefix) = example();
    let later = FrameShape { epoch: Epoch(6), slots: 1, stops: 1, width: 1, ..SHAPE };
    let (header, runs) = decode(&prefix, &later).expect("a frame within the protocol's limits");
    assert_eq!((header.epoch, runs), (Epoch(5), batch));
}

fn any_run() -> impl Strategy<Value = Run> {
    let wanted = prop_oneof![Just(Wanted::None), Just(Wanted::Last), Just(Wanted::All)];
    (0..limits::CONTEXT_TOKENS_MAX / 2, 1..40u32, wanted, any::<bool>()).prop_map(
        |(first_position, rows, wanted, fresh)| Run {
            slot: SlotIndex(0),
            first_position: if fresh { 0 } else { first_position },
            rows,
            wanted,
            fresh,
        },
    )
}

proptest! {
    #[test]
    fn frames_come_back_as_they_were(
        mut runs in prop::collection::vec(any_run(), 1..60),
        ids in any::<(u64, u64)>(),
        stop in 0..3u32,
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        for (slot, run) in runs.iter_mut().enumerate() {
            run.slot = SlotIndex(slot as u32 * 3);
        }
        let shape = FrameShape {
            epoch: Epoch(ids.0), slots: limits::SLOTS_MAX, batch_rows_max: limits::BATCH_ROWS_MAX,
            width: 1000, ..SHAPE
        };
        let batch = Batch::new(runs);
        let header = FrameHeader::new(&shape, MicroBatchId(ids.1), stop, &batch, &payload);
        let mut prefix = Vec::new();
        header.encode_prefix(&batch, &mut prefix);
        let (decoded, decoded_batch) = decode(&prefix, &shape).expect("a frame");
        prop_assert_eq!(&decoded_batch, &batch);
        prop_assert_eq!(FrameHeader { prefix_checksum: 0, ..decoded }, header);
        prop_assert_eq!(decoded.check_payload(&payload), Ok(()));
    }

    #[test]
    fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 96..200)) {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(b"MTLY");
        bytes[4..6].copy_from_slice(&1u16.to_le_bytes());
        bytes[8..16].copy_from_slice(&CLUSTER.0.to_le_bytes());
        let _ = decode(&bytes, &SHAPE);
        let (header, json) = bytes.split_first_chunk().expect("a header");
        if let Ok(header) = ControlHeader::decode(header, CLUSTER, limits::CONTROL_BYTES_MAX) {
            let _ = header.decode_message(json);
        }
    }
}

fn text(text: &str) -> Text {
    Text::cut(text)
}

fn hello() -> Hello {
    Hello {
        protocol_min: 1,
        protocol_max: 1,
        build: Name::cut("0.2.0"),
        engine_build: Name::cut("b6000"),
        node: NodeId([0xab; 32]),
        name: Name::cut("kitchen"),
        addresses: Addresses::default(),
        memory_budget_bytes: 1 << 33,
        epoch_seen: Epoch(4),
        profile: ProfileJson::new(serde_json::json!({"read": 0.1})).expect("it is short"),
    }
}

/// One of each type, but for `prepare`, which the simulation sends.
fn messages() -> Vec<ControlMessage> {
    let (epoch, model) = (Epoch(5), ModelDigest([1; 32]));
    let refused = Refused {
        code: RefusalCode::EngineBuild,
        message: text("another engine"),
        advice: text("install 0.2.0"),
    };
    let welcome = Welcome {
        protocol: 1,
        node: NodeId([2; 32]),
        name: Name::cut("desk"),
        build: Name::cut("0.2.0"),
        epoch,
    };
    let activity = Activity { busy_ns: 1, idle_ns: 2, frames: 3, token_ns: 4, token_steps: 5 };
    let quality = LinkQuality { round_trip_ns: 300, out_bytes_per_s: 9, in_bytes_per_s: 8 };
    let micro_batch = MicroBatchId(8);
    let peer_lost = PeerLost { epoch, member: MemberIndex(2), cause: text("reset") };
    vec![
        ControlMessage::Hello(Box::new(hello())),
        ControlMessage::Welcome(welcome),
        ControlMessage::Refused(refused),
        ControlMessage::Progress(Progress { epoch, done_bytes: 1, total_bytes: 2 }),
        ControlMessage::Prepared(Prepared { epoch, memory_bytes: 9 }),
        ControlMessage::PrepareFailed(PrepareFailed { epoch, cause: text("disk full") }),
        ControlMessage::Commit(OfEpoch { epoch }),
        ControlMessage::Committed(OfEpoch { epoch }),
        ControlMessage::Release(OfEpoch { epoch }),
        ControlMessage::Released(OfEpoch { epoch }),
        ControlMessage::Ping(Ping { nonce: 7 }),
        ControlMessage::Pong(Pong { nonce: 7, activity }),
        ControlMessage::StepFailed(StepFailed { epoch, micro_batch, cause: text("memory") }),
        ControlMessage::PeerLost(peer_lost),
        ControlMessage::Leave(Leave { reason: text("the lid closes") }),
        ControlMessage::Edge(Edge { epoch, from: MemberIndex(0), to: MemberIndex(2) }),
        ControlMessage::FetchManifest(FetchManifest { model }),
        ControlMessage::Manifest(Manifest { model, bytes: 64 }),
        ControlMessage::FetchBlock(FetchBlock { model, index: 3 }),
        ControlMessage::Block(Block { model, index: 3, bytes: 5 }),
        ControlMessage::NoBlock(FetchBlock { model, index: 3 }),
        ControlMessage::Survey(Box::new(survey(model))),
        ControlMessage::Surveyed(Box::new(Surveyed { model, profile: hello().profile })),
        ControlMessage::SurveyFailed(SurveyFailed { model, cause: text("no room") }),
        ControlMessage::MeasureLinks(MeasureLinks { peers: survey(model).sources }),
        ControlMessage::LinkMeasured(LinkMeasured { to: NodeId([1; 32]), quality: Some(quality) }),
        ControlMessage::LinkMeasured(LinkMeasured { to: NodeId([1; 32]), quality: None }),
        ControlMessage::Probe(Probe { bytes: 7, answer_bytes: 9 }),
        ControlMessage::Probed(Probed { bytes: 9 }),
    ]
}

fn survey(digest: ModelDigest) -> Survey {
    let peer = Peer { node: NodeId([1; 32]), addresses: Addresses::default() };
    Survey {
        model: ModelManifestRef { name: Name::cut("small"), digest, file_bytes: 9, block_bytes: 5 },
        sources: List::new(vec![peer]).expect("one"),
        context_tokens: 512,
        batch_rows_max: 64,
        kv_type: KvType::F16,
        others: List::new(vec![NodeId([1; 32])]).expect("one"),
    }
}

fn round_trip(message: &ControlMessage) -> ControlMessage {
    let raw = vec![0x5a; message.raw_bytes() as usize];
    let mut bytes = Vec::new();
    encode_control(message, CLUSTER, &raw, &mut bytes).expect("within the limits");
    let (header, json) = bytes.split_first_chunk::<CONTROL_HEADER_BYTES>().expect("a header");
    let header = ControlHeader::decode(header, CLUSTER, limits::HELLO_BYTES_MAX).expect("a header");
    header.check_raw(&raw).expect("its raw bytes");
    header.decode_message(json).expect("a message")
}

#[test]
fn these_are_the_message_types() {
    let lines: Vec<String> = messages()
        .iter()
        .map(|message| {
            assert_eq!(&round_trip(message), message);
            let json = serde_json::to_string(message).expect("json");
            assert!(json.starts_with(&format!("{{\"{}\":", message.name())), "{json}");
            let zeros = "\"0101010101010101010101010101010101010101010101010101010101010101\"";
            json.replace(zeros, "DIGEST")
        })
        .collect();
    expect![[r#"
        {"hello":{"protocol_min":1,"protocol_max":1,"build":"0.2.0","engine_build":"b6000","node":"abababababababababababababababababababababababababababababababab","name":"kitchen","addresses":[],"memory_budget_bytes":8589934592,"epoch_seen":4,"profile":{"read":0.1}}}
        {"welcome":{"protocol":1,"node":"0202020202020202020202020202020202020202020202020202020202020202","name":"desk","build":"0.2.0","epoch":5}}
        {"refused":{"code":"engine_build","message":"another engine","advice":"install 0.2.0"}}
        {"progress":{"epoch":5,"done_bytes":1,"total_bytes":2}}
        {"prepared":{"epoch":5,"memory_bytes":9}}
        {"prepare_failed":{"epoch":5,"cause":"disk full"}}
        {"commit":{"epoch":5}}
        {"committed":{"epoch":5}}
        {"release":{"epoch":5}}
        {"released":{"epoch":5}}
        {"ping":{"nonce":7}}
        {"pong":{"nonce":7,"activity":{"busy_ns":1,"idle_ns":2,"frames":3,"token_ns":4,"token_steps":5}}}
        {"step_failed":{"epoch":5,"micro_batch":8,"cause":"memory"}}
        {"peer_lost":{"epoch":5,"member":2,"cause":"reset"}}
        {"leave":{"reason":"the lid closes"}}
        {"edge":{"epoch":5,"from":0,"to":2}}
        {"fetch_manifest":{"model":DIGEST}}
        {"manifest":{"model":DIGEST,"bytes":64}}
        {"fetch_block":{"model":DIGEST,"index":3}}
        {"block":{"model":DIGEST,"index":3,"bytes":5}}
        {"no_block":{"model":DIGEST,"index":3}}
        {"survey":{"model":{"name":"small","digest":DIGEST,"file_bytes":9,"block_bytes":5},"sources":[{"node":DIGEST,"addresses":[]}],"context_tokens":512,"batch_rows_max":64,"kv_type":"f16","others":[DIGEST]}}
        {"surveyed":{"model":DIGEST,"profile":{"read":0.1}}}
        {"survey_failed":{"model":DIGEST,"cause":"no room"}}
        {"measure_links":{"peers":[{"node":DIGEST,"addresses":[]}]}}
        {"link_measured":{"to":DIGEST,"quality":{"round_trip_ns":300,"out_bytes_per_s":9,"in_bytes_per_s":8}}}
        {"link_measured":{"to":DIGEST,"quality":null}}
        {"probe":{"bytes":7,"answer_bytes":9}}
        {"probed":{"bytes":9}}"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn no_bit_of_a_control_message_can_change_unnoticed() {
    let mut bytes = Vec::new();
    let ping = ControlMessage::Ping(Ping { nonce: 7 });
    encode_control(&ping, CLUSTER, &[], &mut bytes).expect("within the limits");
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let (header, json) = damaged.split_first_chunk::<CONTROL_HEADER_BYTES>().expect("whole");
        let header = ControlHeader::decode(header, CLUSTER, limits::CONTROL_BYTES_MAX);
        assert!(header.and_then(|header| header.decode_message(json)).is_err(), "bit {bit}");
    }
}

/// Why a JSON is no message, with the causes.
fn why(json: &str) -> String {
    let header = |checksum| ControlHeader {
        cluster: CLUSTER,
        json_bytes: json.len() as u32,
        raw_bytes: 0,
        raw_checksum: 0,
        checksum,
    };
    let mut hashed = header(0).encode()[..28].to_vec();
    hashed.extend_from_slice(json.as_bytes());
    match header(crc32fast::hash(&hashed)).decode_message(json.as_bytes()) {
        Ok(message) => format!("{} is a message", message.name()),
        // Where in the text depends on the order of a map's entries, which other crates of a build
        // may change.
        Err(ControlError::Json(source)) => {
            let told = source.to_string();
            told.split(" at line ").next().unwrap_or_default().to_owned()
        }
        Err(other) => other.to_string(),
    }
}

#[test]
fn what_is_unknown_or_too_long_is_no_message() {
    let long_list = format!("{{\"leave\":{{\"reason\":\"{}\"}}}}", "x".repeat(1025));
    let mut hello = serde_json::to_value(ControlMessage::Hello(Box::new(hello()))).expect("json");
    hello["hello"]["addresses"] = vec!["10.0.0.1:7"; 17].into();
    let many = hello.to_string();
    hello["hello"]["addresses"] = Vec::<String>::new().into();
    hello["hello"]["profile"] = "x".repeat(70_000).into();
    let told = [
        why("{\"ping\":{\"nonce\":7}}"),
        why("{\"ping\":{\"nonce\":7,\"code\":1}}"),
        why("{\"ping\":{}}"),
        why("{\"ping\":{\"nonce\":-7}}"),
        why("{\"shell\":{}}"),
        why("{\"ping\":{\"nonce\":7}} "),
        why("{\"ping\":{\"nonce\":7}}{"),
        why(&"[".repeat(1000)),
        why("{\"fetch_manifest\":{\"model\":\"../../etc\"}}"),
        why("{\"leave\":{\"reason\":\"a\\nb\"}}"),
        why(&long_list),
        why(&many),
        why(&hello.to_string()),
        why(
            "{\"block\":{\"model\":\"0101010101010101010101010101010101010101010101010101010101010101\",\"index\":1,\"bytes\":5}}",
        ),
    ];
    expect![[r#"
        ping is a message
        unknown field `code`, expected `nonce`
        missing field `nonce`
        invalid value: integer `-7`, expected u64
        unknown variant `shell`, expected one of `hello`, `welcome`, `refused`, `prepare`, `progress`, `prepared`, `prepare_failed`, `commit`, `committed`, `release`, `released`, `ping`, `pong`, `step_failed`, `peer_lost`, `leave`, `edge`, `fetch_manifest`, `manifest`, `fetch_block`, `block`, `no_block`, `survey`, `surveyed`, `survey_failed`, `measure_links`, `link_measured`, `probe`, `probed`
        ping is a message
        trailing characters
        expected value
        not 64 lower-case hexadecimal digits
        a control character at byte 1
        1025 bytes, at most 1024 are allowed
        17 entries, at most 16 are allowed
        70002 bytes, at most 65536 are allowed
        0 raw bytes follow a message of type block, which has 5"#]].assert_eq(&told.join("\n"));
}

#[test]
fn a_control_header_is_refused_before_anything_is_read() {
    let mut bytes = Vec::new();
    let ping = ControlMessage::Ping(Ping { nonce: 7 });
    encode_control(&ping, CLUSTER, &[], &mut bytes).expect("within the limits");
    let refused = |at: usize, with: &[u8]| {
        let mut header: [u8; CONTROL_HEADER_BYTES] = *bytes.first_chunk().expect("a header");
        header[at..at + with.len()].copy_from_slice(with);
        let decoded = ControlHeader::decode(&header, CLUSTER, limits::HELLO_BYTES_MAX);
        decoded.expect_err("it is refused").to_string()
    };
    let told = [
        refused(0, b"HTTP"),
        refused(4, &[2]),
        refused(6, &[1]),
        refused(6, &[3]),
        refused(8, &[0]),
        refused(16, &[1, 0, 2, 0]),
        refused(20, &[1]),
    ];
    expect![[r#"
        not a message of this protocol: it begins with [48, 54, 54, 50]
        control header version 2, expected 1
        unexpected frame kind 1
        unexpected frame kind 3
        message of cluster 1122334455667700
        131073 bytes of message, at most 131072 are allowed
        unexpected frame kind 2"#]]
    .assert_eq(&told.join("\n"));
    let mut header: [u8; CONTROL_HEADER_BYTES] = *bytes.first_chunk().expect("a header");
    header[6] = 3;
    header[23] = 1;
    let decoded = ControlHeader::decode(&header, CLUSTER, limits::HELLO_BYTES_MAX);
    assert!(matches!(decoded, Err(ControlError::TooLong { part: "raw bytes", .. })));
}

#[test]
fn a_message_says_how_many_raw_bytes_follow() {
    let block =
        |bytes| ControlMessage::Block(Block { model: ModelDigest([1; 32]), index: 0, bytes });
    let encode = |message: &ControlMessage, raw: &[u8]| {
        encode_control(message, CLUSTER, raw, &mut Vec::new()).err().map(|error| error.to_string())
    };
    assert_eq!(encode(&block(3), &[1, 2, 3]), None);
    let told = [
        encode(&block(3), &[1, 2]),
        encode(&block(limits::BLOCK_BYTES_MAX + 1), &[]),
        encode(&ControlMessage::Ping(Ping { nonce: 1 }), &[1]),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    expect![[r#"
        2 raw bytes follow a message of type block, which has 3
        4194305 bytes of raw bytes, at most 4194304 are allowed
        1 raw bytes follow a message of type ping, which has 0"#]]
    .assert_eq(&told.join("\n"));
}

#[test]
fn any_text_can_be_made_to_fit() {
    assert_eq!(Text::cut("a\nb\u{7f}").as_str(), "a b ");
    let cut = Text::cut(&"é".repeat(2000));
    assert_eq!(cut.as_str().len(), limits::TEXT_BYTES_MAX);
    assert_eq!(Name::cut(&format!("x{}", "é".repeat(100))).as_str().len(), 127);
}

/// The document's tables say what the code does.
#[test]
fn the_document_is_right() {
    let document = include_str!("../../../docs/WIRE.md");
    let row = |name: &str| {
        let start = format!("| `{name}` | ");
        let row = document.lines().find_map(|line| line.strip_prefix(&start));
        row.unwrap_or_else(|| panic!("{name} is not in the document")).trim_end_matches(" |")
    };
    for message in messages() {
        row(message.name());
    }
    macro_rules! same {
        ($($name:ident)*) => {
            $(assert_eq!(row(stringify!($name)), format!("{:?}", limits::$name), stringify!($name));)*
        };
    }
    same!(PROBE_BYTES_MAX SURVEY_TIMEOUT PROBE_TIMEOUT PROTOCOL_VERSION PROTOCOL_VERSION_MIN MEMBERS_MAX STOPS_MAX LAYERS_MAX SLOTS_MAX
        BATCH_ROWS_MAX CONTEXT_TOKENS_MAX WIDTH_MAX MICRO_BATCHES_MAX PAYLOAD_BYTES_MAX
        CONTROL_BYTES_MAX HELLO_BYTES_MAX PROFILE_BYTES_MAX BLOCK_BYTES_MAX
        NAME_BYTES_MAX TEXT_BYTES_MAX ADDRESS_BYTES_MAX ADDRESSES_MAX HELLO_TIMEOUT
        PREPARE_STALL_TIMEOUT COMMIT_TIMEOUT HEARTBEAT_INTERVAL SUSPECT_AFTER LOST_AFTER
        WRITE_TIMEOUT READ_TIMEOUT WAITING_MAX WAITING_PER_CALLER_MAX);
    let limits = include_str!("../src/limits.rs");
    let constants = limits.lines().filter(|line| line.starts_with("pub const ")).count();
    let rows = document.lines().filter(|line| line.starts_with("| `") && line.contains('_'));
    let rows = rows.filter(|line| line[3..4].chars().all(char::is_uppercase)).count();
    assert_eq!(rows, constants, "every limit is in the document");
}
