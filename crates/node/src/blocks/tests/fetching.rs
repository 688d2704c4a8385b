//! Blocks from sources into the sparse file.

use super::*;

#[test]
fn half_of_the_layers_costs_half_of_the_bytes_and_reads_the_same() {
    let fixture = Fixture::new();
    let mut model = fixture.open();
    let directory = fixture.directory(&mut model);
    let metadata = metadata_blocks(&fixture.manifest);
    let wanted = layers(2..6);
    let blocks = blocks_for(&fixture.manifest, &directory, &wanted);
    let mut heard = Vec::new();
    let source = Box::new(fixture.source("a"));
    let report = fetch(&mut model, &blocks, vec![source], |progress| heard.push(progress)).unwrap();

    let needed: u64 = tensors(&directory, &wanted).iter().map(|tensor| tensor.bytes).sum();
    let fetched = report.bytes + bytes_of(&fixture.manifest, &metadata);
    let metadata_bytes = fixture.manifest.files()[0].metadata_bytes;
    let over = fetched.abs_diff(needed + metadata_bytes) as f64 / needed as f64;
    assert!(over <= 0.02, "{fetched} bytes were fetched for {needed}");
    let last = heard.last().unwrap();
    assert_eq!((last.done_bytes, last.total_bytes), (report.bytes, report.bytes));
    assert!(heard.windows(2).all(|pair| pair[0].done_bytes < pair[1].done_bytes));

    for tensor in tensors(&directory, &wanted) {
        let range = tensor.offset..tensor.offset + tensor.bytes;
        let copy = read_range(model.path(), range.clone());
        assert!(copy == read_range(&fixture.origin, range), "{} differs", tensor.name);
    }
    let (full, copy) = (fixture.origin.metadata().unwrap(), model.path().metadata().unwrap());
    assert_eq!(copy.len(), full.len(), "the file has its full length");
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        assert!(copy.blocks() * 512 < full.len() * 3 / 4, "what was not fetched takes no space");
    }
}

#[test]
fn embedding_and_head_are_fetched_only_where_they_are_used() {
    let fixture = Fixture::new();
    let mut model = fixture.open();
    let directory = fixture.directory(&mut model);
    let names = |embedding, head| {
        let wanted = WantedParts { layers: Vec::new(), embedding, head };
        let found = tensors(&directory, &wanted);
        found.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(false, false), [""; 0]);
    assert_eq!(names(true, false), ["token_embd.weight"]);
    assert_eq!(names(false, true), ["output_norm.weight", "output.weight"]);
    let beyond = layers(6..99);
    assert_eq!(tensors(&directory, &beyond).len(), 2 * 9, "layers that are not there are none");
}

#[test]
fn another_plan_fetches_only_what_is_new() {
    let fixture = Fixture::new();
    let mut model = fixture.open();
    let directory = fixture.directory(&mut model);
    let before = blocks_for(&fixture.manifest, &directory, &layers(0..4));
    fetch(&mut model, &before, vec![Box::new(fixture.source("a"))], |_| {}).unwrap();
    drop(model);
    let mut model = fixture.open();
    let after = blocks_for(&fixture.manifest, &directory, &layers(2..6));
    let source = fixture.source("a");
    let given = Arc::clone(&source.given);
    let report = fetch(&mut model, &after, vec![Box::new(source)], |_| {}).unwrap();
    let new: BTreeSet<usize> = after
        .difference(&before)
        .copied()
        .filter(|index| !metadata_blocks(&fixture.manifest).contains(index))
        .collect();
    assert_eq!(given.load(Ordering::SeqCst), new.len());
    assert_eq!(report.bytes, bytes_of(&fixture.manifest, &new));
    let two_layers: u64 =
        tensors(&directory, &layers(4..6)).iter().map(|tensor| tensor.bytes).sum();
    assert!(report.bytes.abs_diff(two_layers) as f64 / two_layers as f64 <= 0.02);
}

#[test]
fn an_interrupted_fetch_goes_on_where_it_stopped() {
    let fixture = Fixture::new();
    let all = fixture.all_blocks();
    let half = all.len() / 2;
    let mut model = fixture.open();
    let broken = fixture.source("a").with(Trouble::FailsAfter(half));
    let error = fetch(&mut model, &all, vec![Box::new(broken)], |_| {}).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("; a failed at block") && said.contains("the cable is out"), "{said}");
    drop(model);
    let mut model = fixture.open();
    let report = fetch(&mut model, &all, vec![Box::new(fixture.source("a"))], |_| {}).unwrap();
    assert_eq!(report.blocks, all.len() - half);
    assert!(std::fs::read(model.path()).unwrap() == *fixture.bytes);
}

/// The program was killed between writing blocks and listing them, and some never reached the disk.
#[test]
fn without_its_list_nothing_is_believed_that_is_not_hashed_again() {
    let fixture = Fixture::new();
    let all = fixture.all_blocks();
    let mut model = fixture.open();
    fetch(&mut model, &all, vec![Box::new(fixture.source("a"))], |_| {}).unwrap();
    let (path, folder) = (model.path().to_owned(), model.path().parent().unwrap().to_owned());
    drop(model);
    for damaged_list in [None, Some("torn")] {
        match damaged_list {
            None => std::fs::remove_file(folder.join("blocks")).unwrap(),
            Some(text) => std::fs::write(folder.join("blocks"), text).unwrap(),
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let hit = 3 * BLOCK_BYTES as usize + 17;
        bytes[hit] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let mut model = fixture.open();
        let report = fetch(&mut model, &all, vec![Box::new(fixture.source("a"))], |_| {}).unwrap();
        assert_eq!(report.blocks, 1, "the one that was damaged");
        assert!(std::fs::read(&path).unwrap() == *fixture.bytes);
    }
}

#[test]
fn wrong_content_comes_from_another_source_and_the_wrong_one_is_named() {
    let fixture = Fixture::new();
    let all = fixture.all_blocks();
    let mut model = fixture.open();
    let liar = fixture.source("liar").with(Trouble::Wrong);
    let error = fetch(&mut model, &all, vec![Box::new(liar)], |_| {}).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("; liar sent wrong content for block "), "{said}");
    let given = Arc::new(AtomicUsize::new(0));
    let mut liar = fixture.source("liar").with(Trouble::Wrong);
    liar.given = Arc::clone(&given);
    let sources: Vec<Box<dyn BlockSource>> =
        vec![Box::new(liar), Box::new(fixture.source("honest"))];
    let report = fetch(&mut model, &all, sources, |_| {}).unwrap();
    assert_eq!(report.bytes_by_source.keys().collect::<Vec<_>>(), ["honest"]);
    assert!(given.load(Ordering::SeqCst) <= 1, "a liar is asked once");
    assert!(std::fs::read(model.path()).unwrap() == *fixture.bytes);
}

#[test]
fn a_block_that_one_source_lacks_comes_from_another() {
    let fixture = Fixture::new();
    let all = fixture.all_blocks();
    let lacks = |name: &str, index| Box::new(fixture.source(name).with(Trouble::Lacks(index)));
    let mut model = fixture.open();
    let report = fetch(&mut model, &all, vec![lacks("a", 5), lacks("b", 9)], |_| {}).unwrap();
    assert_eq!((report.blocks, report.faults.len()), (all.len(), 0));

    let fixture = Fixture::new();
    let lacks = |name: &str| Box::new(fixture.source(name).with(Trouble::Lacks(5)));
    let mut model = fixture.open();
    let error = fetch(&mut model, &all, vec![lacks("a"), lacks("b")], |_| {}).unwrap_err();
    assert!(matches!(error, FetchError::Nowhere { index: 5, .. }), "{error}");
    let error = fetch(&mut model, &all, Vec::new(), |_| {}).unwrap_err();
    assert!(matches!(error, FetchError::NoSource { .. }), "{error}");
}

#[test]
fn a_full_disk_is_noticed_before_and_while_blocks_are_written() {
    let fixture = Fixture::new();
    let all = fixture.all_blocks();
    let bytes = fixture.manifest.bytes();
    let reserve = 2 << 30;
    let tight = Disk::with(reserve, move |_| Ok(reserve + bytes - 1));
    let source = fixture.source("a");
    let given = Arc::clone(&source.given);
    let mut model =
        PartialModel::open(&fixture.store, Arc::clone(&fixture.manifest), tight).unwrap();
    let error = fetch(&mut model, &all, vec![Box::new(source)], |_| {}).unwrap_err();
    assert!(
        matches!(error, FetchError::Partial(PartialError::DiskFull { needed_bytes, usable_bytes, .. })
            if needed_bytes == bytes && usable_bytes == bytes - 1),
        "{error}"
    );
    assert_eq!(given.load(Ordering::SeqCst), 0, "nothing is fetched that cannot be kept");
    drop(model);

    // Others fill the disk meanwhile.
    let asked = AtomicUsize::new(0);
    let filling = Disk::with(reserve, move |_| {
        let soon_full = asked.fetch_add(1, Ordering::SeqCst) > 10;
        Ok(if soon_full { reserve } else { 1 << 40 })
    });
    let mut model =
        PartialModel::open(&fixture.store, Arc::clone(&fixture.manifest), filling).unwrap();
    let error = fetch(&mut model, &all, vec![Box::new(fixture.source("a"))], |_| {}).unwrap_err();
    assert!(matches!(error, FetchError::Partial(PartialError::DiskFull { .. })), "{error}");
    drop(model);
    let kept = fixture.open();
    assert_eq!(all.iter().filter(|&&index| kept.has(index)).count(), 10, "what came is kept");
}

#[test]
fn blocks_are_given_to_others_only_while_they_are_right() {
    let fixture = Fixture::new();
    let mut model = fixture.open();
    let some: BTreeSet<usize> = (0..8).collect();
    fetch(&mut model, &some, vec![Box::new(fixture.source("a"))], |_| {}).unwrap();
    assert_eq!(model.read_block(3).unwrap().unwrap().len(), BLOCK_BYTES as usize);
    assert_eq!(model.read_block(8).unwrap(), None);
    let mut bytes = std::fs::read(model.path()).unwrap();
    bytes[3 * BLOCK_BYTES as usize] ^= 1;
    std::fs::write(model.path(), &bytes).unwrap();
    assert_eq!(model.read_block(3).unwrap(), None);
    assert!(!model.has(3), "a block that the disk has changed counts as lost");
}

#[test]
fn two_processes_do_not_fetch_one_model_at_once() {
    let fixture = Fixture::new();
    let _first = fixture.open();
    let second = PartialModel::open(&fixture.store, Arc::clone(&fixture.manifest), plenty());
    assert!(matches!(second, Err(PartialError::InUse { .. })));
}

#[test]
fn a_split_model_is_one_manifest_and_its_parts_find_each_other() {
    let outer = tempfile::tempdir().unwrap();
    let parts: Vec<PathBuf> =
        (1..=2).map(|part| outer.path().join(format!("x-{part:05}-of-00002.gguf"))).collect();
    for path in &parts {
        std::fs::write(path, model_bytes()).unwrap();
    }
    let manifest = Arc::new(Manifest::of_files(&parts, |_, _| {}).unwrap());
    let mut model =
        PartialModel::open(&outer.path().join("store"), Arc::clone(&manifest), plenty()).unwrap();
    let all: BTreeSet<usize> = (0..manifest.block_count()).collect();
    let both = [model_bytes(), model_bytes()].concat();
    let source = PartsSource { bytes: both, manifest: Arc::clone(&manifest) };
    fetch(&mut model, &all, vec![Box::new(source)], |_| {}).unwrap();
    let found = motley_model::split_paths(model.path());
    assert_eq!(found.len(), 2);
    for path in found {
        assert!(std::fs::read(path).unwrap() == model_bytes());
    }
}

/// A source of two files of one length.
struct PartsSource {
    bytes: Vec<u8>,
    manifest: Arc<Manifest>,
}

impl BlockSource for PartsSource {
    fn name(&self) -> String {
        "parts".to_owned()
    }

    fn fetch(&mut self, index: usize, _next: Option<usize>) -> Result<Vec<u8>, SourceError> {
        let place = self.manifest.place(index).unwrap();
        let start = usize::try_from(place.offset).unwrap() + place.file * self.bytes.len() / 2;
        Ok(self.bytes[start..start + place.bytes].to_vec())
    }
}
