//! The built-in data against what the sources publish.

use motley_cluster::{
    Catalogue, Cluster, LayerIndex, ModelProfile, builtin_cluster, builtin_cluster_names,
    builtin_model, builtin_model_names, from_json, from_toml, to_json, to_toml,
};

#[test]
fn derived_models_equal_the_published_sizes() {
    let catalogue = Catalogue::builtin();
    assert_eq!(catalogue.models.len(), 16);
    assert_eq!(builtin_model_names().len(), 16);
    for row in &catalogue.models {
        let model = builtin_model(&row.id).expect("listed");
        let derived: Vec<u64> = (0..model.layers_count())
            .map(|index| model.layer_bytes(LayerIndex::new(index)).count())
            .collect();
        assert_eq!(derived, row.layer_bytes, "{}", row.id);
        assert_eq!(model.embedding_bytes.count(), row.embed_bytes, "{}", row.id);
        assert_eq!(model.output_bytes.count(), row.output_bytes, "{}", row.id);
        assert_eq!(model.file_bytes().count(), row.file_bytes_derived, "{}", row.id);
        if let Some(published) = row.file_gib_published {
            let derived = model.file_bytes().as_gib();
            assert!((derived - published).abs() <= 0.01, "{}: {derived} {published}", row.id);
        }
        let flops: f64 = model.layers[0].matmul_flops.values().map(|f| f.value()).sum();
        assert_eq!(flops, row.layer_matmul_flops_per_token, "{}", row.id);
        let attention = model.layers[0].attention_flops_per_context_token.value();
        assert_eq!(attention, row.attn_flops_per_token_per_ctx_token_layer, "{}", row.id);
        let kv = 2 * model.layers[0].kv_elements_per_token;
        assert_eq!(kv, row.kv_bytes_per_token_layer_f16, "{}", row.id);
        let sent = model.activation_bytes_per_token().count();
        assert_eq!(sent, row.activation_bytes_per_token_f32, "{}", row.id);
    }
}

#[test]
fn section_8_3_sizes_hold() {
    let expected = [
        ("llama-3-8b-q4_k_m", 4.58),
        ("llama-3-70b-q4_k_m", 39.59),
        ("llama-3-70b-q4_k_s", 37.57),
        ("qwen2.5-7b-q4_k_m", 4.36),
        ("qwen2.5-14b-q4_k_m", 8.37),
        ("qwen2.5-32b-q4_k_m", 18.48),
        ("qwen3-30b-a3b-q4_k_m", 17.28),
        ("gpt-oss-20b-mxfp4", 11.27),
        ("qwen2.5-72b-q4_k_m", 44.15),
    ];
    for (id, gib) in expected {
        let model = builtin_model(id).expect("built in");
        assert!((model.file_bytes().as_gib() - gib).abs() <= 0.01, "{id}");
    }
}

#[test]
fn every_device_and_cluster_is_valid_and_survives_both_forms() {
    assert_eq!(Catalogue::builtin().devices.len(), 12);
    for device in &Catalogue::builtin().devices {
        assert_eq!(device.profile("here").name, "here");
    }
    let sizes: Vec<usize> = builtin_cluster_names()
        .iter()
        .map(|name| {
            let cluster = builtin_cluster(name).expect("listed");
            let json = to_json(&cluster).expect("writable");
            assert_eq!(from_json::<Cluster>(&json).expect("readable"), cluster);
            let toml = to_toml(&cluster).expect("writable");
            assert_eq!(from_toml::<Cluster>(&toml).expect("readable"), cluster);
            cluster.devices().len()
        })
        .collect();
    assert_eq!(sizes, [4, 10, 4, 6, 8]);
    assert!(builtin_cluster("nowhere").is_err());
    let e2llm = builtin_cluster("e2llm-8").expect("listed");
    let twins = (e2llm.device(e2llm.find("Dev.3").expect("there")), &e2llm.devices()[3]);
    assert!(twins.0.is_twin_of(twins.1));
    assert!(!twins.0.is_twin_of(&e2llm.devices()[4]));
}

#[test]
fn models_survive_both_forms() {
    let model = builtin_model("gpt-oss-20b-mxfp4").expect("built in");
    let json = to_json(&model).expect("writable");
    assert_eq!(from_json::<ModelProfile>(&json).expect("readable"), model);
    let toml = to_toml(&model).expect("writable");
    assert_eq!(from_toml::<ModelProfile>(&toml).expect("readable"), model);
}

#[test]
fn sources_of_figures_are_known() {
    let catalogue = Catalogue::builtin();
    for device in &catalogue.devices {
        for source in [&device.os.source, &device.memory.usable_vram_gb.source] {
            assert!(catalogue.sources.contains_key(source), "{source}");
        }
    }
}
