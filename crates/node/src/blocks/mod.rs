//! Model files in blocks, named by what they hold: which blocks a device needs, where they come from,
//! and the sparse file they are kept in. It knows no socket; a source of blocks is a trait.
//!
//! Start with [`Manifest::of_files`] on the device that has a model, and with [`PartialModel::open`],
//! [`metadata_blocks`], [`blocks_for`] and [`fetch()`] on one that has not.

mod digest;
mod disk;
mod fetch;
mod layout;
mod local;
mod manifest;
mod partial;

pub(crate) use disk::{DISK_RESERVE_BYTES_DEFAULT, Disk};
pub(crate) use fetch::{BlockSource, Filled, Progress, SourceError, fetch};
pub(crate) use layout::{WantedParts, blocks_for, metadata_blocks};
pub(crate) use local::{LocalModel, find_local, model_roots};
pub(crate) use manifest::{Manifest, ManifestCache};
pub(crate) use partial::{PartialError, PartialModel};

#[cfg(test)]
mod tests;
