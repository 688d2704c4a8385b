//! Copies that are there already.

use super::*;

#[test]
fn a_copy_is_found_by_what_it_holds_and_used_where_it_lies() {
    let fixture = Fixture::new();
    let roots = tempfile::tempdir().unwrap();
    let deep = roots.path().join("models--x").join("snapshots").join("abc");
    std::fs::create_dir_all(&deep).unwrap();
    let roots = [PathBuf::from("/nowhere"), roots.path().to_owned()];
    assert!(find_local(&fixture.manifest, &roots).is_none());
    // Another model of the same length comes first by name.
    let mut other = fixture.bytes.to_vec();
    other[40] ^= 1;
    std::fs::write(deep.join("a.gguf"), other).unwrap();
    assert!(find_local(&fixture.manifest, &roots).is_none());
    let copy = deep.join("sha256-0123");
    std::fs::write(&copy, &*fixture.bytes).unwrap();
    let found = find_local(&fixture.manifest, &roots).unwrap();
    assert_eq!(found.path(), copy);
    assert_eq!(found.directory().unwrap().layers.len(), LAYERS as usize);
}

#[cfg(unix)]
#[test]
fn a_copy_behind_a_link_is_found() {
    let fixture = Fixture::new();
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join("model.gguf");
    std::os::unix::fs::symlink(&fixture.origin, &link).unwrap();
    // A link in a circle ends the search no later.
    std::os::unix::fs::symlink(root.path(), root.path().join("again")).unwrap();
    let found = find_local(&fixture.manifest, &[root.path().to_owned()]).unwrap();
    assert_eq!(found.path(), link);
}

#[test]
fn a_damaged_copy_is_noticed_block_by_block() {
    let fixture = Fixture::new();
    let mut bytes = fixture.bytes.to_vec();
    let hit = bytes.len() - 5;
    bytes[hit] ^= 1;
    std::fs::write(&fixture.origin, bytes).unwrap();
    let mut local = LocalModel::open(&fixture.origin, &fixture.manifest).unwrap();
    let last = fixture.manifest.block_count() - 1;
    let wrong = local.verify(&fixture.all_blocks(), |_| {}).unwrap();
    assert_eq!(wrong, BTreeSet::from([last]));
    assert_eq!(local.read_block(last).unwrap(), None);
    assert!(local.read_block(last - 1).unwrap().is_some());
    assert_eq!(local.read_block(last + 1).unwrap(), None);
}

#[test]
fn a_copy_that_was_cut_is_none() {
    let fixture = Fixture::new();
    std::fs::write(&fixture.origin, &fixture.bytes[..fixture.bytes.len() - 1]).unwrap();
    assert!(LocalModel::open(&fixture.origin, &fixture.manifest).is_none());
}

#[test]
fn roots_begin_with_the_folder_that_was_named() {
    let roots = model_roots(Some(Path::new("mine")));
    assert_eq!(roots[0], Path::new("mine"));
}
