//! Products of Q4_1 weights with packed rows, against ggml's own.

use motley_ggml::{
    Backend, ComputeBuffer, Device, ElementType, Graph, TensorSet, TensorSpec, ThreadPool,
    ThreadPoolOptions, quantize_rows,
};

/// Made-up values between -1 and 1.
fn values(count: usize, seed: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0;
    (0..count).map(value).collect()
}

/// The product by ggml and by packed rows, each computed twice, or nothing where this processor has
/// no kernel for that.
fn products(k: usize, n: usize, m: usize, threads: usize) -> Option<[Vec<u32>; 3]> {
    let pool = ThreadPoolOptions { threads, poll_percent: 0, pinned: false };
    let mut backend = Backend::cpu(ThreadPool::new(pool));
    let spec = TensorSpec {
        name: "weight".to_owned(),
        element: ElementType::Q4_1,
        shape: [k as u64, n as u64, 1, 1],
    };
    let set = TensorSet::allocate(Device::cpu().memory(), &[spec]).unwrap();
    let weight = set.ids().next().unwrap();
    let mut bytes = Vec::new();
    quantize_rows(ElementType::Q4_1, &values(k * n, 1), k, &mut bytes).unwrap();
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

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn packed_products_are_ggml_s_to_the_last_bit() {
    let shapes =
        [(32, 1, 4), (64, 2, 8), (576, 33, 9), (1536, 50, 31), (96, 200, 64), (8192, 7, 5)];
    for (k, n, m) in shapes {
        for threads in [1, 3] {
            let Some([theirs, ours, again]) = products(k, n, m, threads) else {
                eprintln!("skipped: this processor has no kernel that gives ggml's bits");
                return;
            };
            assert!(theirs.iter().any(|bits| *bits != 0), "something was computed");
            assert_eq!(ours, theirs, "{n} outputs of {k} elements for {m} rows");
            assert_eq!(again, theirs);
        }
    }
}

#[test]
fn few_rows_are_left_to_ggml() {
    assert!(products(64, 4, 3, 1).is_none());
}
