//! Graphs over small tensors, against results worked out by hand.

use std::rc::Rc;

use motley_ggml::{
    AllocateError, Arena, Attention, Backend, ComputeBuffer, ComputeError, Device, ElementType,
    Graph, TensorError, TensorSet, TensorSpec, ThreadPool, ThreadPoolOptions,
};

fn backend() -> Backend {
    Backend::cpu(ThreadPool::new(ThreadPoolOptions { threads: 2, poll_percent: 0, pinned: false }))
}

/// Its threads look for work for a while after each graph.
fn watchful_backend() -> Backend {
    Backend::cpu(ThreadPool::new(ThreadPoolOptions { threads: 2, poll_percent: 50, pinned: false }))
}

fn stored(values: &[f32], shape: [u64; 4]) -> Rc<TensorSet> {
    let spec = TensorSpec { name: "weight".to_owned(), element: ElementType::F32, shape };
    let set = TensorSet::allocate(Device::cpu().memory(), &[spec]).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    set.write(set.ids().next().unwrap(), 0, &bytes).unwrap();
    set
}

#[test]
fn a_product_is_computed_again_for_each_input() -> Result<(), AllocateError> {
    compute_again(backend(), |_| {})
}

#[test]
fn threads_that_rest_compute_again() -> Result<(), AllocateError> {
    compute_again(watchful_backend(), Backend::rest)
}

fn compute_again(mut backend: Backend, between: impl Fn(&Backend)) -> Result<(), AllocateError> {
    let set = stored(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2, 1, 1]);
    let weight = set.ids().next().unwrap();
    let (mut graph, (input, output)) = Graph::build(8, |builder| {
        let (x, input) = builder.input(ElementType::F32, [3, 1, 1, 1]);
        let product = builder.mul_mat(builder.stored(&set, weight), x);
        (input, builder.output(product))
    });
    // The graph keeps the weights alive.
    drop(set);
    assert_eq!(backend.compute(&graph), Err(ComputeError::NotAllocated));
    let mut memory = ComputeBuffer::new(&backend);
    memory.allocate(&mut graph)?;
    for (x, expected) in [([1.0, 0.0, 0.0], [1.0, 4.0]), ([1.0, 1.0, 1.0], [6.0, 15.0])] {
        between(&backend);
        graph.write::<f32>(input, &x);
        backend.compute(&graph).unwrap();
        let mut result = [0.0; 2];
        graph.read::<f32>(output, &mut result);
        assert_eq!(result, expected);
    }
    Ok(())
}

#[test]
fn a_graph_that_lost_its_memory_to_a_larger_one_does_not_run() {
    let mut backend = backend();
    let mut memory = ComputeBuffer::new(&backend);
    let doubled = |count: usize| {
        Graph::build(8, |builder| {
            let (x, _) = builder.input(ElementType::F32, [count, 1, 1, 1]);
            let doubled = builder.scale(x, 2.0);
            builder.output(doubled);
        })
        .0
    };
    let (mut small, mut large) = (doubled(8), doubled(1 << 20));
    memory.allocate(&mut small).unwrap();
    assert!(backend.compute(&small).is_ok());
    memory.allocate(&mut large).unwrap();
    assert_eq!(backend.compute(&small), Err(ComputeError::NotAllocated));
    memory.allocate(&mut small).unwrap();
    assert!(backend.compute(&small).is_ok());
    // The larger graph keeps its place: the memory did not move again.
    assert!(large.is_allocated());
}

#[test]
fn attention_looks_only_where_the_mask_allows() {
    let mut backend = backend();
    let (mut graph, (q, k, v, mask, output)) = Graph::build(16, |builder| {
        let (queries, q) = builder.input(ElementType::F32, [32, 1, 1, 1]);
        let (keys, k) = builder.input(ElementType::F16, [32, 2, 1, 1]);
        let (values, v) = builder.input(ElementType::F16, [32, 2, 1, 1]);
        let (mask, m) = builder.input(ElementType::F16, [2, 1, 1, 1]);
        let attended = builder.attention(&Attention {
            queries,
            keys,
            values,
            mask,
            scale: 1.0,
            soft_cap: 0.0,
        });
        (q, k, v, m, builder.output(attended))
    });
    ComputeBuffer::new(&backend).allocate(&mut graph).unwrap();
    const ONE: u16 = 0x3c00;
    const MINUS_INFINITY: u16 = 0xfc00;
    let mut values = [0_u16; 64];
    values[32..].fill(ONE);
    for (hidden, expected) in
        [([0, MINUS_INFINITY], 0.0), ([MINUS_INFINITY, 0], 1.0), ([0, 0], 0.5)]
    {
        graph.write::<f32>(q, &[1.0; 32]);
        graph.write::<u16>(k, &[ONE; 64]);
        graph.write::<u16>(v, &values);
        graph.write::<u16>(mask, &hidden);
        backend.compute(&graph).unwrap();
        let mut result = [9.0; 32];
        graph.read::<f32>(output, &mut result);
        assert!(result.iter().all(|value| (value - expected).abs() < 1e-6), "{result:?}");
    }
}

#[test]
#[should_panic(expected = "a row index outside a table of 2 rows")]
fn an_index_beyond_the_table_is_refused_before_ggml_sees_it() {
    let backend = backend();
    let set = stored(&[1.0, 2.0], [1, 2, 1, 1]);
    let table = set.ids().next().unwrap();
    let (mut graph, input) = Graph::build(8, |builder| {
        let (rows, input) = builder.indices(ElementType::I32, 1, 2);
        let row = builder.get_rows(builder.stored(&set, table), rows);
        builder.output(row);
        input
    });
    ComputeBuffer::new(&backend).allocate(&mut graph).unwrap();
    graph.write::<i32>(input, &[2]);
}

#[test]
#[should_panic(expected = "cannot multiply")]
fn mismatched_shapes_are_refused_before_ggml_sees_them() {
    let set = stored(&[1.0, 2.0], [2, 1, 1, 1]);
    let weight = set.ids().next().unwrap();
    Graph::build(8, |builder| {
        let (x, _) = builder.input(ElementType::F32, [3, 1, 1, 1]);
        builder.mul_mat(builder.stored(&set, weight), x);
    });
}

#[test]
fn accesses_outside_a_tensor_and_impossible_shapes_are_errors() {
    let set = stored(&[1.0, 2.0], [2, 1, 1, 1]);
    let id = set.ids().next().unwrap();
    let mut bytes = [0; 4];
    assert!(set.read(id, 4, &mut bytes).is_ok());
    assert_eq!(f32::from_le_bytes(bytes), 2.0);
    assert_eq!(
        set.read(id, 6, &mut bytes),
        Err(TensorError::OutsideTensor { offset: 6, length: 4, bytes: 8 })
    );
    for shape in [[0, 1, 1, 1], [1 << 40, 1 << 40, 1, 1], [u64::MAX, 1, 1, 1]] {
        let spec = TensorSpec { name: "huge".to_owned(), element: ElementType::F32, shape };
        assert!(matches!(
            TensorSet::allocate(Device::cpu().memory(), &[spec]),
            Err(TensorError::Shape { .. })
        ));
    }
}

/// Two products whose weights take turns in one region: each runs while its weights are there, and
/// not without them.
#[test]
fn segments_run_with_weights_that_come_one_after_the_other() {
    let mut backend = backend();
    let (arena, region) = Arena::reserve(Arena::ALIGNMENT).unwrap();
    let spec =
        TensorSpec { name: "weight".to_owned(), element: ElementType::F32, shape: [2, 2, 1, 1] };
    let sets = [(); 2].map(|()| TensorSet::movable(&arena, std::slice::from_ref(&spec)).unwrap());
    let (mut graph, (input, output)) = Graph::build(16, |builder| {
        let (x, input) = builder.input(ElementType::F32, [2, 1, 1, 1]);
        let stored = |set: &Rc<TensorSet>| builder.stored(set, set.ids().next().unwrap());
        let first = builder.mul_mat(stored(&sets[0]), builder.scale(x, 2.0));
        let second = builder.mul_mat(stored(&sets[1]), first);
        (input, builder.output(builder.scale(second, 0.5)))
    });
    let mut memory = ComputeBuffer::new(&backend);
    memory.allocate(&mut graph).unwrap();
    assert_eq!(backend.compute(&graph), Err(ComputeError::NotPlaced));
    graph.cut(&sets);
    let weights = [[1.0_f32, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]];
    let mut region = Some(region);
    for x in [[1.0_f32, 0.0], [0.5, -2.0]] {
        graph.write::<f32>(input, &x);
        let mut sets_run = 0;
        for segment in 0..graph.segments() {
            let Some(set) = graph.segment_set(segment).cloned() else {
                backend.compute_segment(&graph, segment).unwrap();
                continue;
            };
            let not_there = backend.compute_segment(&graph, segment);
            assert_eq!(not_there, Err(ComputeError::NotPlaced));
            let mut lent = region.take().unwrap();
            let index = sets.iter().position(|known| Rc::ptr_eq(known, &set)).unwrap();
            let offset = 64 * index;
            for (place, value) in lent.bytes_mut()[offset..].chunks_mut(4).zip(weights[index]) {
                place.copy_from_slice(&value.to_le_bytes());
            }
            set.lend(lent, &[offset]);
            backend.compute_segment(&graph, segment).unwrap();
            region = set.take_back();
            sets_run += 1;
        }
        assert_eq!(sets_run, 2);
        let first = [x[0] + 2.0 * x[1], 3.0 * x[0] + 4.0 * x[1]];
        let expected = [5.0 * first[0] + 6.0 * first[1], 7.0 * first[0] + 8.0 * first[1]];
        let mut found = [0.0; 2];
        graph.read::<f32>(output, &mut found);
        assert_eq!(found, expected);
    }
}

#[test]
#[should_panic(expected = "a view of a tensor whose memory moves")]
fn views_of_weights_that_move_are_refused() {
    let (arena, _region) = Arena::reserve(1).unwrap();
    let shape = [2, 2, 1, 1];
    let spec = TensorSpec { name: "weight".to_owned(), element: ElementType::F32, shape };
    let set = TensorSet::movable(&arena, &[spec]).unwrap();
    let _ = Graph::build(4, |builder| {
        builder.reshape(builder.stored(&set, set.ids().next().unwrap()), [4, 1, 1, 1]);
    });
}

#[test]
#[should_panic(expected = "a tensor outside its region")]
fn a_region_that_is_too_small_is_refused() {
    let (arena, region) = Arena::reserve(1).unwrap();
    let shape = [1024, 1, 1, 1];
    let spec = TensorSpec { name: "weight".to_owned(), element: ElementType::F32, shape };
    let set = TensorSet::movable(&arena, &[spec]).unwrap();
    set.lend(region, &[32]);
}
