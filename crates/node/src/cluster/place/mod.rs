//! Where layers go: from what devices have measured to a plan, and whether a plan is worth a move.
//!
//! Everything here decides and nothing acts: no connections, no clock, no files. `profile` is what a
//! device says of itself, `links` how devices reach each other, `question` both as the planner's
//! problem, `placement` its answer as a route, `stages` what each stop of a route should take,
//! `correction` how far that was wrong, `moving` what a move costs and brings.

mod correction;
mod links;
mod moving;
mod placement;
mod profile;
mod question;
mod stages;
#[cfg(test)]
mod tests;

pub(crate) use correction::Corrections;
pub(crate) use links::{KnownLinks, Way};
pub(crate) use moving::{Load, Move};
pub(crate) use placement::{InForce, NoPlacement, PlacedMember, Placement, place};
pub(crate) use profile::Surveyed;
pub(crate) use question::{Allowance, Candidate, Copies, Goal, Question};
