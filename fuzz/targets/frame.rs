//! Whatever comes from another node: frames that decode are what was encoded, byte for byte, and
//! control messages that decode say the same again after a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use motley_ring::{
    CONTROL_HEADER_BYTES, ClusterId, ControlHeader, Epoch, FrameHeader, FrameShape, HEADER_BYTES,
    RUN_BYTES, WireElement, encode_control, limits,
};

/// Of the frames of the epoch in force.
const SHAPE: FrameShape = FrameShape {
    cluster: ClusterId(7),
    epoch: Epoch(3),
    stops: 9,
    slots: 64,
    context_tokens: 4096,
    batch_rows_max: 512,
    width: 64,
    element: WireElement::Q8_0,
};

/// Bytes 60 to 63 of a frame's header are its checksum.
const CHECKSUM_AT: usize = HEADER_BYTES - 4;

fuzz_target!(|bytes: &[u8]| {
    frame(bytes);
    control(bytes);
});

fn frame(bytes: &[u8]) {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = FrameHeader::decode(header, &SHAPE) else { return };
    assert_eq!(header.encode()[..], bytes[..HEADER_BYTES], "a header is encoded as it came");
    assert!(header.rows <= limits::BATCH_ROWS_MAX && header.runs <= header.rows);
    assert!(u64::from(header.payload_bytes) <= limits::PAYLOAD_BYTES_MAX);
    assert_eq!(header.table_bytes(), header.runs as usize * RUN_BYTES);
    let Some(table) = rest.get(..header.table_bytes()) else { return };
    // The fuzzer does not guess checksums, so they are made right first.
    let mut right = header;
    let mut prefix = crc32fast::Hasher::new();
    prefix.update(&bytes[..CHECKSUM_AT]);
    prefix.update(table);
    right.prefix_checksum = prefix.finalize();
    if header.prefix_checksum != right.prefix_checksum {
        assert!(header.decode_runs(table).is_err(), "a wrong checksum is noticed");
    }
    let Ok(batch) = right.decode_runs(table) else { return };
    assert_eq!(batch.rows(), header.rows);
    assert!(batch.wanted_rows() <= batch.rows());
    assert_eq!(batch.wanted_indices().count(), batch.wanted_rows() as usize);
    let mut encoded = Vec::new();
    right.encode_prefix(&batch, &mut encoded);
    assert_eq!(encoded[..CHECKSUM_AT], bytes[..CHECKSUM_AT], "the header is the same");
    assert_eq!(encoded[CHECKSUM_AT..HEADER_BYTES], right.prefix_checksum.to_le_bytes());
    assert_eq!(encoded[HEADER_BYTES..], *table, "the table is the same");
}

fn control(bytes: &[u8]) {
    let Some((header, rest)) = bytes.split_first_chunk::<CONTROL_HEADER_BYTES>() else { return };
    if let Ok(header) = ControlHeader::decode(header, SHAPE.cluster, limits::CONTROL_BYTES_MAX) {
        assert_eq!(header.encode()[..], bytes[..CONTROL_HEADER_BYTES]);
        assert!(header.json_bytes <= limits::CONTROL_BYTES_MAX);
        assert!(header.raw_bytes <= limits::BLOCK_BYTES_MAX);
    }
    let mut right = ControlHeader {
        cluster: SHAPE.cluster,
        json_bytes: rest.len() as u32,
        raw_bytes: 0,
        raw_checksum: 0,
        checksum: 0,
    };
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&right.encode()[..CONTROL_HEADER_BYTES - 4]);
    hasher.update(rest);
    right.checksum = hasher.finalize();
    let Ok(message) = right.decode_message(rest) else { return };
    let mut encoded = Vec::new();
    encode_control(&message, SHAPE.cluster, &[], &mut encoded).expect("what came in goes out");
    let (header, json) = encoded.split_first_chunk().expect("a header");
    let header = ControlHeader::decode(header, SHAPE.cluster, limits::CONTROL_BYTES_MAX);
    let again = header.expect("its own header").decode_message(json).expect("its own message");
    assert_eq!(again, message);
}
