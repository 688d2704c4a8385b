//! Why a plan is as it is, what would make it better, and how it looks (PLANNER 7, DESIGN 7).
//!
//! Everything is computed from the problem, the plan and re-planning; words are made last.

mod changes;
mod drawing;
mod facts;
mod figures;
mod refusal;
#[cfg(test)]
pub(crate) mod sample;
mod svg;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod words;

pub use changes::{Change, ChangeEffect};
pub use drawing::{Drawing, DrawnReplica, Lane, LaneRun};
pub use facts::{
    Basis, Explanation, NextLayer, NextLayerPlace, ReplicaFacts, SingleDevice, SlotRoom,
    UnusedDevice, UsedDevice, explain, explain_as_it_is,
};
pub use refusal::{Refusal, explain_refusal};
pub use terminal::Ink;

pub(crate) use figures::{bytes, time};
