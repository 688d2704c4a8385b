//! Fetching, listing and removing models, from a hub that the test itself is.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test starts threads, writes files and tells what it skips"
)]

mod common;
#[allow(dead_code, reason = "the tests of the downloads themselves use the rest of it")]
#[path = "../src/pull/tests/server.rs"]
mod server;

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::process::Output;

use common::{motley, stderr, stdout};
use data_encoding::HEXLOWER;
use expect_test::{Expect, expect};
use motley_model::{GgufWriter, TensorType};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use server::{Asked, Server, body, range, status};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const SECRET: &str = "hf_verysecret";

/// A small model file that nothing can run.
fn model(seed: u8) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "none").unwrap();
    writer.tensor("t", &[32 * 1024], TensorType::F32).unwrap();
    let mut data = writer.begin(Vec::new()).unwrap();
    io::Write::write_all(&mut data, &vec![seed; 4 * 32 * 1024]).unwrap();
    data.finish().unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// A repository's files.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"read me".to_vec()),
        ("tiny-Q4_0.gguf", model(1)),
        ("Q8_0/tiny-Q8_0-00001-of-00002.gguf", model(2)),
        ("Q8_0/tiny-Q8_0-00002-of-00002.gguf", model(3)),
        ("tiny-IQ1_S.gguf", model(4)),
        ("page-F16.gguf", b"<html>".to_vec()),
    ]
}

/// What the hub says of it; one file has a checksum that is wrong.
fn listing() -> Json {
    let siblings: Vec<Json> = files()
        .into_iter()
        .map(|(path, bytes)| {
            let sha256 = match path {
                "tiny-IQ1_S.gguf" => "0".repeat(64),
                _ => sha256(&bytes),
            };
            json!({ "rfilename": path, "size": bytes.len(),
                    "lfs": { "sha256": sha256, "size": bytes.len(), "pointerSize": 100 } })
        })
        .collect();
    json!({ "sha": COMMIT, "gated": false, "siblings": siblings })
}

fn hub(asked: &Asked, stream: &mut TcpStream) -> io::Result<()> {
    match asked.target.as_str() {
        "/api/models/org/repo/revision/main?blobs=true" => {
            body(stream, listing().to_string().as_bytes())
        }
        "/api/models/org/gated/revision/main?blobs=true" => status(
            stream,
            "401 Unauthorized\nx-error-code: GatedRepo\nx-error-message: Access is restricted",
        ),
        "/api/models/org/absent/revision/main?blobs=true" => {
            status(stream, "401 Unauthorized\nwww-authenticate: Bearer realm=\"http://evil/\"")
        }
        "/api/models/org/busy/revision/main?blobs=true" => {
            status(stream, "429 Slow\nretry-after: 900")
        }
        "/api/models/org/repo/revision/v2?blobs=true" => {
            status(stream, "404 Not Found\nx-error-code: RevisionNotFound")
        }
        target => {
            let path = target.strip_prefix(&format!("/org/repo/resolve/{COMMIT}/"));
            let file = files().into_iter().find(|(known, _)| path == Some(*known));
            match file {
                Some((_, bytes)) => range(asked, stream, &bytes, "\"e\""),
                None => status(stream, "404 Not Found"),
            }
        }
    }
}

/// A hub, a folder of models and one of state.
struct Rig {
    hub: Server,
    models: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        Self {
            hub: Server::start(hub),
            models: tempfile::tempdir().unwrap(),
            state: tempfile::tempdir().unwrap(),
        }
    }

    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = motley();
        command
            .args(words)
            .env("HF_ENDPOINT", self.hub.url(""))
            .env("HF_TOKEN", SECRET)
            .env("MOTLEY_MODELS", self.models.path())
            .env("MOTLEY_STATE", self.state.path())
            .envs(variables.iter().copied());
        let output = command.output().expect("the program starts");
        assert!(!stdout(&output).contains(SECRET) && !stderr(&output).contains(SECRET));
        output
    }

    fn json(&self, words: &[&str]) -> Json {
        let output = self.run(words, &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).expect("JSON")
    }

    fn check_failure(&self, words: &[&str], expected: &Expect) {
        self.check(&self.run(words, &[]), expected);
    }

    fn check(&self, output: &Output, expected: &Expect) {
        let said = stderr(output)
            .replace(&*self.models.path().to_string_lossy(), "MODELS")
            .replace(&self.hub.address.port().to_string(), "PORT");
        let code = output.status.code().unwrap_or(-1);
        assert_eq!(stdout(output), "", "nothing but messages");
        expected.assert_eq(&format!("exit {code}\n{said}"));
    }

    /// Visible and hidden files of the folder of models.
    fn names(&self) -> Vec<String> {
        names(self.models.path())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_model_is_pulled_listed_found_and_removed() {
    let rig = Rig::new();
    let pulled = rig.json(&["pull", "hf:org/repo", "--json"]);
    assert_eq!(pulled["name"], "tiny-q4_0");
    assert_eq!(pulled["revision"], COMMIT);
    assert_eq!(pulled["sha256"], json!([sha256(&model(1))]));
    assert_eq!(pulled["found"], false);
    assert_eq!(fs::read(rig.models.path().join("tiny-Q4_0.gguf")).unwrap(), model(1));
    assert_eq!(rig.names(), [".tiny-Q4_0.gguf.source.json", "tiny-Q4_0.gguf"]);
    // Its blocks are hashed, as devices of a cluster want them.
    assert_eq!(names(&rig.state.path().join("manifests")).len(), 1);
    assert!(
        rig.hub
            .asked()
            .iter()
            .all(|asked| { asked.header("authorization") == Some(&format!("Bearer {SECRET}")) })
    );
    let before = rig.hub.asked().len();
    assert_eq!(rig.json(&["pull", "hf:org/repo:q4_0", "--json"])["found"], true);
    assert_eq!(rig.hub.asked().len(), before + 1, "only the list is asked for");
    let listed = rig.json(&["ls", "--json"]);
    assert_eq!(listed[0]["name"], "tiny-q4_0");
    assert_eq!(listed[0]["source"], "hf:org/repo:q4_0");
    assert_eq!(listed[0]["architecture"], "none");
    // A name of the hub means what was pulled; this one cannot be run, but it is the file.
    let shown = rig.run(&["show", "hf:Org/Repo:Q4_0"], &[]);
    assert!(stderr(&shown).contains("tiny-Q4_0.gguf: architecture 'none'"), "{}", stderr(&shown));
    let removed = rig.run(&["rm", "tiny-q4_0"], &[]);
    assert_eq!(stdout(&removed), "removed tiny-q4_0 (131 kB)\n");
    assert_eq!(rig.names(), [""; 0]);
    rig.check_failure(
        &["show", "hf:org/repo:Q4_0"],
        &expect![[r#"
        exit 3
        motley: hf:org/repo:Q4_0 is not on this device
        hint: motley pull hf:org/repo:Q4_0 fetches it
    "#]],
    );
}

#[test]
fn a_split_model_comes_whole() {
    let rig = Rig::new();
    let to = tempfile::tempdir().unwrap();
    let words = ["pull", "hf:org/repo:Q8_0", "--json", "--to", to.path().to_str().unwrap()];
    let pulled = rig.json(&words);
    assert_eq!(pulled["name"], "tiny-q8_0");
    assert_eq!(pulled["sha256"], json!([sha256(&model(2)), sha256(&model(3))]));
    assert_eq!(rig.names(), [""; 0]);
    assert_eq!(
        names(to.path()),
        [
            ".tiny-Q8_0-00001-of-00002.gguf.source.json",
            "tiny-Q8_0-00001-of-00002.gguf",
            "tiny-Q8_0-00002-of-00002.gguf"
        ]
    );
}

#[test]
fn an_address_of_a_first_part_brings_all_parts() {
    let rig = Rig::new();
    let url =
        rig.hub.url(&format!("/org/repo/resolve/{COMMIT}/Q8_0/tiny-Q8_0-00001-of-00002.gguf"));
    let pulled = rig.json(&["pull", &url, "--json"]);
    assert_eq!(pulled["paths"].as_array().unwrap().len(), 2);
    assert_eq!(pulled["sha256"], json!([null, null]));
    // An address that is not the hub's gets no token.
    assert!(rig.hub.asked().iter().all(|asked| asked.header("authorization").is_none()));
}

#[test]
fn what_cannot_be_pulled_says_why_and_leaves_nothing() {
    let rig = Rig::new();
    let check = |words: &[&str], expected: &Expect| {
        rig.check_failure(&[&["pull"], words].concat(), expected);
        assert_eq!(rig.names(), [""; 0]);
    };
    check(
        &["hf:org/repo:Q4_K_M"],
        &expect![[r#"
        exit 3
        motley: the repository has no variant 'Q4_K_M'
        hint: it has F16, IQ1_S, Q4_0, Q8_0
    "#]],
    );
    check(
        &["hf:org/repo", "--revision", "v2"],
        &expect![[r#"
        exit 3
        motley: 127.0.0.1 answers 404 Not Found
        hint: --revision names no branch, tag or commit
    "#]],
    );
    check(
        &["hf:org/gated"],
        &expect![[r#"
        exit 4
        motley: 127.0.0.1 answers 401 Unauthorized: Access is restricted
        hint: accept the model's terms at http://127.0.0.1:PORT/org/gated
    "#]],
    );
    check(
        &["hf:org/absent"],
        &expect![[r#"
        exit 4
        motley: 127.0.0.1 answers 401 Unauthorized
        hint: the token of HF_TOKEN does not open it
    "#]],
    );
    check(
        &["hf:org/busy"],
        &expect![[r#"
        exit 1
        motley: 127.0.0.1 asks to wait 900 s before the next try
        hint: wait, then give the same command again
    "#]],
    );
}

#[test]
fn what_is_no_model_or_no_source_is_refused() {
    let rig = Rig::new();
    let check = |words: &[&str], expected: &Expect| {
        rig.check_failure(&[&["pull"], words].concat(), expected);
        assert_eq!(rig.names(), [""; 0]);
    };
    check(
        &["hf:org/repo:F16"],
        &expect![[r#"
        exit 4
        motley: page-F16.gguf is no GGUF file: it begins with <htm
    "#]],
    );
    check(
        &["hf:org/repo:Q4_0", "--reserve", "1000T"],
        &expect![[r#"
        exit 4
        motley: MODELS has room for 0 B, and 131 kB are to come
        hint: free some space; --to names another folder, --reserve what stays free
    "#]],
    );
    check(
        &["org/repo"],
        &expect![[r#"
        exit 2
        motley: 'org/repo' is neither hf:ORG/REPO[:QUANT] nor an address that begins with https://
        hint: motley pull hf:org/repo
    "#]],
    );
    check(
        &["hf:../../etc"],
        &expect![[r#"
        exit 2
        motley: 'hf:../../etc' is no name of a repository: ORG/REPO of letters, digits, '-', '_' and '.'
    "#]],
    );
    check(
        &["http://hub.example/m.gguf"],
        &expect![[r#"
        exit 4
        motley: over http:// anybody on the way to hub.example can change the file
        hint: take https://, or tell the file's checksum with --sha256
    "#]],
    );
    let wrong = rig.run(&["pull", "hf:org/repo:IQ1_S"], &[]);
    assert_eq!(wrong.status.code(), Some(4));
    let said = stderr(&wrong);
    assert!(said.contains("has the wrong checksum") && said.contains("nothing was kept"), "{said}");
    assert_eq!(rig.names(), [""; 0]);
}

/// A file system with room for so many bytes, where a test may mount one.
#[cfg(target_os = "linux")]
struct SmallDisk(tempfile::TempDir);

#[cfg(target_os = "linux")]
impl SmallDisk {
    fn mount(bytes: usize) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(folder));
        }
        println!("skipped: no small file system can be mounted here");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves no more than so many bytes free.
    fn fill(folder: &Path, bytes_left: u64) {
        let space = nix::sys::statvfs::statvfs(folder).unwrap();
        let free = space.blocks_available() * space.fragment_size();
        let filler = vec![1; usize::try_from(free.saturating_sub(bytes_left)).unwrap()];
        fs::write(folder.join("filler"), filler).unwrap();
    }
}

#[cfg(target_os = "linux")]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "the file system stays mounted");
    }
}

/// On a disk that is too small from the start, and on one that others fill while a model comes.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_ends_a_download_with_a_clear_message() {
    let Some(disk) = SmallDisk::mount(512 << 10) else { return };
    let rig = Rig::new();
    let folder = disk.path().to_string_lossy().into_owned();
    let check = |words: &[&str], expected: Expect| {
        let output = rig.run(words, &[]);
        let said = stderr(&output).replace(&folder, "DISK");
        expected.assert_eq(&format!("exit {}\n{said}", output.status.code().unwrap_or(-1)));
    };
    // The default reserve is more than the whole disk.
    let pull = ["pull", "hf:org/repo", "--to", &folder];
    check(
        &pull,
        expect![[r#"
        exit 4
        motley: DISK has room for 0 B, and 131 kB are to come
        hint: free some space; --to names another folder, --reserve what stays free
    "#]],
    );
    SmallDisk::fill(disk.path(), 64 << 10);
    check(
        &[&pull[..], &["--reserve", "0"]].concat(),
        expect![[r#"
        exit 4
        motley: DISK has room for 65.5 kB, and 131 kB are to come
        hint: free some space; --to names another folder, --reserve what stays free
    "#]],
    );
    assert_eq!(names(disk.path()), ["filler"]);
    fs::remove_file(disk.path().join("filler")).unwrap();

    let file = model(1);
    let (bytes, place) = (file.clone(), disk.path().to_owned());
    let hub = Server::start(move |asked, stream| {
        // The head has been looked at, and there was room for the rest.
        if asked.range().is_some_and(|(_, last)| last > 3) {
            SmallDisk::fill(&place, 0);
        }
        range(asked, stream, &bytes, "\"1\"")
    });
    let address = hub.url("/tiny.gguf");
    let words = ["pull", &address, "--to", &folder, "--reserve", "0", "--connections", "1"];
    check(
        &words,
        expect![[r#"
        exit 4
        motley: cannot write DISK/.tiny.gguf.part: No space left on device (os error 28)
        hint: free some space; the same command goes on where it was
    "#]],
    );
    assert!(!disk.path().join("tiny.gguf").exists());
    // With room again the same command goes on.
    fs::remove_file(disk.path().join("filler")).unwrap();
    drop(hub);
    let hub = Server::start(move |asked, stream| range(asked, stream, &file, "\"1\""));
    let address = hub.url("/tiny.gguf");
    let words = ["pull", &address, "--to", &folder, "--reserve", "0"];
    let output = rig.run(&words, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read(disk.path().join("tiny.gguf")).unwrap(), model(1));
}

#[test]
fn offline_means_offline() {
    let rig = Rig::new();
    let output = rig.run(&["pull", "hf:org/repo"], &[("HF_HUB_OFFLINE", "1")]);
    rig.check(
        &output,
        &expect![[r#"
        exit 4
        motley: HF_HUB_OFFLINE forbids downloads
        hint: HF_HUB_OFFLINE=0 allows them
    "#]],
    );
    assert!(rig.hub.asked().is_empty());
}

/// The short option that fingers know from llama.cpp.
#[test]
fn a_model_that_is_not_here_is_fetched_where_it_is_wanted() {
    let rig = Rig::new();
    let missing = rig.run(&["serve", "-hf", "org/repo:Q4_0", "--offline"], &[]);
    assert!(stderr(&missing).contains("hf:org/repo:Q4_0 is not on this device"));
    assert!(rig.hub.asked().is_empty());
    // It comes, though nothing can run this one.
    for words in [["serve", "-hf", "org/repo:Q4_0"], ["run", "-hf=org/repo", "hello"]] {
        let output = rig.run(&words, &[]);
        let said = stderr(&output);
        assert!(said.contains("tiny-Q4_0.gguf: architecture 'none'"), "{said}");
        assert_eq!(stdout(&output), "");
        assert_eq!(rig.names(), [".tiny-Q4_0.gguf.source.json", "tiny-Q4_0.gguf"]);
    }
    // Once: the list of files, the first look, the rest.
    assert!(rig.hub.asked().len() <= 3, "{:?}", rig.hub.asked());
    let twice = rig.run(&["run", "-hf", "org/repo", "-m", "x", "hello"], &[]);
    assert!(stderr(&twice).contains("given twice"), "{}", stderr(&twice));
    let wrong = rig.run(&["serve", "-hf", "../x"], &[]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
}

#[test]
fn variables_that_lead_nowhere_are_named() {
    let rig = Rig::new();
    let nobody = [("SSL_CERT_FILE", "/nowhere/ca.pem"), ("SSL_CERT_DIR", "")];
    for (variables, told) in [
        (&nobody[..], "SSL_CERT_FILE and SSL_CERT_DIR name no certificate of an authority"),
        (&[("https_proxy", "socks5://h:1")], "HTTPS_PROXY names a proxy that is not reached by"),
    ] {
        let output = rig.run(&["pull", "hf:org/repo"], variables);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
    assert!(rig.hub.asked().is_empty());
}

#[test]
fn another_file_of_the_same_name_is_not_written_over() {
    let rig = Rig::new();
    fs::write(rig.models.path().join("tiny-Q4_0.gguf"), "mine").unwrap();
    rig.check_failure(
        &["pull", "hf:org/repo"],
        &expect![[r#"
        exit 4
        motley: another file called tiny-Q4_0.gguf is in MODELS
        hint: motley rm removes it; --to names another folder
    "#]],
    );
    assert_eq!(fs::read(rig.models.path().join("tiny-Q4_0.gguf")).unwrap(), b"mine");
}

#[test]
fn models_of_ollama_are_used_where_they_lie_and_not_removed() {
    let rig = Rig::new();
    let ollama = tempfile::tempdir().unwrap();
    let digits = sha256(&model(9));
    let blobs = ollama.path().join("blobs");
    let manifest = ollama.path().join("manifests/registry.ollama.ai/library/tiny");
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&manifest).unwrap();
    fs::write(blobs.join(format!("sha256-{digits}")), model(9)).unwrap();
    let layer = json!({ "mediaType": "application/vnd.ollama.image.model",
                        "digest": format!("sha256:{digits}"), "size": 1 });
    fs::write(manifest.join("latest"), json!({ "layers": [layer] }).to_string()).unwrap();
    let variables = [("OLLAMA_MODELS", ollama.path().to_str().unwrap())];
    let listed = rig.run(&["list"], &variables);
    expect![[r#"
        name           size  architecture  quantisation  from
        tiny:latest  131 kB  none          ?             Ollama; cannot be run: architecture 'none' is not supported (supported are llama, qwen2, qwen3, qwen3moe, gemma3)
    "#]]
    .assert_eq(&stdout(&listed));
    let shown = rig.run(&["show", "tiny"], &variables);
    assert!(stderr(&shown).contains(&digits), "{}", stderr(&shown));
    let refused = rig.run(&["rm", "tiny:latest"], &variables);
    rig.check(
        &refused,
        &expect![[r#"
        exit 4
        motley: tiny:latest is not in MODELS
        hint: ollama rm tiny:latest removes it
    "#]],
    );
    assert_eq!(names(&blobs).len(), 1);
}
