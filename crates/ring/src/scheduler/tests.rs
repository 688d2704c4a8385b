//! Schedules of small cases.
