//! Which layouts of weights are faster here, kept between runs, so that only the first start with a
//! model measures them.

use std::fs;
use std::path::PathBuf;

use motley_engine::{
    Engine, EngineOptions, Layout, LayoutChoice, LoadError, MeasuredLayout, Model,
};
use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::tables::shape_digest;
use super::{Effort, Options, cache, cache_folder};

/// What a choice depends on.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    facts: Facts,
    /// Digest of shapes and types of all tensors and of the numbers of the graph.
    shape: String,
}

/// [`MeasuredLayout`], as it is written down; the threads are the key's.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    element: String,
    #[serde(with = "KeptLayout")]
    layout: Layout,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Layout", rename_all = "lowercase")]
enum KeptLayout {
    Plain,
    Packed,
    PackedWithin { least: usize, most: usize },
}

/// Loads an engine, by what an earlier run has measured of the layouts of this model's weights.
///
/// # Errors
/// As [`Engine::load`].
pub(crate) fn load_engine(model: &Model, options: &EngineOptions) -> Result<Engine, LoadError> {
    if options.layout == LayoutChoice::Plain {
        return Engine::load(model, options);
    }
    let book = Book::new(cache_folder(), model, options.threads.threads);
    book.tell(model);
    let known = model.layouts();
    let engine = Engine::load(model, options)?;
    if model.layouts() != known {
        book.keep(model);
    }
    Ok(engine)
}

/// Forgets what was measured of the layouts of this model's weights.
pub(super) fn forget(options: &Options, model: &Model) {
    let book = Book::new(options.cache.clone(), model, options.threads);
    // There may be none; one that cannot be removed stays true enough.
    let _ = fs::remove_file(&book.path);
}

/// The file of choices for a model with a number of threads.
struct Book {
    path: PathBuf,
    key: Key,
    threads: usize,
}

impl Book {
    fn new(folder: PathBuf, model: &Model, threads: usize) -> Self {
        let shape = shape_digest(model.directory());
        let path = folder.join(format!("layouts-{}-{threads}.json", &shape[..16]));
        Self { path, key: Key { facts: Facts::gather(threads, &folder), shape }, threads }
    }

    fn tell(&self, model: &Model) {
        let kept: Option<Vec<Kept>> = cache::load(&self.path, &self.key, Effort::Quick);
        let measured = kept.into_iter().flatten().map(|Kept { element, layout }| MeasuredLayout {
            element,
            threads: self.threads,
            layout,
        });
        model.know_layouts(measured);
    }

    fn keep(&self, model: &Model) {
        let measured = model.layouts().into_iter().filter(|it| it.threads == self.threads);
        let kept: Vec<Kept> = measured
            .map(|MeasuredLayout { element, layout, .. }| Kept { element, layout })
            .collect();
        // A folder that cannot be written means only that the next run measures again.
        let _ = cache::store(&self.path, &self.key, Effort::Quick, &kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_model::small_model;

    #[test]
    fn choices_outlive_a_run_and_belong_to_their_threads() {
        let Some(model) = small_model() else { return };
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::new(None, Some(1), Effort::Quick).unwrap();
        options.cache = folder.path().to_owned();
        let of = |threads, layout| MeasuredLayout { element: "q4_1".to_owned(), threads, layout };
        let measured =
            [of(1, Layout::PackedWithin { least: 8, most: usize::MAX }), of(2, Layout::Packed)];
        model.know_layouts(measured.clone());
        Book::new(folder.path().to_owned(), &model, 1).keep(&model);
        for (threads, expected) in [(1, &measured[..1]), (2, &[])] {
            let again = Model::open(model.path()).unwrap();
            Book::new(folder.path().to_owned(), &again, threads).tell(&again);
            assert_eq!(again.layouts(), expected);
        }
        forget(&options, &model);
        let again = Model::open(model.path()).unwrap();
        Book::new(folder.path().to_owned(), &again, 1).tell(&again);
        assert_eq!(again.layouts(), []);
    }
}
