//! A command is a list of named steps, run in order, timed and summed up in a table.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::cache::Workplace;

/// One thing a command does.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Whether the steps after it are pointless when it fails.
    pub(crate) essential: bool,
    pub(crate) run: fn(&Workplace) -> Result<Outcome>,
}

/// How a step ended that did not fail.
pub(crate) enum Outcome {
    Passed,
    /// There was nothing to do, and why.
    Skipped(&'static str),
}

struct Line {
    name: &'static str,
    result: String,
    seconds: f64,
}

/// Runs the steps, prints the table, and fails if any step failed.
pub(crate) fn run(steps: &[Step], workplace: &Workplace) -> Result<()> {
    let mut table = Vec::new();
    let mut failed = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        eprintln!("\n=> [{}/{}] {}", index + 1, steps.len(), step.name);
        let started = Instant::now();
        let outcome = (step.run)(workplace);
        let result = match &outcome {
            Ok(Outcome::Passed) => "ok".to_owned(),
            Ok(Outcome::Skipped(reason)) => format!("skipped: {reason}"),
            Err(error) => {
                eprintln!("   {} failed: {error:#}", step.name);
                failed.push(step.name);
                "FAILED".to_owned()
            }
        };
        table.push(Line { name: step.name, result, seconds: started.elapsed().as_secs_f64() });
        if outcome.is_err() && step.essential {
            break;
        }
    }
    print(&table);
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn print(table: &[Line]) {
    let width = table.iter().map(|line| line.name.len()).max().unwrap_or(0);
    println!();
    for line in table {
        println!("{:width$}  {:>7.1} s  {}", line.name, line.seconds, line.result);
    }
    println!("{:width$}  {:>7.1} s", "total", table.iter().map(|line| line.seconds).sum::<f64>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn fails(_: &Workplace) -> Result<Outcome> {
        bail!("on purpose")
    }

    fn passes(_: &Workplace) -> Result<Outcome> {
        Ok(Outcome::Passed)
    }

    fn skips(_: &Workplace) -> Result<Outcome> {
        Ok(Outcome::Skipped("nothing to do"))
    }

    fn check(steps: &[Step], expected: Option<&str>) {
        let nowhere = PathBuf::new;
        let workplace = Workplace {
            root: nowhere(),
            shared: None,
            models: nowhere(),
            tools: nowhere(),
            logs: nowhere(),
            target: nowhere(),
        };
        let error = run(steps, &workplace).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), expected);
    }

    #[test]
    fn steps_after_a_failure_still_run_unless_it_was_essential() {
        let step = |name, essential, run| Step { name, essential, run };
        check(&[step("a", true, passes), step("b", false, skips)], None);
        let last = step("c", false, fails);
        check(&[step("a", false, fails), step("b", false, passes), last], Some("failed: a, c"));
        check(&[step("a", true, fails), step("b", false, passes), last], Some("failed: a"));
    }
}
