//! Manifests: from files, from bytes, from the cache.

use super::*;

#[test]
fn a_manifest_survives_its_bytes_and_the_digest_names_the_content() {
    let fixture = Fixture::new();
    let manifest = &fixture.manifest;
    assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), **manifest);
    assert_eq!(manifest.bytes(), fixture.bytes.len() as u64);
    let copy = fixture.store.with_extension("gguf");
    std::fs::copy(&fixture.origin, &copy).unwrap();
    let again = Manifest::of_files_in(Some(BLOCK_BYTES), std::slice::from_ref(&copy), |_, _| {});
    assert_eq!(again.unwrap().digest(), manifest.digest(), "names do not matter");
    let mut changed = fixture.bytes.to_vec();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&copy, changed).unwrap();
    let changed = Manifest::of_files_in(Some(BLOCK_BYTES), &[copy], |_, _| {});
    assert_ne!(changed.unwrap().digest(), manifest.digest());
}

#[test]
fn every_block_has_a_place_and_together_they_are_the_file() {
    let fixture = Fixture::new();
    let manifest = &fixture.manifest;
    let mut end = 0;
    for index in 0..manifest.block_count() {
        let place = manifest.place(index).unwrap();
        assert_eq!((place.file, place.offset), (0, end));
        end += place.bytes as u64;
        let range = usize::try_from(place.offset).unwrap()..usize::try_from(end).unwrap();
        assert!(manifest.is_block(index, &fixture.bytes[range]));
    }
    assert_eq!(end, manifest.bytes());
    assert_eq!(manifest.place(manifest.block_count()), None);
    assert!(!manifest.is_block(manifest.block_count(), &[]));
}

#[test]
fn damaged_and_hostile_manifests_are_refused() {
    let encoded = Fixture::new().manifest.encode();
    for length in 0..encoded.len().min(200) {
        assert!(Manifest::decode(&encoded[..length]).is_err(), "{length} bytes");
    }
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = encoded.clone();
        change(&mut bytes);
        Manifest::decode(&bytes).unwrap_err()
    };
    let is_damaged =
        |error: ManifestFormatError| matches!(error, ManifestFormatError::Damaged { .. });
    assert_eq!(damaged(&|bytes| bytes[0] = 0), ManifestFormatError::Magic);
    assert_eq!(damaged(&|bytes| bytes[4] = 9), ManifestFormatError::Version { version: 9 });
    // Block lengths of 0, of no power of two, and of 2 GiB; no file, four billion files.
    assert!(is_damaged(damaged(&|bytes| bytes[8..12].fill(0))));
    assert!(is_damaged(damaged(&|bytes| bytes[8] = 1)));
    assert!(is_damaged(damaged(&|bytes| bytes[8..12].copy_from_slice(&[0, 0, 0, 128]))));
    assert!(is_damaged(damaged(&|bytes| bytes[12..16].fill(0))));
    assert!(is_damaged(damaged(&|bytes| bytes[12..16].fill(255))));
    // A file longer than its hashes, an endless one, and metadata longer than the file.
    assert!(is_damaged(damaged(&|bytes| bytes[20] = 255)));
    assert!(is_damaged(damaged(&|bytes| bytes[16..24].fill(255))));
    assert!(is_damaged(damaged(&|bytes| bytes[24..32].fill(255))));
    assert!(is_damaged(damaged(&|bytes| bytes.push(0))));
}

#[test]
fn only_models_have_manifests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    std::fs::write(&path, b"GIF89a, which is no model file at all").unwrap();
    let of = |path: &Path| Manifest::of_files(&[path.to_owned()], |_, _| {}).unwrap_err();
    assert!(matches!(of(&path), ManifestError::Format { .. }));
    std::fs::write(&path, &model_bytes()[..1000]).unwrap();
    assert!(matches!(of(&path), ManifestError::Format { .. }));
    assert!(matches!(of(folder.path()), ManifestError::NotRegular { .. }));
    assert!(matches!(of(Path::new("/nowhere")), ManifestError::File { .. }));
    #[cfg(unix)]
    assert!(matches!(of(Path::new("/dev/zero")), ManifestError::NotRegular { .. }));
}

#[test]
fn metadata_of_any_length_is_found_whole() {
    let tokens: Vec<String> = (0..100_000).map(|token| format!("token number {token}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut writer = GgufWriter::new();
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        writer.metadata(key, MetadataValue::Strings(&tokens)).unwrap();
    }
    writer.tensor("x", &[256], TensorType::F32).unwrap();
    let mut out = writer.begin(Vec::new()).unwrap();
    out.write_all(&[1; 1024]).unwrap();
    let bytes = out.finish().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let manifest = Manifest::of_files(&[path], |_, _| {}).unwrap();
    assert!(bytes.len() > 4 << 20, "far longer than a first guess");
    assert_eq!(manifest.files()[0].metadata_bytes, bytes.len() as u64 - 1024);
}

#[test]
fn an_unchanged_file_is_hashed_once() {
    let fixture = Fixture::new();
    let paths = [fixture.origin.clone()];
    let folder = fixture.store.join("manifests");
    let hashed = |cache: &ManifestCache| {
        let mut bytes = 0;
        let manifest = cache.of_files(&paths, |done, _| bytes = done).unwrap();
        (manifest.digest(), bytes)
    };
    let cache = ManifestCache::new(&folder);
    let all = fixture.bytes.len() as u64;
    let (digest, bytes) = hashed(&cache);
    assert_eq!(bytes, all);
    assert_eq!(hashed(&cache), (digest, 0));
    // A damaged entry is none.
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let mut kept = std::fs::read(&path).unwrap();
        kept[100] ^= 1;
        std::fs::write(&path, kept).unwrap();
    }
    assert_eq!(hashed(&cache), (digest, all));
    // A changed file is another.
    let mut changed = fixture.bytes.to_vec();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&fixture.origin, changed).unwrap();
    let later = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_900_000_000);
    std::fs::File::options()
        .write(true)
        .open(&fixture.origin)
        .unwrap()
        .set_modified(later)
        .unwrap();
    let (other, bytes) = hashed(&cache);
    assert_eq!(bytes, all);
    assert_ne!(other, digest);
}

#[test]
fn blocks_are_a_thousandth_of_a_model_within_limits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    std::fs::write(&path, model_bytes()).unwrap();
    let manifest = Manifest::of_files(&[path], |_, _| {}).unwrap();
    assert_eq!(manifest.block_bytes(), 64 << 10);
}

#[test]
fn what_does_not_fit_into_a_frame_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    // Its bytes take no place on the disk; nothing reads them.
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(600 << 30).unwrap();
    let mut read = 0;
    let made = Manifest::of_files(&[path], |done, _| read = done);
    assert!(matches!(made, Err(ManifestError::TooLarge)), "{made:?}");
    assert_eq!(read, 0);
}

#[test]
fn the_length_of_an_encoding_is_known_before_it_is_made() {
    let fixture = Fixture::new();
    for block_bytes in [1 << 10, 64 << 10] {
        let paths = [fixture.origin.clone()];
        let manifest = Manifest::of_files_in(Some(block_bytes), &paths, |_, _| {}).unwrap();
        let lengths: Vec<u64> = manifest.files().iter().map(|file| file.bytes).collect();
        assert_eq!(encoded_bytes(&lengths, block_bytes), manifest.encode().len() as u64);
    }
}
