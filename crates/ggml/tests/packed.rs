//! Products of weights with packed rows, against ggml's own.

use motley_ggml::{
    Backend, ComputeBuffer, Device, ElementType, Graph, TensorSet, TensorSpec, ThreadPool,
    ThreadPoolOptions, quantize_rows,
};

/// Made-up values between -1 and 1.
fn values(count: usize, seed: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
    (0..count).map(value).collect()
}

/// Elements of a row, rows of weights, and rows that are multiplied.
type Shape = (usize, usize, usize);

/// The product by ggml and by packed rows, each computed twice, or nothing where this processor has
/// no kernel for that.
fn products(element: ElementType, (k, n, m): Shape, threads: usize) -> Option<[Vec<u32>; 3]> {
    let pool = ThreadPoolOptions { threads, poll_percent: 0, pinned: false };
    let mut backend = Backend::cpu(ThreadPool::new(pool));
    let spec = TensorSpec { name: "weight".to_owned(), element, shape: [k as u64, n as u64, 1, 1] };
    let set = TensorSet::allocate(Device::cpu().memory(), &[spec]).unwrap();
    let weight = set.ids().next().unwrap();
    let mut bytes = Vec::new();
    quantize_rows(element, &values(k * n, 1), k, &mut bytes).unwrap();
    set.write(weight, 0, &bytes).unwrap();
    let (mut graph, made) = Graph::build(16, |builder| {
        let (x, input) = builder.input(ElementType::F32, [k, m, 1, 1]);
        let weight = builder.stored(&set, weight);
        let theirs = builder.output(builder.mul_mat(weight, x));
        let ours = builder.output(builder.mul_mat_packed(weight, x)?);
        // Rows are laid out once for both.
        let again = builder.output(builder.mul_mat_packed(weight, x)?);
        Some((input, [theirs, ours, again]))
    });
    let (input, outputs) = made?;
    ComputeBuffer::new(&backend).allocate(&mut graph).unwrap();
    let mut found = [const { Vec::new() }; 3];
    for seed in [2, 3] {
        graph.write::<f32>(input, &values(k * m, seed));
        backend.compute(&graph).unwrap();
        for (output, found) in outputs.into_iter().zip(&mut found) {
            let mut product = vec![0.0_f32; n * m];
            graph.read::<f32>(output, &mut product);
            found.extend(product.into_iter().map(f32::to_bits));
        }
    }
    Some(found)
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn check(element: ElementType, shapes: &[Shape]) {
    for shape in shapes {
        for threads in [1, 2, 3] {
            let Some([theirs, ours, again]) = products(element, *shape, threads) else {
                eprintln!("skipped: this processor has no kernel for {element:?} with ggml's bits");
                return;
            };
            assert!(theirs.iter().any(|bits| *bits != 0), "something was computed");
            assert!(theirs.iter().all(|bits| f32::from_bits(*bits).is_finite()));
            assert!(ours == theirs, "{element:?}, {shape:?}, {threads} threads");
            assert!(again == theirs, "{element:?}, {shape:?}, {threads} threads, again");
        }
    }
}

/// Shapes for blocks of 256: rows of one piece and of several, groups of weights and panels that are
/// not full, and more of both than ggml takes at once.
const LARGE_BLOCKS: [Shape; 7] = [
    (256, 1, 8),
    (512, 16, 9),
    (1536, 50, 31),
    (768, 200, 64),
    (8192, 7, 8),
    (2304, 33, 300),
    (256, 300, 17),
];

fn q4_k() -> ElementType {
    ElementType::from_id(12).expect("ggml knows Q4_K")
}

#[test]
fn products_of_q4_1_are_ggml_s_to_the_last_bit() {
    let shapes =
        [(32, 1, 4), (64, 2, 8), (576, 33, 9), (1536, 50, 31), (96, 200, 64), (8192, 7, 5)];
    check(ElementType::Q4_1, &shapes);
}

#[test]
fn products_of_q4_k_are_ggml_s_to_the_last_bit() {
    check(q4_k(), &LARGE_BLOCKS);
}

#[test]
fn products_of_q6_k_are_ggml_s_to_the_last_bit() {
    check(ElementType::from_id(14).expect("ggml knows Q6_K"), &LARGE_BLOCKS);
}

/// Both types have the same rows, rounded to blocks of 32 and of 256.
#[test]
fn rows_are_rounded_for_each_type() {
    let pool = ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false };
    let mut backend = Backend::cpu(ThreadPool::new(pool));
    let (k, n, m) = (512, 20, 8);
    let spec = |element| TensorSpec {
        name: format!("{element:?}"),
        element,
        shape: [k as u64, n as u64, 1, 1],
    };
    let elements = [ElementType::Q4_1, q4_k()];
    let set = TensorSet::allocate(Device::cpu().memory(), &elements.map(spec)).unwrap();
    for (element, id) in elements.into_iter().zip(set.ids()) {
        let mut bytes = Vec::new();
        quantize_rows(element, &values(k * n, 1), k, &mut bytes).unwrap();
        set.write(id, 0, &bytes).unwrap();
    }
    let (mut graph, (input, outputs)) = Graph::build(16, |builder| {
        let (x, input) = builder.input(ElementType::F32, [k, m, 1, 1]);
        let mut outputs = Vec::new();
        for id in set.ids() {
            let weight = builder.stored(&set, id);
            let theirs = builder.mul_mat(weight, x);
            let ours = builder.mul_mat_packed(weight, x).unwrap_or(theirs);
            outputs.push([builder.output(theirs), builder.output(ours)]);
        }
        (input, outputs)
    });
    ComputeBuffer::new(&backend).allocate(&mut graph).unwrap();
    graph.write::<f32>(input, &values(k * m, 2));
    backend.compute(&graph).unwrap();
    for both in outputs {
        let [theirs, ours] = both.map(|output| {
            let mut product = vec![0.0_f32; n * m];
            graph.read::<f32>(output, &mut product);
            product
        });
        assert_eq!(ours, theirs);
    }
}

#[test]
fn few_rows_are_left_to_ggml() {
    assert!(products(ElementType::Q4_1, (64, 4, 3), 1).is_none());
    assert!(products(q4_k(), (256, 4, 7), 1).is_none());
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn interleaved_weights_are_left_to_ggml() {
    let (k, n, m) = (512, 64, 8);
    let layouts = Device::cpu().weight_layouts();
    let Some(memory) = layouts.into_iter().find(|memory| memory.holds_matrix(q4_k(), k, n)) else {
        eprintln!("skipped: this processor interleaves no Q4_K");
        return;
    };
    let spec = TensorSpec {
        name: "weight".to_owned(),
        element: q4_k(),
        shape: [k as u64, n as u64, 1, 1],
    };
    let set = TensorSet::allocate(memory, &[spec]).unwrap();
    let weight = set.ids().next().unwrap();
    let (_, packed) = Graph::build(8, |builder| {
        let (x, _) = builder.input(ElementType::F32, [k, m, 1, 1]);
        builder.mul_mat_packed(builder.stored(&set, weight), x).is_some()
    });
    assert!(!packed);
}
