//! Checks of the source text that no other tool makes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache::Workplace;
use crate::process;
use crate::steps::Outcome;

const LINES_MAX: usize = 800;
const OPENING_LINES_MAX: usize = 10;

/// Files that may be longer, each with the reason why cutting it would make it worse.
const LONG_FILES: &[(&str, &str)] = &[];

/// Where a path of some machine may stand, each with a reason.
const PATHS_ALLOWED: &[(&str, &str)] = &[];

/// Functions outside `ggml` that may hold unsafe code: file, function, reason.
const UNSAFE_ALLOWED: &[(&str, &str, &str)] = &[];

/// Dependencies whose reason `docs/STYLE.md` gives once for all crates.
const EXPLAINED: &[&str] = &["anyhow", "expect-test", "proptest", "thiserror"];

// Written in halves, so that this file passes its own check.
const REMINDERS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("HA", "CK"), concat!("to", "do!")];
const UNSAFE_WORDS: &[&str] = &[concat!("un", "safe"), concat!("un", "safe_code")];
const MACHINE_ROOTS: &[&str] = &["home", "root", "tmp", "Users", "work"];

/// Checks every text file that git knows or would add.
pub(crate) fn run(workplace: &Workplace) -> Result<Outcome> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&workplace.root);
    let listed = process::capture(git, Duration::from_secs(60)).context("tidy needs git")?;
    let listed = String::from_utf8(listed).context("a file name is not UTF-8")?;
    let mut faults = Vec::new();
    for path in listed.split_terminator('\0').filter(|path| is_ours(path)) {
        // A file that was just removed is still listed.
        if let Ok(text) = fs::read_to_string(workplace.root.join(path)) {
            faults.extend(file_faults(path, &text));
            faults.extend(dead_links(&workplace.root, path, &text));
        }
    }
    if !faults.is_empty() {
        bail!("\n   {}\n   docs/STYLE.md has the reasons", faults.join("\n   "));
    }
    Ok(Outcome::Passed)
}

/// Text that people of this project write; data that tests read is taken as it is.
fn is_ours(path: &str) -> bool {
    let data = path.split('/').any(|folder| folder == "fixtures" || folder == "data");
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    let written = matches!(extension, Some("rs" | "toml" | "md" | "sh" | "css" | "js" | "html"));
    path == ".ci/run" || (written && !data)
}

fn file_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        faults.extend(
            line_faults(path, line).iter().map(|fault| format!("{path}:{}: {fault}", index + 1)),
        );
    }
    if !text.is_empty() && !text.ends_with('\n') {
        faults.push(format!("{path}: the last line has no end"));
    }
    let lines = text.lines().count();
    let long = LONG_FILES.iter().any(|(file, _)| *file == path);
    if path.ends_with(".rs") && lines >= LINES_MAX && !long {
        faults.push(format!("{path}: {lines} lines, the limit is {LINES_MAX}"));
    }
    if path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") {
        let opening = text.lines().take_while(|line| line.starts_with("//!")).count();
        if !(1..=OPENING_LINES_MAX).contains(&opening) {
            faults.push(format!(
                "{path}: opens with {opening} lines of docs; 1 to {OPENING_LINES_MAX} say what it \
                 holds, what it must not know and where to start"
            ));
        }
    }
    if path.ends_with(".rs") && !path.starts_with("crates/ggml/") {
        faults.extend(unsafe_faults(path, text));
    }
    if path.starts_with("crates/") && path.ends_with("/Cargo.toml") {
        faults.extend(reasonless_dependencies(path, text));
    }
    faults
}

fn line_faults(path: &str, line: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if line.ends_with([' ', '\t']) {
        faults.push("space at the end".to_owned());
    }
    for reminder in REMINDERS {
        if has_word(line, reminder) {
            faults.push(format!("a leftover reminder ({reminder})"));
        }
    }
    let allowed = PATHS_ALLOWED.iter().any(|(file, _)| *file == path);
    if let Some(root) = MACHINE_ROOTS.iter().find(|root| has_path(line, root))
        && !allowed
    {
        faults.push(format!("a path of one machine (/{root}/...)"));
    }
    faults
}

/// Whether `word` stands in the line with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(joins) && !after.is_some_and(joins)
    })
}

/// Whether an absolute path below `/root` stands in the line; `path/root/x` and addresses do not
/// count.
fn has_path(line: &str, root: &str) -> bool {
    let start = format!("/{root}/");
    line.match_indices(&start).any(|(index, _)| {
        let before = line[..index].chars().next_back();
        let after = line[index + start.len()..].chars().next();
        !before.is_some_and(|found| found.is_alphanumeric() || "._-~/}*".contains(found))
            && after.is_some_and(|found| found.is_alphanumeric() || found == '_')
    })
}

/// Links of a Markdown file to files that are not there.
fn dead_links(root: &Path, path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let folder = root.join(path).parent().map(Path::to_owned).unwrap_or_default();
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link.split('#').next().unwrap_or_default())
        .filter(|link| !link.is_empty() && !link.contains(':') && !folder.join(link).exists())
        .map(|link| format!("{path}: a link leads to {link}, which is not there"))
        .collect()
}

fn unsafe_faults(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let allowed: Vec<_> = UNSAFE_ALLOWED
        .iter()
        .filter(|(file, _, _)| *file == path)
        .filter_map(|(_, function, _)| function_lines(&lines, function))
        .collect();
    let mut faults = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let forbidden = code.contains("forbid(");
        let found = UNSAFE_WORDS.iter().any(|word| has_word(code, word));
        if found && !forbidden && !allowed.iter().any(|range| range.contains(&index)) {
            faults.push(format!("{path}:{}: {} code outside `ggml`", index + 1, UNSAFE_WORDS[0]));
        }
    }
    faults
}

/// The lines of a function, its attributes and comments included.
fn function_lines(lines: &[&str], function: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let named = format!("fn {function}(");
    let start = lines.iter().position(|line| line.contains(&named))?;
    let indent = lines[start].len() - lines[start].trim_start().len();
    let close = format!("{}}}", &lines[start][..indent]);
    let end = start + lines[start..].iter().position(|line| *line == close)?;
    let above = lines[..start].iter().rev().take_while(|line| !line.trim().is_empty()).count();
    Some(start - above..=end)
}

/// A dependency is code that is shipped and not read, so each one says above it why it is there.
fn reasonless_dependencies(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut among_dependencies = false;
    let mut previous = "";
    for line in text.lines() {
        if line.starts_with('[') {
            among_dependencies = line.trim_end_matches(']').ends_with("dependencies");
        } else if among_dependencies && line.starts_with(|first: char| first.is_alphanumeric()) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let known = name.starts_with("motley-") || EXPLAINED.contains(&name);
            if !known && !previous.starts_with('#') {
                faults.push(format!("{path}: {name} has no comment above it that says why"));
            }
        }
        previous = line;
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "crates/model/src/reader.rs";

    #[test]
    fn clean_text_has_no_faults() {
        assert_eq!(file_faults(OURS, "fn f() {}\n"), [""; 0]);
        assert_eq!(file_faults("crates/model/src/lib.rs", "//! Reads.\n"), [""; 0]);
    }

    #[test]
    fn each_fault_of_a_line_is_named() {
        let home = format!("let x = \"/{}/someone\";", MACHINE_ROOTS[0]);
        for (line, fault) in [
            ("fn f() {} ", "space at the end".to_owned()),
            (
                &format!("// {}: later", REMINDERS[0]),
                format!("a leftover reminder ({})", REMINDERS[0]),
            ),
            (&home, "a path of one machine (/home/...)".to_owned()),
        ] {
            assert_eq!(line_faults(OURS, line), [fault]);
        }
        assert_eq!(
            line_faults(OURS, "see https://example.org/home/page, ~/work/x, a/tmp/b"),
            [""; 0]
        );
    }

    #[test]
    fn a_long_file_and_a_missing_opening_are_faults() {
        let long = "fn f() {}\n".repeat(LINES_MAX);
        assert_eq!(file_faults(OURS, &long).len(), 1);
        assert_eq!(file_faults("crates/model/src/lib.rs", "mod reader;\n").len(), 1);
    }

    #[test]
    fn only_ggml_holds_the_word() {
        let word = UNSAFE_WORDS[0];
        let code = format!("{word} {{ f() }}\n// {word} in a comment is fine\n");
        assert_eq!(file_faults(OURS, &code).len(), 1);
        assert_eq!(file_faults("crates/ggml/src/graph.rs", &code).len(), 0);
    }

    #[test]
    fn a_function_reaches_from_its_attributes_to_its_brace() {
        let text =
            "use a;\n\n/// Docs.\n#[attribute]\nfn map(x: u8) {\n    if x {\n    }\n}\nfn g() {}";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(function_lines(&lines, "map"), Some(2..=7));
        assert_eq!(function_lines(&lines, "absent"), None);
    }

    #[test]
    fn links_lead_to_files() {
        let root = Path::new(".");
        let text = "[a](Cargo.toml#x) [b](#here) [c](https://example.org) [d](absent.md)\n";
        assert_eq!(
            dead_links(root, "notes.md", text),
            ["notes.md: a link leads to absent.md, which is not there"]
        );
        assert_eq!(dead_links(root, "notes.rs", text), [""; 0]);
    }

    #[test]
    fn dependencies_need_a_reason() {
        let text = "[package]\nname = \"x\"\n[dependencies]\nmotley-model.workspace = true\n\
                    # Why.\nserde.workspace = true\nthiserror.workspace = true\nlibc.workspace = true\n[lints]\nworkspace = true\n";
        let path = "crates/x/Cargo.toml";
        assert_eq!(
            file_faults(path, text),
            ["crates/x/Cargo.toml: libc has no comment above it that says why"]
        );
    }
}
