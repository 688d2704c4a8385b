//! Properties over many files: what is written is read again, and no mutation of a good file makes
//! the reader panic or believe in tensors that are not there.

#[path = "../../../fuzz/properties/gguf.rs"]
mod property;
mod support;

use std::io::Write;
use std::sync::LazyLock;

use motley_model::{Architecture, GgufWriter, TensorType, Value, write_metadata_only};
use property::assert_trustworthy;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use support::{Blueprint, Setting, malformed, parse};

/// Files to mutate: good ones of every architecture, and those that are broken by little.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let models = Architecture::ALL.iter().map(|&architecture| Blueprint::new(architecture).bytes());
    models.chain(malformed().into_iter().map(|case| case.bytes)).collect()
});

/// One change to a file.
#[derive(Debug, Clone)]
enum Mutation {
    Set { at: usize, byte: u8 },
    Word { at: usize, word: u64 },
    Cut { at: usize },
    Insert { at: usize, bytes: Vec<u8> },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Most positions in the directory, where the reader looks.
    let at = prop_oneof![4 => 0..400_usize, 2 => 0..4_000_usize, 1 => any::<usize>()];
    let word = prop_oneof![
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 61),
        Just(u64::from(u32::MAX)),
        any::<u64>(),
        0..64_u64
    ];
    (at, word, any::<u8>(), vec(any::<u8>(), 1..12), 0..4).prop_map(
        |(at, word, byte, bytes, kind)| match kind {
            0 => Mutation::Set { at, byte },
            1 => Mutation::Word { at, word },
            2 => Mutation::Cut { at },
            _ => Mutation::Insert { at, bytes },
        },
    )
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let place = |at: usize, length: usize| at % length.max(1);
    match mutation {
        Mutation::Set { at, byte } => {
            let at = place(*at, bytes.len());
            bytes.iter_mut().skip(at).take(1).for_each(|old| *old = *byte);
        }
        Mutation::Word { at, word } => {
            let at = place(*at, bytes.len());
            let word = word.to_le_bytes();
            bytes.iter_mut().skip(at).zip(word).for_each(|(old, new)| *old = new);
        }
        Mutation::Cut { at } => bytes.truncate(place(*at, bytes.len())),
        Mutation::Insert { at, bytes: new } => {
            let at = place(*at, bytes.len());
            bytes.splice(at..at, new.iter().copied());
        }
    }
}

proptest! {
    // The same mutations every time, so that a change is judged by what it changed. Fuzzing
    // proper, in `fuzz/`, draws others.
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(0x6775_6767),
        ..ProptestConfig::with_cases(20_000)
    })]

    #[test]
    fn a_mutated_file_is_refused_or_trustworthy(
        choice in any::<prop::sample::Index>(),
        mutations in vec(mutation(), 1..4),
    ) {
        let mut bytes = FILES[choice.index(FILES.len())].clone();
        mutations.iter().for_each(|mutation| mutate(&mut bytes, mutation));
        if let Ok(gguf) = parse(&bytes) {
            assert_trustworthy(&gguf, bytes.len() as u64);
        }
    }
}

/// The fuzz target `canary` rests on this: the property can fail.
#[test]
#[should_panic(expected = "a tensor ends behind the file")]
fn a_byte_too_many_is_noticed() {
    let bytes = Blueprint::new(Architecture::Llama).bytes();
    let gguf = parse(&bytes).expect("a good file");
    assert_trustworthy(&gguf, bytes.len() as u64 - 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn what_is_written_is_read(
        settings in btree_map("[a-z.]{1,40}", setting(), 0..12),
        tensors in btree_map("[a-z0-9._]{1,63}", tensor(), 0..8),
    ) {
        let blueprint = Blueprint {
            settings: settings.into_iter().collect(),
            tensors: tensors.into_iter().map(|(name, (shape, kind))| (name, shape, kind)).collect(),
        };
        let bytes = blueprint.bytes();
        let gguf = parse(&bytes).expect("what the writer writes is good");
        assert_trustworthy(&gguf, bytes.len() as u64);
        prop_assert_eq!(gguf.metadata().len(), blueprint.settings.len());
        for ((key, value), (wanted_key, wanted)) in gguf.metadata().iter().zip(&blueprint.settings) {
            prop_assert_eq!(key, wanted_key);
            assert_same(value, wanted);
        }
        prop_assert_eq!(gguf.tensors().len(), blueprint.tensors.len());
        for (index, (tensor, (name, shape, kind))) in
            gguf.tensors().iter().zip(&blueprint.tensors).enumerate()
        {
            prop_assert_eq!(tensor.name, name);
            prop_assert_eq!(&tensor.shape[..tensor.dimensions], &shape[..]);
            prop_assert_eq!(tensor.tensor_type, *kind);
            let data = &bytes[tensor.offset as usize..][..tensor.bytes as usize];
            prop_assert!(data.iter().all(|&byte| usize::from(byte) == index), "{} was moved", name);
        }

        let copy = write_metadata_only(&gguf);
        let copy = parse(&copy).expect("a copy is as good");
        prop_assert_eq!(copy.metadata(), gguf.metadata());
        prop_assert!(copy.tensors().is_empty());
    }
}

fn setting() -> impl Strategy<Value = Setting> {
    let finite = -1e30_f32..1e30;
    prop_oneof![
        any::<u32>().prop_map(Setting::U32),
        any::<i32>().prop_map(Setting::I32),
        finite.clone().prop_map(Setting::F32),
        any::<bool>().prop_map(Setting::Bool),
        prop::sample::select(vec!["", "short", "länger"]).prop_map(Setting::Text),
        vec(prop::sample::select(vec!["", "a", "b c", "ü"]), 0..9).prop_map(Setting::Strings),
        vec(any::<u32>(), 0..9).prop_map(Setting::U32s),
        vec(any::<i32>(), 0..9).prop_map(Setting::I32s),
        vec(finite, 0..9).prop_map(Setting::F32s),
        vec(any::<bool>(), 0..9).prop_map(Setting::Bools),
    ]
}

fn tensor() -> impl Strategy<Value = (Vec<u64>, TensorType)> {
    let kinds = prop::sample::select(TensorType::ALL.to_vec());
    (kinds, 1..3_u64, vec(1..4_u64, 0..4)).prop_map(|(kind, blocks, rows)| {
        let mut shape = vec![blocks * kind.block_elements()];
        shape.extend(rows);
        (shape, kind)
    })
}

fn elements<'a>(value: &Value<'a>) -> Vec<Value<'a>> {
    value.as_array().expect("an array").iter().collect()
}

fn assert_same(value: &Value<'_>, setting: &Setting) {
    match setting {
        Setting::U32(number) => assert_eq!(*value, Value::U32(*number)),
        Setting::I32(number) => assert_eq!(*value, Value::I32(*number)),
        Setting::F32(number) => assert_eq!(*value, Value::F32(*number)),
        Setting::Bool(flag) => assert_eq!(*value, Value::Bool(*flag)),
        Setting::Text(text) => assert_eq!(*value, Value::String(text)),
        Setting::Strings(texts) => {
            let texts: Vec<Value<'_>> = texts.iter().map(|text| Value::String(text)).collect();
            assert_eq!(elements(value), texts);
        }
        Setting::U32s(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(|number| Value::U32(*number)).collect();
            assert_eq!(elements(value), numbers);
        }
        Setting::I32s(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(|number| Value::I32(*number)).collect();
            assert_eq!(elements(value), numbers);
        }
        Setting::F32s(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(|number| Value::F32(*number)).collect();
            assert_eq!(elements(value), numbers);
        }
        Setting::Bools(flags) => {
            let flags: Vec<_> = flags.iter().map(|flag| Value::Bool(*flag)).collect();
            assert_eq!(elements(value), flags);
        }
    }
}

#[test]
fn a_writer_that_lacks_data_does_not_finish() {
    let mut writer = GgufWriter::new();
    writer.tensor("a", &[8], TensorType::F32).expect("a good tensor");
    writer.tensor("b", &[8], TensorType::F32).expect("a good tensor");
    let mut out = writer.begin(Vec::new()).expect("a vector takes everything");
    out.write_all(&[1; 40]).expect("more than one tensor");
    let error = out.finish().expect_err("24 bytes are missing");
    assert_eq!(error.to_string(), "24 bytes of a tensor and 0 whole tensors were not written");
}
