//! The study's file: clusters as a lab describes them, with the model that each runs.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::super::description::{self, Description};

/// What every cluster is asked.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    pub(super) prompt_tokens: u32,
    pub(super) answer_tokens: u32,
    /// How often it is asked; of the answers the median counts.
    pub(super) rounds: u32,
}

/// One cluster of the study.
#[derive(Debug, PartialEq)]
pub(super) struct Case {
    pub(super) name: String,
    /// A file below the folder of models; below `made/` one that `cargo xtask fixtures` makes.
    pub(super) model: String,
    pub(super) load: Load,
    /// The lab's description as text, for its emulator of links, ...
    pub(super) text: String,
    /// ... and read.
    pub(super) description: Description,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StudyText {
    load: Load,
    cluster: Vec<toml::Table>,
}

/// Reads the study's file.
pub(super) fn parse(text: &str) -> Result<Vec<Case>> {
    let study: StudyText = toml::from_str(text)?;
    let mut names = BTreeSet::new();
    let mut cases = Vec::new();
    for (index, table) in study.cluster.into_iter().enumerate() {
        let case = case(table, study.load).with_context(|| format!("cluster {}", index + 1))?;
        ensure!(names.insert(case.name.clone()), "two clusters are called `{}`", case.name);
        cases.push(case);
    }
    ensure!(!cases.is_empty(), "a study needs at least one [[cluster]]");
    Ok(cases)
}

/// What is not the study's own is the lab's.
fn case(mut table: toml::Table, load: Load) -> Result<Case> {
    let mut word = |key: &str| match table.remove(key) {
        Some(toml::Value::String(text)) if !text.is_empty() => Ok(text),
        _ => bail!("{key}: must be a text"),
    };
    let (name, model) = (word("name")?, word("model")?);
    let answer_tokens = match table.remove("answer_tokens") {
        None => load.answer_tokens,
        Some(value) => value.try_into().context("answer_tokens")?,
    };
    let load = Load { answer_tokens, ..load };
    ensure!(load.answer_tokens > 1, "{name}: a time per token needs two tokens");
    let text = table.to_string();
    let description = description::parse(&text).with_context(|| name.clone())?;
    Ok(Case { name, model, load, text, description })
}

/// Keeps the cases that are named, in the study's order; all without a name.
pub(super) fn only(cases: Vec<Case>, names: &[String]) -> Result<Vec<Case>> {
    for name in names {
        if !cases.iter().any(|case| case.name == *name) {
            let known: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
            bail!("no cluster is called `{name}`; there are {}", known.join(", "));
        }
    }
    let wanted = |case: &Case| names.is_empty() || names.contains(&case.name);
    Ok(cases.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    use expect_test::expect;

    const LOAD: &str = "[load]\nprompt_tokens = 512\nanswer_tokens = 48\nrounds = 2\n";
    const ONE: &str = "[[cluster]]\nname = \"a\"\nmodel = \"m.gguf\"\n\
                       switch = { delay_ms = 1.0 }\ndevice = [{ name = \"x\", memory_mib = 7 }]\n";

    fn error(text: &str) -> String {
        format!("{:#}", parse(&format!("{LOAD}{text}")).expect_err("the text is wrong"))
    }

    #[test]
    fn a_cluster_is_a_lab_with_a_model() {
        let more = "answer_tokens = 8\n";
        let cases = parse(&format!("{LOAD}{ONE}{more}")).expect("the text is right");
        let [case] = cases.as_slice() else { panic!("one cluster was described") };
        assert_eq!((case.name.as_str(), case.model.as_str()), ("a", "m.gguf"));
        assert_eq!(case.load, Load { prompt_tokens: 512, answer_tokens: 8, rounds: 2 });
        assert_eq!(case.description.devices[0].memory_mib, Some(7));
        assert_eq!(case.description.devices[0].port.delay_ms, 1.0);
        assert_eq!(description::parse(&case.text).expect("it is read again"), case.description);
    }

    #[test]
    fn wrong_clusters_are_named() {
        expect!["cluster 1: name: must be a text"].assert_eq(&error("[[cluster]]\nname = 1\n"));
        expect!["two clusters are called `a`"].assert_eq(&error(&format!("{ONE}{ONE}")));
        expect!["cluster 1: a: a time per token needs two tokens"]
            .assert_eq(&error(&format!("{ONE}answer_tokens = 1\n")));
        let told = error(&format!("{ONE}disk = 3\n"));
        assert!(
            told.starts_with("cluster 1: a: ") && told.contains("unknown field `disk`"),
            "{told}"
        );
    }

    #[test]
    fn only_known_names_are_chosen() {
        let cases = || parse(&format!("{LOAD}{ONE}")).expect("the text is right");
        assert_eq!(only(cases(), &[]).expect("all").len(), 1);
        assert_eq!(only(cases(), &["a".to_owned()]).expect("it is there").len(), 1);
        let error = only(cases(), &["b".to_owned()]).expect_err("it is not");
        expect!["no cluster is called `b`; there are a"].assert_eq(&error.to_string());
    }

    #[test]
    fn the_study_has_clusters_enough() {
        let text = include_str!("../../../../lab/study.toml");
        assert!(parse(text).expect("it is right").len() >= 12);
    }
}
