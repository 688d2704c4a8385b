//! Cut models keep what decides about time, made-up weights are sound, and every pass gives times.

use motley_ggml::{ElementType, ThreadPoolOptions, dequantize_rows};
use motley_model::{Architecture, LayerTensors, ModelDirectory, TensorType};

use super::cut::{Cut, Room, choose};
use super::fill::Filler;
use super::*;
use crate::cache::CacheElement;
use crate::engine::LayoutChoice;
use crate::maker::FileType;
use crate::maker::tests::made_directory;
use crate::placement::Residency;

const THREADS: ThreadPoolOptions = ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false };

fn room(bytes: u64) -> Room {
    Room { bytes, cells: 256, cell_element_bytes: 2, head: true }
}

fn shapes(layer: &LayerTensors) -> Vec<([u64; 4], TensorType)> {
    layer.tensors().map(|tensor| (tensor.shape, tensor.tensor_type)).collect()
}

#[test]
fn a_cut_has_layers_of_every_kind_with_their_shapes_and_places_of_their_own() {
    for architecture in Architecture::ALL {
        let directory = made_directory(architecture.name(), FileType::Q4_K_M);
        let kinds = choose(&directory, room(1 << 30)).expect("there is room");
        let stand_for: f64 = kinds.iter().map(|kind| kind.stands_for).sum();
        assert_eq!(stand_for, directory.layers.len() as f64, "{architecture}");
        let cut = Cut::new(&directory, &kinds, true);
        // A small model fits whole.
        assert_eq!(cut.directory.layers.len(), directory.layers.len());
        for kind in &kinds {
            assert_eq!(kind.sliding, directory.hyper.layers[kind.source].window_tokens.is_some());
            for layer in kind.layers.clone() {
                let (ours, theirs) = (&cut.directory.layers[layer], &directory.layers[kind.source]);
                assert_eq!(shapes(ours), shapes(theirs), "{architecture}");
                assert_eq!(cut.directory.hyper.layers[layer], directory.hyper.layers[kind.source]);
                assert!(ours.query.name == format!("blk.{layer}.attn_q.weight"));
            }
        }
        let (head, of) = (cut.directory.head_matrix(), directory.head_matrix());
        assert_eq!((head.shape, head.tensor_type), (of.shape, of.tensor_type));
        check_places(&cut.directory);
    }
}

/// No tensor begins before the last one ends.
fn check_places(directory: &ModelDirectory) {
    let layers = directory.layers.iter().flat_map(LayerTensors::tensors);
    let head = [&directory.output_norm, directory.head_matrix()];
    let mut end = 0;
    let mut places: Vec<(u64, u64)> =
        layers.chain(head).map(|tensor| (tensor.offset, tensor.bytes)).collect();
    places.sort_unstable();
    for (offset, bytes) in places {
        assert!(offset >= end && offset.is_multiple_of(32), "{offset} after {end}");
        end = offset + bytes;
    }
}

#[test]
fn little_room_gives_one_layer_of_each_kind_and_less_is_refused() {
    let directory = made_directory("gemma3", FileType::Q4_0);
    let whole = choose(&directory, room(1 << 30)).expect("there is room");
    let Err(MeasureError::Room { needed_bytes, allowed_bytes: 1 }) = choose(&directory, room(1))
    else {
        panic!("one byte is no room");
    };
    let least = choose(&directory, room(needed_bytes)).expect("it needs no more");
    assert!(least.iter().all(|kind| kind.layers.len() == 1));
    assert_eq!(least.len(), whole.len());
    assert!(choose(&directory, room(needed_bytes - 1)).is_err());
    let headless = |bytes| choose(&directory, Room { head: false, ..room(bytes) });
    assert!(headless(needed_bytes - directory.head_bytes()).is_ok());
    assert!(headless(needed_bytes - directory.head_bytes() - 1).is_err());
}

#[test]
fn layers_are_timed_without_a_head_where_it_is_not_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = made_directory("qwen2", FileType::Q8_0);
    let options = MeterOptions {
        threads: THREADS,
        cache: CacheElement::F16,
        layout: LayoutChoice::Plain,
        residency: Residency::Ram,
        folder: folder.path().to_owned(),
        memory_bytes: 1 << 30,
        head: false,
        pass_overhead: Duration::ZERO,
    };
    let passes = [TimedPass { kind: PassKind::Decode, tokens: 1, depth_tokens: 40 }];
    let mut meter = ModelMeter::new(&directory, &passes, &options).expect("it fits");
    let times = meter.run(Duration::ZERO, &mut |_| {}).expect("passes run");
    assert!(times[0].full_layer.is_some() && times[0].head.is_none(), "{times:?}");
}

#[test]
fn made_up_weights_are_neither_zero_nor_tiny_nor_endless() {
    let mut filler = Filler::default();
    let mut values = Vec::new();
    for tensor_type in TensorType::ALL.iter().filter(|of| of.is_weight()) {
        let element = ElementType::from_id(tensor_type.id()).expect("a type of ggml");
        let Ok(rows) = filler.rows(element, 512) else { continue };
        assert!(!rows.is_empty(), "{tensor_type}");
        values.clear();
        if dequantize_rows(element, rows, 512, &mut values).is_err() {
            continue;
        }
        let squares = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        let deviation = (squares / values.len() as f64).sqrt();
        assert!((1e-4..1e3).contains(&deviation), "{tensor_type}: {deviation}");
        assert!(values.iter().all(|value| !value.is_subnormal()), "{tensor_type}");
    }
    assert!(!values.is_empty());
}

#[test]
fn every_pass_within_the_context_gives_times_of_its_kinds_of_layers() {
    let folder = tempfile::tempdir().expect("a folder");
    let pass = |kind, tokens, depth_tokens| TimedPass { kind, tokens, depth_tokens };
    let passes = [
        pass(PassKind::Decode, 2, 40),
        pass(PassKind::Prefill, 24, 0),
        pass(PassKind::Decode, 1, 90),
        pass(PassKind::Decode, 1, usize::MAX >> 1),
    ];
    for (architecture, residency) in [("gemma3", Residency::Mapped), ("qwen2", Residency::Ram)] {
        let directory = made_directory(architecture, FileType::Q8_0);
        let options = MeterOptions {
            threads: THREADS,
            cache: CacheElement::F16,
            layout: LayoutChoice::Measured,
            residency,
            folder: folder.path().to_owned(),
            memory_bytes: 1 << 30,
            head: true,
            pass_overhead: Duration::ZERO,
        };
        let mut meter = ModelMeter::new(&directory, &passes, &options).expect("it fits");
        let mut parts = Vec::new();
        let times = meter.run(Duration::ZERO, &mut |part| parts.push(part)).expect("passes run");
        let timed: Vec<TimedPass> = times.iter().map(|times| times.pass).collect();
        assert_eq!(timed, passes[..3]);
        assert!(!parts.is_empty() && parts.iter().all(|part| (0.0..=1.0).contains(part)));
        for times in times {
            assert!(times.full_layer.is_some_and(|time| !time.is_zero()), "{times:?}");
            assert_eq!(times.sliding_layer.is_some(), architecture == "gemma3", "{times:?}");
            assert_eq!(times.head.is_some(), times.pass.kind == PassKind::Decode, "{times:?}");
        }
        drop(meter);
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}

#[test]
fn products_of_weights_have_rates_and_others_are_refused() {
    let mut meter = ProcessorMeter::new(THREADS);
    let rate = meter.product_rate(TensorType::Q4_K, Duration::ZERO).expect("it can be multiplied");
    assert!(rate.is_finite() && rate > 0.0);
    assert!(meter.weight_rate(TensorType::F16, 1 << 20, Duration::ZERO).is_ok());
    let refused = meter.product_rate(TensorType::I32, Duration::ZERO).unwrap_err();
    assert_eq!(refused.to_string(), "weights of type I32 cannot be multiplied here");
}

#[test]
fn the_quartile_is_near_the_undisturbed_runs() {
    let ms = |times: &[u64]| {
        let times: Vec<Duration> = times.iter().copied().map(Duration::from_millis).collect();
        lower_quartile(&times).as_millis()
    };
    assert_eq!(ms(&[7]), 7);
    assert_eq!(ms(&[90, 5, 80]), 5);
    assert_eq!(ms(&[11, 10, 99, 12, 95, 10, 97, 98]), 11);
}
