//! One test per way in which bytes are no GGUF file, byte by byte.

mod support;

use expect_test::{Expect, expect};
use motley_model::{Gguf, TensorType};
use support::parse;

fn check(bytes: &[u8], expected: Expect) {
    let error = parse(bytes).expect_err("the bytes are broken");
    expected.assert_eq(&error.to_string());
}

/// A file from its parts, padded to where its data begins, and 64 bytes of data.
fn file(pairs: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = header(3, tensors.len() as u64, pairs.len() as u64);
    bytes.extend(pairs.concat());
    bytes.extend(tensors.concat());
    bytes.resize(bytes.len().next_multiple_of(32) + 64, 0);
    bytes
}

fn header(version: u32, tensors: u64, pairs: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(pairs.to_le_bytes());
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn pair(key: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
    [&text(key), &value_type.to_le_bytes()[..], value].concat()
}

fn array(element_type: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&element_type.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

fn tensor(name: &str, shape: &[u64], tensor_type: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((shape.len() as u32).to_le_bytes());
    shape.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
    bytes.extend(tensor_type.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const F32: u32 = 0;

#[test]
fn the_parts_make_a_good_file() {
    let pairs = [pair("k", U32, &[1, 0, 0, 0]), pair("b", BOOL, &[1])];
    let bytes = file(&pairs, &[tensor("a", &[8], F32, 0), tensor("b", &[2, 3], F32, 32)]);
    let gguf = parse(&bytes).expect("nothing is wrong with it");
    assert_eq!(gguf.tensors()[1].shape, [2, 3, 1, 1]);
    assert_eq!(gguf.tensors()[1].offset, gguf.data_offset() + 32);
    assert_eq!(gguf.tensors()[1].tensor_type, TensorType::F32);
    let old = [&b"GGUF\x02"[..], &bytes[5..]].concat();
    assert_eq!(parse(&old).map(|gguf| gguf.version()), Ok(2));
}

#[test]
fn length_disagrees() {
    let bytes = file(&[], &[]);
    let error = Gguf::parse(&bytes, 10).expect_err("the file is shorter than the bytes");
    expect!["96 bytes were given of a file that is said to have only 10"]
        .assert_eq(&error.to_string());
}

#[test]
fn a_directory_alone_is_enough_for_a_file_known_to_be_longer() {
    let bytes = file(&[], &[tensor("a", &[16, 1024], F32, 0)]);
    check(
        &bytes,
        expect![
            "tensor 'a' needs 65536 bytes at 0 in the data (which begins at offset 96), but the file has 160 bytes"
        ],
    );
    let gguf = Gguf::parse(&bytes, 96 + 65536).expect("the tensor ends with the file");
    assert_eq!(gguf.tensors()[0].bytes, 65536);
}

#[test]
fn truncated() {
    check(
        &file(&[], &[])[..11],
        expect!["file ends in the tensor count: 8 bytes needed at offset 8, 3 left"],
    );
    let mut bytes = header(3, 0, 1);
    bytes.extend(pair("key", STRING, &u64::MAX.to_le_bytes()));
    check(
        &bytes,
        expect![
            "file ends in the value of key 'key': 18446744073709551615 bytes needed at offset 47, 0 left"
        ],
    );
}

#[test]
fn magic() {
    check(b"PK\x03\x04....", expect![[r"not a GGUF file: it begins with PK\x03\x04, not 'GGUF'"]]);
}

#[test]
fn big_endian() {
    check(
        b"GGUF\x00\x00\x00\x03",
        expect![
            "GGUF file in big-endian byte order (version field 0x03000000); only little-endian files are read"
        ],
    );
}

#[test]
fn version() {
    check(
        &header(1, 0, 0),
        expect![
            "GGUF version 1 is not supported: its lengths have 32 bits and no current tool writes it; convert the model again"
        ],
    );
    check(&header(4, 0, 0), expect!["GGUF version 4 is not supported: versions 2 and 3 are read"]);
}

#[test]
fn count_beyond_file() {
    check(
        &header(3, 0, u64::MAX / 14 + 2),
        expect![
            "1317624576693539403 metadata pairs are claimed, but the 0 bytes left at offset 24 cannot hold them"
        ],
    );
    check(
        &header(3, 1, 0),
        expect!["1 tensors are claimed, but the 0 bytes left at offset 24 cannot hold them"],
    );
    let strings = array(STRING, 30, &text("one"));
    check(
        &file(&[pair("k", ARRAY, &strings)], &[]),
        expect![
            "30 elements of array 'k' are claimed, but the 79 bytes left at offset 49 cannot hold them"
        ],
    );
    let wraps = array(U32, 1 << 62, &[]);
    check(
        &file(&[pair("k", ARRAY, &wraps)], &[]),
        expect![
            "4611686018427387904 elements of array 'k' are claimed, but the 79 bytes left at offset 49 cannot hold them"
        ],
    );
}

#[test]
fn count_beyond_limit() {
    let mut bytes = header(3, 0, 70_000);
    bytes.resize(1_000_000, 0);
    check(&bytes, expect!["70000 metadata pairs are more than the limit of 65536"]);
}

#[test]
fn key_empty() {
    check(&file(&[pair("", U8, &[0])], &[]), expect!["metadata key 0 at offset 24 is empty"]);
}

#[test]
fn key_too_long() {
    check(
        &file(&[pair(&"k".repeat(65_536), U8, &[0])], &[]),
        expect!["metadata key 0 at offset 24 has 65536 bytes, the most is 65535"],
    );
}

#[test]
fn not_utf8() {
    let mut bytes = file(&[pair("kkkk", STRING, &text("text"))], &[]);
    bytes[49] = 0xff;
    check(&bytes, expect!["text of key 'kkkk' at offset 40 is not UTF-8"]);
    bytes[33] = 0xc0;
    check(&bytes, expect!["metadata key 0 at offset 24 is not UTF-8"]);
}

#[test]
fn duplicate_key() {
    check(
        &file(&[pair("k", U8, &[0]), pair("k", U8, &[1])], &[]),
        expect!["metadata key 'k' appears twice, again at offset 38"],
    );
}

#[test]
fn unknown_value_type() {
    check(
        &file(&[pair("k", 13, &[0])], &[]),
        expect!["metadata key 'k' has the unknown value type 13 at offset 33"],
    );
    check(
        &file(&[pair("k", ARRAY, &array(14, 0, &[]))], &[]),
        expect!["metadata key 'k' has the unknown value type 14 at offset 37"],
    );
}

#[test]
fn bool_value() {
    check(
        &file(&[pair("k", BOOL, &[2])], &[]),
        expect!["metadata key 'k' has a truth value of 2 at offset 37, allowed are 0 and 1"],
    );
    check(
        &file(&[pair("k", ARRAY, &array(BOOL, 3, &[0, 1, 3]))], &[]),
        expect!["metadata key 'k' has a truth value of 3 at offset 51, allowed are 0 and 1"],
    );
}

#[test]
fn nested_array() {
    let inner = array(U8, 1, &[7]);
    check(
        &file(&[pair("k", ARRAY, &array(ARRAY, 1, &inner))], &[]),
        expect!["metadata key 'k' is an array of arrays (offset 37), which is not supported"],
    );
}

#[test]
fn alignment_type() {
    check(
        &file(&[pair("general.alignment", STRING, &text("32"))], &[]),
        expect!["'general.alignment' must be a u32, it is a string"],
    );
}

#[test]
fn alignment() {
    for value in [0_u32, 1, 4, 24, 131_072, 1 << 31] {
        let bytes = file(&[pair("general.alignment", U32, &value.to_le_bytes())], &[]);
        parse(&bytes).expect_err("an alignment that cannot be used");
    }
    check(
        &file(&[pair("general.alignment", U32, &24_u32.to_le_bytes())], &[]),
        expect!["alignment 24 is not a power of two from 8 to 65536"],
    );
}

#[test]
fn tensor_name_empty() {
    check(&file(&[], &[tensor("", &[8], F32, 0)]), expect!["tensor 0 at offset 24 has no name"]);
}

#[test]
fn tensor_name_too_long() {
    check(
        &file(&[], &[tensor(&"n".repeat(64), &[8], F32, 0)]),
        expect!["the name of tensor 0 at offset 24 has 64 bytes, the most is 63"],
    );
    let longest = "n".repeat(63);
    let bytes = file(&[], &[tensor(&longest, &[8], F32, 0)]);
    assert_eq!(parse(&bytes).map(|gguf| gguf.tensors()[0].name.len()), Ok(63));
}

#[test]
fn duplicate_tensor() {
    check(
        &file(&[], &[tensor("a", &[8], F32, 0), tensor("a", &[8], F32, 32)]),
        expect!["tensor 'a' appears twice, again at offset 57"],
    );
}

#[test]
fn dimensions() {
    check(
        &file(&[], &[tensor("a", &[1, 1, 1, 1, 1], F32, 0)]),
        expect!["tensor 'a' has 5 dimensions (offset 33), allowed are 1 to 4"],
    );
    check(
        &file(&[], &[tensor("a", &[], F32, 0), vec![0; 8]]),
        expect!["tensor 'a' has 0 dimensions (offset 33), allowed are 1 to 4"],
    );
}

#[test]
fn zero_dimension() {
    check(
        &file(&[], &[tensor("a", &[8, 0], F32, 0)]),
        expect!["dimension 1 of tensor 'a' is zero"],
    );
}

#[test]
fn size_overflow() {
    check(
        &file(&[], &[tensor("a", &[1 << 32, 1 << 32], F32, 0)]),
        expect!["tensor 'a' of shape [4294967296, 4294967296, 1, 1] is too large to count"],
    );
    check(
        &file(&[], &[tensor("a", &[1 << 61, 4], F32, 0)]),
        expect!["tensor 'a' of shape [2305843009213693952, 4, 1, 1] is too large to count"],
    );
    check(
        &file(&[], &[tensor("a", &[1 << 61], F32, 0)]),
        expect!["tensor 'a' of shape [2305843009213693952, 1, 1, 1] is too large to count"],
    );
}

#[test]
fn unknown_tensor_type() {
    check(
        &file(&[], &[tensor("a", &[32], 4, 0)]),
        expect!["tensor 'a' has the unknown or removed element type 4 (offset 45)"],
    );
}

#[test]
fn partial_block() {
    check(
        &file(&[], &[tensor("a", &[40], 2, 0)]),
        expect!["tensor 'a' has rows of 40 elements, its type needs a multiple of 32"],
    );
}

#[test]
fn unaligned() {
    check(
        &file(&[], &[tensor("a", &[4], F32, 16)]),
        expect!["tensor 'a' lies at 16 in the data, no multiple of the alignment 32"],
    );
}

#[test]
fn outside_file() {
    check(
        &file(&[], &[tensor("a", &[16], F32, 32)]),
        expect![
            "tensor 'a' needs 64 bytes at 32 in the data (which begins at offset 64), but the file has 128 bytes"
        ],
    );
    check(
        &file(&[], &[tensor("a", &[16], F32, u64::MAX - 31)]),
        expect![
            "tensor 'a' needs 64 bytes at 18446744073709551584 in the data (which begins at offset 64), but the file has 128 bytes"
        ],
    );
}

#[test]
fn overlap() {
    check(
        &file(&[], &[tensor("later", &[8], F32, 32), tensor("earlier", &[9], F32, 0)]),
        expect!["tensors 'earlier' and 'later' share bytes from offset 160"],
    );
}
