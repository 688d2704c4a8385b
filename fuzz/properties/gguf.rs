//! What holds of every file that the GGUF reader accepts. The fuzz targets and the tests of
//! `motley-model` assert it alike.

use motley_model::{Gguf, ModelDirectory, Value, VocabularySummary, write_metadata_only};

/// Tensors lie in a file of `file_bytes`, whole and apart; what was counted is there; a model's
/// directory stays inside its file.
pub(crate) fn assert_trustworthy(gguf: &Gguf<'_>, file_bytes: u64) {
    assert_tensors(gguf, file_bytes);
    assert_metadata(gguf);
    let _ = VocabularySummary::from_file(gguf);
    if let Ok(model) = ModelDirectory::from_files(std::slice::from_ref(gguf)) {
        assert_eq!(model.layers.len(), model.hyper.layers.len());
        for tensor in model.tensors() {
            assert_eq!(tensor.file_index, 0);
            assert!(tensor.offset + tensor.bytes <= file_bytes);
        }
    }
}

fn assert_tensors(gguf: &Gguf<'_>, file_bytes: u64) {
    let mut spans = Vec::new();
    for tensor in gguf.tensors() {
        let end = tensor.offset.checked_add(tensor.bytes).expect("an end that can be counted");
        assert!(end <= file_bytes, "a tensor ends behind the file");
        assert!(tensor.offset >= gguf.data_offset(), "a tensor begins in the directory");
        assert!((1..=4).contains(&tensor.dimensions));
        let rows: u64 = tensor.shape[1..].iter().product();
        let row = tensor.tensor_type.row_bytes(tensor.shape[0]).expect("rows of whole blocks");
        assert_eq!(tensor.bytes, row * rows);
        spans.push((tensor.offset, end));
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two tensors share bytes");
}

fn assert_metadata(gguf: &Gguf<'_>) {
    for (_, value) in gguf.metadata() {
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    let copy = write_metadata_only(gguf);
    let copy = Gguf::parse(&copy, copy.len() as u64).expect("a copy is as good as its source");
    let keys = |gguf: &Gguf<'_>| gguf.metadata().iter().map(|(key, _)| key.to_string()).collect();
    let mut source: Vec<String> = keys(gguf);
    source.retain(|key| key != "general.alignment");
    let copied: Vec<String> = keys(&copy);
    assert_eq!(copied, source);
}
