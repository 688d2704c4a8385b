//! Models with a mixture of experts: what is read of them, what they cost, and what is refused.

mod support;

use expect_test::{Expect, expect};
use motley_model::{Architecture, Experts, ModelDirectory, TensorType};

use support::{
    Blueprint, EMBEDDING, EXPERTS, EXPERTS_USED, FEED_FORWARD, HEAD, HEADS, KV_HEADS, Setting,
    parse,
};

fn directory(blueprint: &Blueprint) -> ModelDirectory {
    let bytes = blueprint.bytes();
    ModelDirectory::from_files(&[parse(&bytes).expect("a GGUF file")]).expect("a model")
}

fn mixtral() -> Blueprint {
    let mut blueprint = Blueprint::new(Architecture::Llama);
    blueprint.set("llama.expert_count", Setting::U32(u32::try_from(EXPERTS).expect("small")));
    blueprint.set("llama.expert_used_count", Setting::U32(2));
    (0..7).for_each(|layer| blueprint.feed_forward(true, layer));
    blueprint
}

fn check_refused(blueprint: &Blueprint, expected: Expect) {
    let bytes = blueprint.bytes();
    let refused = ModelDirectory::from_files(&[parse(&bytes).expect("a GGUF file")]);
    expected.assert_eq(&refused.expect_err("must be refused").to_string());
}

#[test]
fn experts_are_read_with_the_length_of_one() {
    for blueprint in [Blueprint::new(Architecture::Qwen3Moe), mixtral()] {
        let model = directory(&blueprint);
        assert_eq!(model.hyper.experts, Some(Experts { count: 5, used: 2 }));
        for (shape, layer) in model.hyper.layers.iter().zip(&model.layers) {
            assert_eq!(shape.feed_forward_length as u64, FEED_FORWARD);
            let [gate, up, down] = layer.experts().expect("experts");
            assert_eq!(gate.shape, [EMBEDDING, FEED_FORWARD, EXPERTS, 1]);
            assert_eq!((up.shape, down.shape[2]), (gate.shape, EXPERTS));
        }
    }
    let dense = directory(&Blueprint::new(Architecture::Qwen3));
    assert_eq!(dense.hyper.experts, None);
    assert_eq!(dense.layers[0].dense_bytes(), dense.layers[0].bytes());
    assert_eq!((dense.layers[0].expert_bytes(), dense.layers[0].experts()), (0, None));
}

#[test]
fn a_file_without_the_length_of_one_shares_that_of_a_whole_network() {
    let mut blueprint = Blueprint::new(Architecture::Qwen3Moe);
    blueprint.unset("qwen3moe.expert_feed_forward_length");
    let whole = u32::try_from(FEED_FORWARD * EXPERTS_USED).expect("small");
    blueprint.set("qwen3moe.feed_forward_length", Setting::U32(whole));
    assert_eq!(directory(&blueprint).hyper.layers[0].feed_forward_length as u64, FEED_FORWARD);
}

#[test]
fn bytes_of_experts_stand_apart_and_only_used_ones_compute() {
    let model = directory(&Blueprint::new(Architecture::Qwen3Moe));
    let attention = 2 * EMBEDDING * (HEADS + KV_HEADS) * HEAD;
    let expert = 3 * EMBEDDING * FEED_FORWARD;
    let router = EMBEDDING * EXPERTS;
    let norms = 4 * (2 * EMBEDDING + 2 * HEAD);
    let layer = &model.layers[3];
    assert_eq!(layer.expert_bytes(), expert / 32 * 18);
    assert_eq!(layer.dense_bytes(), attention / 32 * 18 + 4 * router + norms);
    assert_eq!(layer.bytes(), layer.dense_bytes() + EXPERTS * layer.expert_bytes());
    let products = attention + router + EXPERTS_USED * expert;
    assert_eq!(model.layer_flops_per_token(3, 0), 2 * products);
}

#[test]
fn experts_that_no_graph_has_are_refused() {
    let qwen = || Blueprint::new(Architecture::Qwen3Moe);
    let with = |mut blueprint: Blueprint, key: &str, number: u32| {
        blueprint.set(key, Setting::U32(number));
        blueprint
    };
    let check = check_refused;
    check(
        &with(qwen(), "qwen3moe.expert_count", 0),
        expect!["metadata key 'qwen3moe.expert_count' is 0, which is not supported for qwen3moe"],
    );
    check(
        &with(qwen(), "qwen3moe.expert_used_count", 6),
        expect![
            "metadata key 'qwen3moe.expert_used_count' is 6, which is not supported for qwen3moe"
        ],
    );
    check(
        &with(qwen(), "qwen3moe.expert_count", 513),
        expect!["metadata key 'qwen3moe.expert_count' is 513, allowed are 0 to 512"],
    );
    check(
        &with(qwen(), "qwen3moe.expert_count", 4),
        expect![
            "tensor 'blk.0.ffn_gate_exps.weight' has shape [64, 96, 5], expected is [64, 96, 4]"
        ],
    );
    check(
        &with(mixtral(), "llama.expert_group_count", 2),
        expect!["metadata key 'llama.expert_group_count' is 2, which is not supported for llama"],
    );
    check(
        &with(Blueprint::new(Architecture::Qwen3), "qwen3.expert_count", 8),
        expect!["metadata key 'qwen3.expert_count' is 8, which is not supported for qwen3"],
    );
    check(
        &with(Blueprint::new(Architecture::Llama), "llama.expert_count", 8),
        expect!["metadata key 'llama.expert_used_count' is 0, which is not supported for llama"],
    );
    let mut without_router = qwen();
    without_router.remove("blk.2.ffn_gate_inp.weight");
    check(
        &without_router,
        expect!["tensor 'blk.2.ffn_gate_inp.weight' is missing, expected with shape [64, 5]"],
    );
    let mut biased = mixtral();
    biased.tensor("blk.0.ffn_gate.bias", &[FEED_FORWARD], TensorType::F32);
    check(
        &biased,
        expect![
            "1 tensors are not used by architecture 'llama', the first is 'blk.0.ffn_gate.bias'"
        ],
    );
}
